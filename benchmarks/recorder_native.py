"""What a region of fleetscope/recorder.h costs in C++: recording, against two counter reads and one 32-byte store, and
not recording, against an empty loop.

The loops of recorder_native.cpp in one process, at least 1 000 small batches of each in turn, the 10th percentile; the
empty loop subtracted. x86 with a TSC the kernel trusts. The last line is one JSON object.
"""

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from report import report

ENABLED, DISABLED_NS = 1.2, 1.0


def build(folder: str) -> ctypes.CDLL:
    from fleetscope.native import include_dir

    library = Path(folder) / "loops.so"
    source = Path(__file__).with_name("recorder_native.cpp")
    words = ["-std=c++17", "-O2", "-shared", "-fPIC", "-I", include_dir(), str(source), "-o", str(library)]
    subprocess.run([os.environ.get("CXX", "c++"), *words], check=True)
    loops = ctypes.CDLL(str(library))
    for name in ("empty", "floor_of_region", "region"):
        getattr(loops, name).restype = ctypes.c_int64
        getattr(loops, name).argtypes = (ctypes.c_int64,)
    return loops


def in_turn(loops: ctypes.CDLL, names: tuple[str, ...], batches: int, count: int) -> dict[str, tuple[float, float]]:
    """(10th percentile, median) ns a pass, the empty loop's subtracted."""
    taken: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(batches):
        for name in names:
            taken[name].append(getattr(loops, name)(count) / count)
    ordered = {name: sorted(values) for name, values in taken.items()}
    at = {name: (values[len(values) // 10], values[len(values) // 2]) for name, values in ordered.items()}
    return {name: (at[name][0] - at["empty"][0], at[name][1] - at["empty"][1]) for name in names}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--count", type=int, default=1000)
    args = parser.parse_args()
    from fleetscope.native import _recorder

    load = os.getloadavg()[0]
    names = ("empty", "floor_of_region", "region")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        loops = build(folder)
        _recorder.on_first_use(None)
        _recorder.open(folder)
        off = in_turn(loops, names, args.batches, args.count)
        _recorder.record(True)
        on = in_turn(loops, names, args.batches, args.count)
        _recorder.record(False)
        _recorder.close(True)
    ratio = on["region"][0] / on["floor_of_region"][0]
    disabled_ns = off["region"][0]
    failed = [f"enabled {ratio:.2f} x the bare cost"] * (ratio > ENABLED)
    failed += [f"disabled {disabled_ns:.2f} ns"] * (disabled_ns > DISABLED_NS)
    return report(
        "recorder_native",
        round(ratio, 3),
        "x two counter reads and a store",
        ENABLED,
        failed=failed,
        disabled_ns=round(disabled_ns, 2),
        enabled_ns={"p10": round(on["region"][0], 1), "median": round(on["region"][1], 1)},
        floor_ns={"p10": round(on["floor_of_region"][0], 1), "median": round(on["floor_of_region"][1], 1)},
        batches=args.batches,
        load=[round(load, 2), round(os.getloadavg()[0], 2)],
    )


if __name__ == "__main__":
    sys.exit(main())
