"""The recorder under ThreadSanitizer, AddressSanitizer and UBSan, and a fuzzer of segments.

`make sanitize` runs it; `.ci/run` does so while packages are installed. Standard library and a C++ compiler alone.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
RECORDER = HERE.parents[3] / "native" / "recorder"
CORE = ("writer", "segment_file", "clock", "steps", "links", "thin", "reader", "native", "public")
"""What knows nothing of Python."""
MODULE = tuple(sorted({path.stem for path in RECORDER.glob("*.cpp")} - set(CORE)))
FLAGS = ["-std=c++17", "-O1", "-g1", "-fPIC", "-fno-omit-frame-pointer", "-Wno-missing-field-initializers"]
SANITIZERS = {
    "thread": ["-fsanitize=thread", "-Wno-tsan"],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}
LIBRARIES = {"thread": "libtsan.so", "address": "libasan.so"}
OPTIONS = {
    "TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1",
    # CPython and its modules never give back all they took.
    "ASAN_OPTIONS": "detect_leaks=0 abort_on_error=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def build(compiler: str, kind: str, into: Path) -> None:
    """`stress` and `fuzz`, programs, and `_recorder.so`, all instrumented."""
    into.mkdir(parents=True, exist_ok=True)
    flags = [*FLAGS, *SANITIZERS[kind], f"-I{RECORDER}", f"-I{RECORDER}/include"]
    flags.append(f"-I{sysconfig.get_path('include')}")
    sources = [RECORDER / f"{name}.cpp" for name in CORE + MODULE] + [HERE / "stress.cpp", HERE / "fuzz.cpp"]

    newest = max(path.stat().st_mtime for folder in (RECORDER, HERE) for path in folder.rglob("*.*"))

    def compiled(source: Path) -> Path:
        made = into / f"{source.stem}.o"
        if made.exists() and made.stat().st_mtime > newest:
            return made
        subprocess.run([compiler, *flags, "-c", source, "-o", made], check=True)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = {path.stem: path for path in pool.map(compiled, sources)}
    core = [objects[name] for name in CORE]
    for name in ("stress", "fuzz"):
        words = [compiler, *flags, objects[name], *core, "-pthread", "-ldl", "-o", into / name]
        subprocess.run(words, check=True)
    module = [objects[name] for name in CORE + MODULE]
    subprocess.run([compiler, *flags, "-shared", *module, "-ldl", "-o", into / "_recorder.so"], check=True)


def run(seconds: int, words: list[object], **environment: str) -> None:
    """Fails with what the sanitizer said, or when it hangs. Addresses are not randomised: its shadow memory has its
    fixed place."""
    fixed = [shutil.which("setarch"), "-R"] if shutil.which("setarch") else []
    command = [str(word) for word in [*fixed, *words]]
    done = subprocess.run(
        command, env={**os.environ, **OPTIONS, **environment}, capture_output=True, text=True, timeout=seconds + 240
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-8000:]}")
    sys.stdout.write(done.stdout)
    sys.stdout.flush()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--fuzz", type=int, default=60, metavar="SECONDS")
    options.add_argument("--stress", type=int, default=5, metavar="SECONDS", help="of each of the four")
    options.add_argument("--seed", type=int, default=int(time.time()), help="of the fuzzer; printed")
    options.add_argument("--into", type=Path, default=HERE.parents[3] / "build" / "sanitized")
    chosen = options.parse_args()
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or "c++"
    with tempfile.TemporaryDirectory(prefix="fleetscope-sanitized-", dir="/dev/shm") as folder:
        for kind in SANITIZERS:
            built = chosen.into / kind
            build(compiler, kind, built)
            sys.stdout.write(f"{kind}:\n")
            run(chosen.stress, [built / "stress", chosen.stress, folder])
            found = subprocess.run(
                [compiler, f"-print-file-name={LIBRARIES[kind]}"], capture_output=True, text=True, check=True
            ).stdout.strip()
            script = [sys.executable, HERE / "python_stress.py", built / "_recorder.so", chosen.stress, folder]
            run(chosen.stress, script, LD_PRELOAD=found, PYTHONMALLOC="malloc")
        sys.stdout.write(f"seed {chosen.seed}\n")
        run(chosen.fuzz, [chosen.into / "address" / "fuzz", chosen.fuzz, chosen.seed, folder])


if __name__ == "__main__":
    main()
