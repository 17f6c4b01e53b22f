"""The path of an event makes no system call and allocates nothing: a kernel kills whoever calls it, and
every malloc of the process is counted. Each with a control that must be caught."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fleetscope.native import include_dir

pytestmark = pytest.mark.unit

SOURCE = r"""
#define _GNU_SOURCE
#include <fleetscope/recorder.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* malloc and its kin, counted; glibc's own underneath. */
static unsigned long count;
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void*, size_t);
void* malloc(size_t n) { __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED); return __libc_malloc(n); }
void* calloc(size_t n, size_t m) { __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED); return __libc_calloc(n, m); }
void* realloc(void* p, size_t n) { __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED); return __libc_realloc(p, n); }
unsigned long mallocs(void) { return count; }

void hot(long passes) {
  for (long i = 0; i < passes; ++i) {
    FLEETSCOPE_SCOPE_AS(scope, "outer");
    FLEETSCOPE_FLOW(scope, 7);
    FLEETSCOPE_COUNTER("n", i);
    FLEETSCOPE_COUNTER("x", 0.5);
    { FLEETSCOPE_SCOPE("inner"); FLEETSCOPE_INSTANT("moment"); FLEETSCOPE_CONSUMER(0, fleetscope_new_flow()); }
  }
}

/* From here on the kernel lets the end of the thread pass and kills for anything else. (Not SECCOMP_MODE_STRICT: that
 * forbids rdtsc too.) */
int strict(void) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), /* the number of the call */
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  struct sock_fprog program = {4, code};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}
void leave(void) { syscall(SYS_exit, 0); }
void forbidden(void) { syscall(SYS_getppid); }
void allocates(void) { for (int i = 0; i < 100; ++i) { void* volatile p = malloc(10); free(p); } }
"""

BEGIN = """
    import ctypes, gc, itertools, os, sys
    from fleetscope.native import _recorder as r
    own = ctypes.CDLL(sys.argv[1]); own.mallocs.restype = ctypes.c_ulong; own.hot.argtypes = (ctypes.c_long,)
    r.on_first_use(None); r.open(sys.argv[2]); r.record(True)
    site, sampled, begin, end, instant = r.site("s"), r.site("t", sample=2), r.begin, r.end, r.instant
    def python(passes):
        for _ in itertools.repeat(None, passes):
            with site:
                with sampled: pass
            instant(site)
    native, leave, forbidden, allocates = own.hot, own.leave, own.forbidden, own.allocates
    gc.disable()
    for _ in range(3): native(100); python(100)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hot")
    (folder / "hot.c").write_text(SOURCE)
    compiler = os.environ.get("CC") or shutil.which("gcc") or "cc"
    words = [compiler, "-std=gnu11", "-O2", "-fPIC", "-shared", "-I", include_dir()]
    built = subprocess.run([*words, folder / "hot.c", "-o", folder / "hot.so"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder / "hot.so"


def run(code: str, library: Path, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BEGIN) + textwrap.dedent(code), str(library), str(folder)],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("native(200_000)", 0),
        ("python(200_000)", 0),
        ("forbidden()", -signal.SIGSYS),
    ],
)
def test_no_system_call(library: Path, tmp_path: Path, body: str, status: int) -> None:
    done = run(f"assert own.strict() == 0; {body}; leave()", library, tmp_path)
    assert done.returncode == status, done.stderr


@pytest.mark.parametrize(("body", "count"), [("native(200_000)", 0), ("python(200_000)", 0), ("allocates()", 100)])
def test_no_allocation(library: Path, tmp_path: Path, body: str, count: int) -> None:
    """Python's own allocator is switched off, so that its objects count too."""
    code = f"""
        def measured():
            {body}
        measured()
        baseline = own.mallocs(); baseline = own.mallocs() - baseline
        before = own.mallocs(); measured(); after = own.mallocs()
        print(after - before - baseline)
    """
    done = run(code, library, tmp_path, LD_PRELOAD=str(library), PYTHONMALLOC="malloc")
    assert done.returncode == 0, done.stderr
    # ctypes and the call itself take a constant few; 200 000 passes with one each would be seen.
    slack = 20
    assert count <= int(done.stdout) <= count + slack
