"""What the profiler costs a program that does not use it, in a bare environment: no package but ours in it.

Importing `fleetscope.agents.profiler`: CPU time, memory of its own (private and dirty pages), and which modules came
with it that are neither ours nor of the standard library. Injection into a Python that never imports jax: CPU time
of interleaved pairs, with and without. The best of several: on a shared machine the rest measures neighbours.

    python benchmarks/profiler_import.py [--pairs 25]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from report import report

from fleetscope.agents.profiler import inject

IMPORT_MS, IMPORT_MB, INJECT_MS = 5.0, 3.0, 2.0

IMPORT = """
import time, sys
def kilobytes():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith(("Private", "Shared_Dirty")))
import _fleetscope_injected
_fleetscope_injected._carry()
known = set(sys.modules)
before, begin = kilobytes(), time.process_time_ns()
from fleetscope.agents import profiler
took = time.process_time_ns() - begin
grew = kilobytes() - before
new = set(sys.modules) - known
strange = sorted(name for name in new if name.partition(".")[0] not in sys.stdlib_module_names | {"fleetscope"})
assert profiler.start.__module__.endswith("lifecycle"), "no recorder for this Python"
print(took, grew, ",".join(strange) or "-")
"""


def run(python: Path, code: str, environment: dict[str, str]) -> list[str]:
    done = subprocess.run([str(python), "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=25)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=False, symlinks=True)
        python = Path(folder) / "bin" / "python"
        plain = {key: value for key, value in os.environ.items() if not key.startswith(("FLEETSCOPE_", "PYTHON"))}
        injected = inject.environment([str(python), "x.py"], plain)
        strange: set[str] = set()
        imports = [run(python, IMPORT, injected) for _ in range(args.pairs)]
        strange.update(line[2] for line in imports if line[2] != "-")
        import_ms = min(int(line[0]) for line in imports) / 1e6
        import_mb = min(int(line[1]) for line in imports) / 1024
        clock = "import time; print(time.process_time_ns())"
        pairs = [(int(run(python, clock, plain)[0]), int(run(python, clock, injected)[0])) for _ in range(args.pairs)]
        inject_ms = (min(with_ for _, with_ in pairs) - min(without for without, _ in pairs)) / 1e6
    failed = [
        *([f"import {import_ms:.2f} ms over {IMPORT_MS}"] if import_ms > IMPORT_MS else []),
        *([f"import {import_mb:.2f} MB over {IMPORT_MB}"] if import_mb > IMPORT_MB else []),
        *([f"injection {inject_ms:.2f} ms over {INJECT_MS}"] if inject_ms > INJECT_MS else []),
        *(["modules of others: " + ", ".join(sorted(strange))] if strange else []),
    ]
    return report(
        "profiler_import", round(import_ms, 3), "ms", IMPORT_MS, failed=failed, import_mb=round(import_mb, 3),
        inject_ms=round(inject_ms, 3), third_party=sorted(strange),
        python=".".join(map(str, sys.version_info[:3])),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
