"""One host's roles as a person starts them: an agent, and worker, coordinator and exporter in one process, on an
embedded log in a folder of their own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class Site:
    """Runs from its making until `close`. `sections`: of the configuration, beside those every site needs."""

    def __init__(self, folder: Path, **sections: object) -> None:
        (folder / "shm").mkdir()
        document = {
            "cluster": "benchmark", "state_dir": str(folder),
            "agent": {"shm_dir": str(folder / "shm")}, "exporter": {"address": "127.0.0.1:0"},
            "coordinator": {"round_s": 5}, **sections,
        }  # fmt: skip
        (folder / "config.yaml").write_text(json.dumps(document))
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("FLEETSCOPE_", "PYTHON"))}
        self.folder = folder
        self.environment = clean | {"FLEETSCOPE_CONFIG": str(folder / "config.yaml"), "JAX_PLATFORMS": "cpu"}
        self._running = {role: self._start(role) for role in ("up", "agent")}
        until = time.monotonic() + 60
        while not (folder / "agent.sock").exists():
            if time.monotonic() > until:
                self.close()
                raise SystemExit((folder / "agent.log").read_text()[-2000:] + "the agent did not start")
            time.sleep(0.1)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "fleetscope.cli.main", *words]

    def _start(self, role: str) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{role}.log").open("ab") as output:
            return subprocess.Popen(
                self.command(role), env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def ask(self, *words: str) -> str:
        """What a command says, on both streams."""
        done = subprocess.run(self.command(*words), env=self.environment, capture_output=True, text=True, timeout=120)
        return done.stdout + done.stderr

    def rows(self, *words: str) -> list[dict[str, Any]]:
        """What a command prints as JSON; an unknown run has none. Raises RuntimeError if it fails."""
        command = self.command(*words, "-o", "json")
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120)
        if done.returncode > 1:
            raise RuntimeError(f"fleetscope {' '.join(words)}: {done.stderr}")
        return list(json.loads(done.stdout or "[]"))

    def stop(self, role: str) -> None:
        """As a person does; what is still there after 30 s is killed."""
        process = self._running[role]
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def close(self) -> None:
        for role in ("agent", "up"):
            self.stop(role)

    def __enter__(self) -> "Site":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
