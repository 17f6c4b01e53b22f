"""The processes of the demo, each a role a person could have started by hand with the same words."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from fleetscope.transport.ports import free_port

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_transformer.py"
THROTTLED = {"host": 3, "chip": 1}
"""The simulated chip that starts to throttle, and its host."""
STOP_S = 20.0
"""How long a role may take to finish what it has taken before it is killed."""


@dataclass(slots=True)
class Cast:
    """Child processes by name, started in order, stopped in reverse so that what is in flight arrives."""

    folder: Path
    log_url: str
    shm: Path
    """Rings of the demo's own processes only: those of other programs of this machine are for its own agent."""
    exporter_port: int = field(default_factory=free_port)
    agent_port: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def config_file(self) -> Path:
        return self.folder / "fleetscope.yaml"

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.exporter_port}/metrics"

    @property
    def agent_metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.agent_port}/metrics"

    def write_config(self) -> None:
        """The one file all roles read."""
        document = {
            "cluster": "demo",
            "state_dir": str(self.folder),
            "log": {"url": self.log_url, "partitions": 4},
            "lake": {"path": str(self.lake)},
            "profiler": {"window_s": 5},
            "governor": {"enabled": False},  # it would thin windows that come twelve times as often as they may
            "agent": {"metrics_address": f"127.0.0.1:{self.agent_port}", "shm_dir": str(self.shm)},
            "exporter": {"address": f"127.0.0.1:{self.exporter_port}"},
            "coordinator": {"round_s": 10},
        }
        self.config_file.write_text(yaml.safe_dump(document, sort_keys=False))

    def start(self, name: str, arguments: Sequence[str]) -> None:
        """Start `fleetscope ARGUMENTS`; its output goes to <folder>/<name>.log."""
        environment = {**os.environ, "FLEETSCOPE_CONFIG": str(self.config_file), "JAX_PLATFORMS": "cpu"}
        with (self.folder / f"{name}.log").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "fleetscope.cli.main", *arguments],
                env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,  # Ctrl-C is for the demo; it stops the others in order
            )  # fmt: skip

    def start_all(self, seconds: float | None) -> None:
        """The worker first, whose imports take longest. Fleet and training outlive the demo, which stops them."""
        self.write_config()
        length = str(86_400 if seconds is None else seconds + 3600)
        throttle = f"throttle:host={THROTTLED['host']},chip={THROTTLED['chip']},at=10,slowdown=1.6"
        self.start("up", ["up"])
        self.start("agent", ["agent"])
        self.start("simulate", [
            "simulate", "--hosts", "8", "--chips", "4", "--seconds", length, "--seed", "1", "--ops", "120",
            "--step-ms", "250", "--busy", "0.7", "--run", "simulated", "--fault", throttle,
        ])  # fmt: skip
        self.start("train", ["run", "--run", "transformer", "--", sys.executable, str(EXAMPLE), "--seconds", length])

    def ended(self) -> list[str]:
        """Names of processes that ended although nobody stopped them."""
        return [name for name, process in self.processes.items() if process.poll() is not None]

    def kill(self) -> None:
        """Whatever still runs, at once."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
        for process in self.processes.values():
            process.wait()

    def stop(self, names: Sequence[str]) -> None:
        """Ask as Ctrl-C would, and wait; a process that does not go within STOP_S is killed."""
        chosen = [self.processes[name] for name in names if name in self.processes]
        for process in chosen:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + STOP_S
        for process in chosen:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
