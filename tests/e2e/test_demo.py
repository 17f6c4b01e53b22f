"""`fleetscope demo`, unattended: the main promise of the README, with its own words checked."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

pytestmark = pytest.mark.e2e


def _demo(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fleetscope.cli.main", "demo", "--plain", "--folder", str(folder), *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("FLEETSCOPE_")},
    )  # fmt: skip


def _rings(folder: Path) -> Path:
    """The folder in shared memory its configuration names."""
    return Path(yaml.safe_load((folder / "demo" / "fleetscope.yaml").read_text())["agent"]["shm_dir"])


@pytest.mark.timeout(240)
def test_the_demo_shows_the_path_and_sums_it_up(tmp_path: Path) -> None:
    with _demo(tmp_path / "demo", "--seconds", "30") as process:
        output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    lines = output.splitlines()
    live = [line for line in lines if re.match(r" *\d+ s  lag ", line)]
    assert any("simulated: 8 hosts 32 chips, step time" in line and "MFU" in line for line in live), output
    assert any("transformer: 1 host" in line for line in live), output
    assert re.search(r"^throttled: sim-003 /device:TPU:1 \(TPU v6e\) of run simulated, ", output, re.MULTILINE), output
    ops = re.findall(
        r"^\S+ .*(?:fusion|convolution|reduce|copy|dot).* train_transformer\.py:\d+$", output, re.MULTILINE
    )
    assert len(ops) >= 3, output
    (ledger,) = re.findall(
        r"^ledger: (\d+) sources: ([\d,]+) events produced, ([\d,]+) stored, 0 lost", output, re.MULTILINE
    )
    assert ledger[1] == ledger[2], output
    assert int(ledger[0]) == 18  # 8 hosts and 8 processes simulated, one of each real
    assert "incomplete" not in output
    assert not _rings(tmp_path).exists()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_it_cleanly_at_any_moment(tmp_path: Path, times: int) -> None:
    """Even before there is anything to sum up: exit code 0, no process left. Twice: at once."""
    with _demo(tmp_path / "demo") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "starting" in line:
                break
        parts = psutil.Process(process.pid).children(recursive=True)
        assert len(parts) >= 4
        process.send_signal(signal.SIGINT)
        output = process.stdout.readline()
        if times == 2:
            process.send_signal(signal.SIGINT)
        output += process.stdout.read()
        assert process.wait(100) == (0 if times == 1 else 128 + signal.SIGINT), output
    assert "stopping" in output
    assert "Traceback" not in output
    assert not _rings(tmp_path).exists()
    # A part whose parent has gone is reaped by whoever is process 1 here, in its own time.
    left = psutil.wait_procs(parts, 60)[1]
    assert [part for part in left if part.status() != psutil.STATUS_ZOMBIE] == []
