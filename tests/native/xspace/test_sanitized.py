"""The decoder under AddressSanitizer and UBSan, fed with seeded mutations: what the Python tests would not notice."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROUNDS = 20_000


@pytest.fixture(scope="module")
def mutator(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    compiler = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    assert compiler, "building fleetscope needs a C++ compiler, so there is one"
    folder = tmp_path_factory.mktemp("xspace_mutate")
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    probe = folder / "probe.cpp"
    probe.write_text("int main() {}\n")
    if subprocess.run([compiler, *flags, probe, "-o", folder / "probe"], capture_output=True).returncode:
        if os.environ.get("FLEETSCOPE_REQUIRE_ALL") == "1":
            pytest.fail(f"{compiler} cannot link the sanitizers")
        pytest.skip(f"{compiler} cannot link the sanitizers: install its sanitizer libraries")
    source = repository / "native" / "xspace_decoder"
    sources = [
        *sorted(source.glob("fuzz/*.cpp")),
        *(source / f"{name}.cpp" for name in ("memory", "columns", "decode", "arrow")),
    ]
    binary = folder / "xspace_mutate"
    subprocess.run([compiler, *flags, f"-I{source}", *sources, "-o", binary], check=True, timeout=150)
    return binary


@pytest.mark.fault
def test_mutated_corpus_under_sanitizers(mutator: Path, repository: Path) -> None:
    seeds = sorted((repository / "native" / "xspace_decoder" / "fuzz" / "corpus").glob("*.xplane.pb"))
    assert len(seeds) >= 5
    done = subprocess.run([mutator, str(ROUNDS), "1", *seeds], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == f"{ROUNDS} mutations of {len(seeds)} files\n"


@pytest.mark.fault
def test_mutated_capture_under_sanitizers(mutator: Path, samples: Path) -> None:
    seed = samples / "xplane" / "tracelens__mi300_jax08_gemm.xplane.pb"
    done = subprocess.run([mutator, "300", "2", seed], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
