"""Units, Slurm scripts, images and example pods: what their own checkers say, and that roles take their settings."""

import json
import os
import re
import stat
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from fleetscope.schema.config import Config, load

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "deploy" / "systemd"
SLURM = ROOT / "deploy" / "slurm"
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
PODS = ROOT / "deploy" / "kubernetes"

INSTANCES = {
    "fleetscope-agent@": "alice", "fleetscope-up@": "alice", "fleetscope-worker@": "3",
    "fleetscope-coordinator": "", "fleetscope-exporter": "",
}  # fmt: skip


def _loaded(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> Config:
    with monkeypatch.context() as patch:
        for name, value in variables.items():
            if name != "FLEETSCOPE_CONFIG":  # the administrator's
                patch.setenv(name, value)
        return load()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root folder with the units and, as the docs have it, an installation below /opt."""
    root = tmp_path_factory.mktemp("host")
    folder = root / "etc" / "systemd" / "system"
    folder.mkdir(parents=True)
    for unit in UNITS.glob("*.service"):
        (folder / unit.name).write_text(unit.read_text())
    for target in ("sysinit", "basic", "shutdown", "multi-user", "network-online", "time-sync"):
        (folder / f"{target}.target").write_text(f"[Unit]\nDescription={target}\n")
    program = root / "opt" / "fleetscope" / "bin" / "fleetscope"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return root


@pytest.mark.e2e
def test_systemd_takes_the_units_and_finds_them_confined(require: Callable[[str], Path], host: Path) -> None:
    analyze = require("systemd-analyze")
    assert {path.name for path in UNITS.glob("*.service")} == {f"{name}.service" for name in INSTANCES}
    for name, instance in INSTANCES.items():
        unit = f"{name}{instance}.service"
        done = subprocess.run(
            [analyze, "verify", "--man=no", f"--root={host}", unit], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, ""), unit
        # systemd's own scale: 10 is an unconfined root service. The agent has devices and /proc to read.
        limit = 35 if name == "fleetscope-agent@" else 20
        done = subprocess.run(
            [analyze, "security", "--offline=true", f"--root={host}", f"--threshold={limit}", "--no-pager", unit],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-300:] + done.stderr


@pytest.mark.unit
@pytest.mark.parametrize("name", list(INSTANCES))
def test_a_unit_gives_its_role_what_it_needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (UNITS / f"{name}.service").read_text().replace("%i", INSTANCES[name])
    config = _loaded(monkeypatch, dict(re.findall(r"^Environment=(\w+)=(.*)$", text, re.MULTILINE)))
    (state,) = re.findall(r"^StateDirectory=(.*)$", text, re.MULTILINE)
    assert config.state_dir == Path("/var/lib") / state
    if name == "fleetscope-agent@":
        (run,) = re.findall(r"^RuntimeDirectory=(.*)$", text, re.MULTILINE)
        assert config.agent_socket.parent == Path("/run") / run
        assert config.spool_dir.parent == config.state_dir
    if name == "fleetscope-worker@":
        assert config.worker.chains == [3]
    (command,) = re.findall(r"^ExecStart=/opt/fleetscope/bin/fleetscope (\S+)$", text, re.MULTILINE)
    assert command == re.sub(r"^fleetscope-|@$", "", name)


@pytest.fixture
def node(tmp_path: Path) -> dict[str, str]:
    """What Slurm's daemon gives its scripts, with a systemd that writes down what it is asked."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("systemd-run", "systemctl", "fleetscope"):
        (tools / name).write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" >"{tmp_path}/{name}.args"\nexit $REFUSED\n')
        (tools / name).chmod(0o755)
    return {
        "PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "77", "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_JOB_GID": str(os.getgid()), "FLEETSCOPE_BIN": str(tools / "fleetscope"),
        "FLEETSCOPE_RUN_ROOT": str(tmp_path / "run"), "FLEETSCOPE_STATE_ROOT": str(tmp_path / "state"), "REFUSED": "0",
    }  # fmt: skip


def _script(name: str, environment: dict[str, str]) -> str:
    done = subprocess.run([SLURM / name], env=environment, capture_output=True, text=True, timeout=30)
    # Anything else drains the node (prolog, epilog) or ends the task (task prolog).
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.unit
def test_a_slurm_job_gets_an_agent_of_its_user(
    node: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _script("prolog.sh", node) == ""
    asked = (tmp_path / "systemd-run.args").read_text().splitlines()
    assert asked[-2:] == [node["FLEETSCOPE_BIN"], "agent"]
    assert {f"--uid={os.getuid()}", "--unit=fleetscope-agent-77"} <= set(asked)
    config = _loaded(monkeypatch, dict(re.findall(r"^--setenv=(\w+)=(.*)$", "\n".join(asked), re.MULTILINE)))
    folder = tmp_path / "run" / "fleetscope-slurm-77"
    assert config.agent_socket == folder / "agent.sock"
    for path in (folder, config.state_dir):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert _script("task_prolog.sh", node) == f"export FLEETSCOPE_AGENT_SOCKET={config.agent_socket}\n"
    assert _script("epilog.sh", node) == ""
    assert "fleetscope-agent-77.service" in (tmp_path / "systemctl.args").read_text()
    assert not folder.exists()
    assert config.state_dir.exists()


@pytest.mark.unit
@pytest.mark.parametrize("lack", [{"FLEETSCOPE_BIN": "/nowhere"}, {"REFUSED": "1"}], ids=["not installed", "refused"])
def test_a_job_without_an_agent_runs_as_it_would_without_us(node: dict[str, str], lack: dict[str, str]) -> None:
    for name in ("prolog.sh", "task_prolog.sh", "epilog.sh"):
        assert _script(name, node | lack) == ""


@pytest.mark.e2e
def test_hadolint_passes_the_images(require: Callable[[str], Path]) -> None:
    done = subprocess.run(
        [require("hadolint"), "--format=json", DOCKERFILE], capture_output=True, text=True, timeout=60
    )
    assert json.loads(done.stdout) == [], done.stderr
    assert done.returncode == 0


@pytest.mark.unit
def test_an_image_is_built_from_all_rooms_and_runs_as_nobody() -> None:
    text = DOCKERFILE.read_text()
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    shipped = {stage.split()[2]: stage for stage in stages if "ENTRYPOINT" in stage}
    assert set(shipped) == {"agent", "pipeline"}
    for stage in shipped.values():
        assert "USER 65532:65532" in stage
        assert "RUN" not in stage
        assert re.findall(r"^COPY (.*)$", stage, re.MULTILINE)[0].startswith("--from=")
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = build["project"]["optional-dependencies"]
    installed = [extra for found in re.findall(r"\.whl\)\[([\w,]+)\]", text) for extra in found.split(",")]
    assert installed == ["agent", "otlp", "pipeline", "exporter", "query", "otlp"]
    assert set(installed) <= set(extras)
    lines = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().split()
    wanted = set(build["tool"]["scikit-build"]["wheel"]["packages"].values())
    wanted |= {"pyproject.toml", "constraints.txt", build["project"]["readme"], *build["project"]["license-files"]}
    assert {line[1:] for line in lines if line.startswith("!")} == wanted


@pytest.mark.unit
@pytest.mark.parametrize("file", ["training-pod.yaml", "sidecar.yaml"])
def test_profiler_and_agent_of_an_example_pod_meet(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = yaml.safe_load((PODS / file).read_text())["spec"]
    (training,) = pod["containers"]
    told = {item["name"]: item["value"] for item in training["env"]}
    agents = pod.get("initContainers") or [
        next(
            o["spec"]["template"]["spec"]["containers"][0]
            for o in yaml.safe_load_all((Path(__file__).with_name("golden") / "default.yaml").read_text())
            if o["kind"] == "DaemonSet"
        )
    ]
    config = _loaded(monkeypatch, {item["name"]: item.get("value", "from the pod") for item in agents[0]["env"]})
    assert told["FLEETSCOPE_AGENT_SOCKET"] == str(config.agent_socket)
    assert told["FLEETSCOPE_AGENT__SHM_DIR"] == str(config.agent.shm_dir)
    shared = {mount["mountPath"] for mount in training["volumeMounts"]}
    assert shared & {mount["mountPath"] for mount in agents[0]["volumeMounts"]} == {str(config.agent.shm_dir)}
