"""Stays beside the program that `fleetscope run` started: `python -I -S keeper.py REPORT PROGRAM ARGV...`.

Passes signals on, ends with the program's exit code (128 + n when a signal ended it), and says at the end when nothing
of the program reported. A process of its own, of the standard library alone: the command itself would keep 60 MB for
as long as the program runs, this keeps 9. When it is killed, so is the program: a supervisor that kills what it
started must not leave a training run behind.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterable

UNAVAILABLE = 69
KILLED_BY_KERNEL = 0x80
"""si_code of a signal from the terminal: the program, in the same process group, has got it too."""

NOT_PASSED_ON = frozenset(
    {signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE}
)
"""Nobody can take the first two; the next three stop a whole job from its terminal, and this process with it; the last
says that a line of ours found no reader. All others, real-time ones too, are the program's."""

NOTHING = (
    "no process of it reported: a Python in it was started with -I, -E or -S or without our PYTHONPATH, or none was"
)
NO_JAX = "no process of it imported jax"
CANNOT_LOAD = "the profiler could not be loaded into {}: see docs/injection.md, other Pythons"


def end_with_parent() -> None:
    try:
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return


def start(program: str, argv: list[str], mask: Iterable[int], on_child: object = signal.SIG_DFL) -> int:
    """Process id. The program gets the signals this process was started with, and dies with it."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        end_with_parent()
        if os.getppid() != parent:
            os._exit(UNAVAILABLE)
        # Python ignores these two from its start; a program must not inherit that.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, on_child)  # type: ignore[arg-type]
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execv(program, argv)
    except OSError as error:
        os.write(2, f"fleetscope run: {program}: {error.strerror}\n".encode())
    finally:
        os._exit(UNAVAILABLE)


def wait(pid: int, signals: Iterable[int]) -> int:
    """Its wait status. Everything that was sent to this process alone is passed on; other children are reaped."""
    while True:
        told = signal.sigwaitinfo(signals)
        if told.si_signo != signal.SIGCHLD:
            if told.si_code != KILLED_BY_KERNEL:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, told.si_signo)
            continue
        while True:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 0
            if ended == pid:
                return status
            if ended == 0:
                break


def verdict(report: str) -> str:
    """What the processes said in the file `report`, one line each; "" when one recorded."""
    try:
        with open(report, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
        os.unlink(report)
    except OSError:
        return ""
    if "started" in lines:
        return ""
    failed = [line.partition(" ")[2] for line in lines if line.startswith("absent ")]
    if failed:
        return CANNOT_LOAD.format(", ".join(dict.fromkeys(failed)))
    return NO_JAX if lines else NOTHING


def main(report: str, program: str, *argv: str) -> int:
    signals = signal.valid_signals() - NOT_PASSED_ON
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    # Ignored by whoever started us (a daemon, `trap '' CHLD`), children would end without a word and without a status.
    on_child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = wait(start(program, list(argv), mask, on_child), signals)
    code = os.waitstatus_to_exitcode(status)
    why = verdict(report)
    if why:
        # At the end of a terminal that hung up there is nobody to tell.
        with contextlib.suppress(OSError):
            os.write(2, f"fleetscope run: warning: {why}: nothing was recorded on this host\n".encode())
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    # No clean-up of ours may come between: what the program was is all that counts.
    os._exit(main(*sys.argv[1:]))
