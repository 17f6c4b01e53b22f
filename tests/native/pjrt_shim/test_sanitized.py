"""The shim and the toy plugin under AddressSanitizer with UBSan, and under ThreadSanitizer."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PARTS = {
    "pjrt_shim": ("clients", "flights", "hooks", "keeper", "plugin", "programs", "session", "state", "xspace"),
    "recorder": ("clock", "links", "native", "segment_file", "steps", "thin", "writer"),
}


@pytest.mark.fault
@pytest.mark.parametrize(("sanitizers", "rounds"), [("address,undefined", 1500), ("thread", 400)])
def test_everything_at_once_under_sanitizers(sanitizers: str, rounds: int, tmp_path: Path, repository: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler, "building fleetscope needs a C++ compiler, so there is one"
    flags = ["-std=c++17", "-O1", "-g", "-pthread", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    probe = tmp_path / "probe.cpp"
    probe.write_text("int main() {}\n")
    if subprocess.run([compiler, *flags, probe, "-o", tmp_path / "probe"], capture_output=True).returncode:
        if os.environ.get("FLEETSCOPE_REQUIRE_ALL") == "1":
            pytest.fail(f"{compiler} cannot link -fsanitize={sanitizers}")
        pytest.skip(f"{compiler} cannot link -fsanitize={sanitizers}: install its sanitizer libraries")
    native, here = repository / "native", Path(__file__).parent
    sources = [native / folder / f"{name}.cpp" for folder, names in PARTS.items() for name in names]
    binary = tmp_path / "stress"
    subprocess.run(
        [compiler, *flags, f"-I{native / 'pjrt_shim'}", f"-I{native / 'recorder'}", *sources,
         *here.glob("toy_*.cpp"), here / "stress.cpp", "-o", binary],
        check=True,
        timeout=170,
    )  # fmt: skip
    done = subprocess.run(
        [binary, tmp_path, str(rounds)],
        capture_output=True,
        text=True,
        timeout=120,
        # Events that never complete are the plugin's leak by design, and the tables live as long as the process.
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "child 0 described 0 complaints 0\n"
