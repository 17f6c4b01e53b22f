"""On the real plugin: results as without the shim, and every execution, compile and transfer in the records."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

Run = Callable[..., dict[str, Any]]

RESULTS = """
import hashlib
from jax.sharding import Mesh, NamedSharding, PartitionSpec
digest = hashlib.sha256()
def add(tree):
    for leaf in jax.tree.leaves(tree):
        digest.update(np.asarray(leaf).tobytes())
key = jax.random.key(7)
w = jax.random.normal(key, (64, 64))
def loss(w, x):
    return jnp.sum(jax.nn.softmax(jnp.tanh(x @ w)) ** 2)
step = jax.jit(lambda w, x: w - 0.1 * jax.grad(loss)(w, x))
for number in range(20):
    w = step(w, jax.random.normal(jax.random.fold_in(key, number), (32, 64)))
add(w)
add(jax.lax.scan(lambda c, x: (c + jnp.sin(x), c), jnp.zeros(8), jnp.ones((16, 8))))
add(jnp.sort(w, axis=0))
add(jax.lax.conv(jnp.ones((1, 2, 9, 9)), w[:6, :6].reshape(1, 2, 3, 6)[..., :3], (1, 1), "SAME"))
mesh = Mesh(np.array(jax.devices()[:4]), "x")
spread = jax.device_put(w, NamedSharding(mesh, PartitionSpec("x")))
add(jax.jit(lambda a: (a @ a.T).sum(axis=0))(spread))
for dtype in ("int8", "bfloat16", "bool", "complex64"):
    add(jax.device_put(np.arange(48).reshape(6, 8).astype(dtype)))
try:
    jnp.ones(3) @ jnp.ones(4)
except TypeError as error:
    digest.update(str(error).encode())
say(digest=digest.hexdigest(), wrapped="fleetscope.native._pjrt_shim" in sys.modules)
"""


def test_results_are_bit_for_bit_those_without_the_shim(on_plugin: Run) -> None:
    plain = on_plugin(RESULTS, FLEETSCOPE_PJRT_SHIM="0")
    shimmed = on_plugin(RESULTS)
    assert not plain["wrapped"]
    assert shimmed["wrapped"]
    assert shimmed["digest"] == plain["digest"]


def test_every_execution_compile_and_transfer_is_recorded(on_plugin: Run) -> None:
    said = on_plugin("""
        step = jax.jit(lambda x: jnp.sin(x @ x), donate_argnums=0)
        x = jax.device_put(np.ones((256, 256), np.float32))
        x = step(x).block_until_ready()
        records = Records()
        until(lambda: len(records.of(17)) >= 1)
        first = len(records.of(16))
        for _ in range(200):
            x = step(x)
        x.block_until_ready()
        ours = lambda kind: [r for r in records.of(kind) if "_lambda" in r["name"]]
        until(lambda: len(ours(17)) >= 201)
        launches, dones = ours(16), ours(17)
        from fleetscope.native import _pjrt_shim
        from fleetscope.agents.profiler.lifecycle import _process
        until(lambda: len(glob.glob(path() + ".hlo/*.pb")) == len(records.of(21)))
        say(launches=launches, dones=dones, loads=records.of(21), h2d=records.of(18), devices=records.of(20),
            counts=_pjrt_shim.counts(), harvested=_process.harvest.count,
            hlo={f: len(open(path() + ".hlo/" + f, "rb").read()) for f in os.listdir(path() + ".hlo")})
    """)  # fmt: skip
    launches = {row["arg"]: row for row in said["launches"]}
    dones = {row["arg"] >> 12: row for row in said["dones"]}
    assert len(said["launches"]) == len(launches) == 201
    assert len(said["dones"]) == len(dones) == 201
    assert launches.keys() == dones.keys()
    for launch, row in launches.items():
        assert row["start"] == dones[launch]["start"]
        assert row["name"] == dones[launch]["name"]
        assert dones[launch]["arg"] & 4095 == 0
    (label,) = {row["name"] for row in said["launches"]}
    load = next(row for row in said["loads"] if row["name"] == label)
    module, _, number = label.partition("#")
    assert module == "jit__lambda"
    assert load["arg"] == int(number) << 1
    assert load["dur"] > 1000
    assert [row["arg"] >> 12 for row in said["h2d"]] == [256 * 256 * 4]
    assert [row["arg"] for row in said["devices"]] == [0, 1, 2, 3]
    assert said["hlo"][f"{number}.pb"] > 200
    assert said["harvested"] == 0  # not a second time through Python
    assert said["counts"] == {
        "errors": 0, "refused": 0, "twice": 0, "untracked": 0, "hlo_left_out": 0, "in_flight": 0,
    }  # fmt: skip


def test_the_hlo_beside_the_segment_is_the_program(on_plugin: Run) -> None:
    said = on_plugin("""
        from fleetscope.schema import hlo_pb2
        f = jax.jit(lambda x: jnp.tanh(x @ x) + 1)
        f(np.ones((8, 8), np.float32)).block_until_ready()
        records = Records()
        label = lambda: [r["name"] for r in records.of(21) if "_lambda" in r["name"]]
        until(label)
        file = path() + ".hlo/" + label()[0].partition("#")[2] + ".pb"
        until(lambda: os.path.exists(file))
        data = open(file, "rb").read()
        real = [e.hlo_modules()[0] for e in jax.devices()[0].client.live_executables()]
        (real,) = [m for m in real if "lambda" in m.name]
        module = hlo_pb2.HloProto.FromString(data).hlo_module  # HloModuleProtoWithConfig begins like it
        want = hlo_pb2.HloModule.FromString(real.as_serialized_hlo_module_proto())
        opcodes = lambda module: [i.opcode for c in module.computations for i in c.instructions]
        say(opcodes=opcodes(module), want=opcodes(want), name=module.name, mode=oct(os.stat(file).st_mode & 0o777))
    """)
    assert said["opcodes"] == said["want"] != []
    assert said["name"].startswith("jit__lambda")
    assert said["mode"] == "0o600"


def test_four_devices_are_one_launch_and_four_completions(on_plugin: Run) -> None:
    said = on_plugin("""
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        mesh = Mesh(np.array(jax.devices()[:4]), "x")
        x = jax.device_put(np.ones((64, 64), np.float32), NamedSharding(mesh, PartitionSpec("x")))
        records = Records()
        f = jax.jit(lambda a: jnp.sum(a * 2))
        f(x).block_until_ready()
        ours = lambda kind: [r for r in records.of(kind) if "_lambda" in r["name"]]
        until(lambda: len(ours(17)) >= 4)
        say(launches=ours(16), dones=ours(17))
    """)
    (launch,) = said["launches"]
    assert sorted(row["arg"] for row in said["dones"]) == [launch["arg"] << 12 | ordinal for ordinal in range(4)]


def test_two_names_of_one_library_and_a_missing_one(on_plugin: Run) -> None:
    said = on_plugin("""
        jax.jit(lambda x: x + 1)(np.ones(3, np.float32)).block_until_ready()
        import jaxlib.xla_client as client
        messages = []
        try:
            client.load_pjrt_plugin_dynamically("missing", "/nowhere/libmissing.so")
        except Exception as error:
            messages.append((type(error).__name__, str(error)))
        from fleetscope.native import _pjrt_shim
        again = client.load_pjrt_plugin_dynamically("toy2", library)
        say(messages=messages, counts=_pjrt_shim.counts(), same=str(again), platforms=list(bridge.backends()))
    """)
    plain = on_plugin(
        """
        import jaxlib.xla_client as client
        try:
            client.load_pjrt_plugin_dynamically("missing", "/nowhere/libmissing.so")
        except Exception as error:
            say(message=(type(error).__name__, str(error)))
    """,
        FLEETSCOPE_PJRT_SHIM="0",
    )
    assert said["messages"] == [plain["message"]]
    assert said["counts"]["refused"] == 0  # nobody could have loaded it
    assert said["platforms"] == ["toy"]


def test_a_forked_child_and_a_process_without_a_segment_record_nothing(on_plugin: Run) -> None:
    said = on_plugin("""
        f = jax.jit(lambda x: x * 2)
        f(np.ones(3, np.float32)).block_until_ready()
        records = Records()
        until(lambda: len(records.of(17)) >= 1)
        time.sleep(0.2)
        before = len(records.read().rows)
        pid = os.fork()
        if pid == 0:
            from fleetscope.native import _pjrt_shim
            os._exit(0 if _pjrt_shim.counts() and not _recorder.recording() and _pjrt_shim.stop(100) else 1)
        status = os.waitpid(pid, 0)[1]
        _recorder.record(False)
        f(np.ones(3, np.float32)).block_until_ready()
        time.sleep(0.2)
        closed = len([r for r in records.read().rows if r["kind"] in (16, 17)])
        _recorder.record(True)
        f(np.ones(3, np.float32)).block_until_ready()
        until(lambda: len(records.of(17)) == 2)
        say(status=status, closed=closed, launches=len(records.of(16)))
    """)
    assert said == {"status": 0, "closed": 2, "launches": 2}


def test_who_attaches_late_is_told_everything_still_there(on_plugin: Run) -> None:
    said = on_plugin("""
        _recorder.record(False)
        _recorder.close(True)
        f = jax.jit(lambda x: x * 2)
        f(np.ones(3, np.float32)).block_until_ready()
        gone = jax.jit(lambda x: x - 3)
        gone(np.ones(3, np.float32)).block_until_ready()
        del gone
        jax.clear_caches()
        f = jax.jit(lambda x: x * 5)
        f(np.ones(3, np.float32)).block_until_ready()
        _recorder.open(os.environ["FLEETSCOPE_AGENT__SHM_DIR"])
        _recorder.record(True)
        records = Records()
        until(lambda: len(records.of(21)) >= 1 and len(records.of(20)) >= 4)
        f(np.ones(3, np.float32)).block_until_ready()
        until(lambda: len(records.of(17)) >= 1)
        (label,) = {r["name"] for r in records.of(17)}
        number = label.partition("#")[2]
        until(lambda: os.path.exists(path() + ".hlo/" + number + ".pb"))
        say(loads=[r["name"] for r in records.of(21)], label=label, devices=len(records.of(20)))
    """)
    assert said["label"] in said["loads"]
    assert said["devices"] == 4


@pytest.mark.parametrize("recording", [True, False])
def test_jax_profiler_shows_a_device_plane_of_executions(on_plugin: Run, tmp_path: Path, recording: bool) -> None:
    said = on_plugin(f"""
        if not {recording}:
            _recorder.record(False)
        f, g = jax.jit(lambda x: jnp.sin(x @ x)), jax.jit(lambda x: x + 1)
        x = g(f(np.ones((300, 300), np.float32))).block_until_ready()
        with jax.profiler.trace({str(tmp_path / "trace")!r}):
            for _ in range(7):
                x = f(x)
            x = g(x).block_until_ready()
            time.sleep(0.1)
        (file,) = glob.glob({str(tmp_path / "trace")!r} + "/**/*.xplane.pb", recursive=True)
        data = jax.profiler.ProfileData.from_file(file)
        planes = {{}}
        for plane in data.planes:
            if plane.name.startswith("/device:"):
                (line,) = plane.lines
                assert line.name == "XLA Modules"
                planes[plane.name] = [(e.name, e.start_ns, e.duration_ns, dict(e.stats)) for e in line.events]
        (plane,) = [plane for plane in data.planes if plane.name == "/host:CPU"]
        host = [e.start_ns for line in plane.lines for e in line.events]
        say(planes=planes, file=file, host=[min(host), max(host)])
    """)  # fmt: skip
    assert sorted(said["planes"]) == [f"/device:CUSTOM:CPU:{i}" for i in range(4)]
    events = said["planes"]["/device:CUSTOM:CPU:0"]
    names = [name.partition("(")[0] for name, *_ in events]
    assert names == ["jit__lambda"] * 8
    assert len({name for name, *_ in events}) == 2
    end = 0.0
    for _, start_ns, duration_ns, stats in events:
        assert start_ns >= end - 0.001  # events of a line do not overlap
        assert duration_ns >= 0
        assert stats["enqueue_ps"] / 1e3 <= start_ns - events[0][1] + events[0][3]["enqueue_ps"] / 1e3 + 1
        end = start_ns + duration_ns
    assert len({stats["run_id"] for *_, stats in events}) == 8
    # On the clock of the host plane beside it: within the session, not in 1970 or a day off.
    assert said["host"][0] - 1e6 <= events[0][1] <= said["host"][1] + 1e6
    from xprof.convert import raw_to_tool_data

    data, _ = raw_to_tool_data.xspace_to_tool_data([said["file"]], "trace_viewer", {})
    assert b"CUSTOM:CPU:0" in data if isinstance(data, bytes) else "CUSTOM:CPU:0" in data
    assert os.path.getsize(said["file"]) > 0


@pytest.mark.parametrize("wrapped", [True, False])
def test_the_example_of_a_third_party(tmp_path: Path, repository: Path, *, wrapped: bool) -> None:
    done = subprocess.run(
        [sys.executable, repository / "examples" / "third_party_plugin.py", "--logdir", tmp_path, "--steps", "5"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "FLEETSCOPE_AGENT__SHM_DIR": str(tmp_path), "FLEETSCOPE_PJRT_SHIM": str(int(wrapped))},
    )
    assert done.returncode == (0 if wrapped else 1), done.stderr[-3000:]
    assert ("/device:CUSTOM:CPU:0  XLA Modules: 5 executions" in done.stdout) == wrapped
    assert ("no device plane" in done.stderr) != wrapped


UNCHANGED = """
import glob, json, os, time
import jax, numpy as np
f = jax.jit(lambda x: x * 2)
for _ in range(5):
    f(np.ones(3, np.float32)).block_until_ready()
time.sleep(0.3)
from fleetscope.native.recorder import Segment
(path,) = glob.glob(os.environ["FLEETSCOPE_AGENT__SHM_DIR"] + "/fleetscope-*.ring")
got = Segment(path).drain()
print(json.dumps({"platform": jax.devices()[0].client.platform, "kinds": got.kind.tolist()}))
"""


def test_injected_into_a_program_that_does_not_know_of_us(tmp_path: Path, real_plugin: Path) -> None:
    from fleetscope.agents.profiler.inject import environment

    argv = [sys.executable, "-c", UNCHANGED]
    done = subprocess.run(
        argv,
        env=environment(argv)
        | {
            "PJRT_NAMES_AND_LIBRARY_PATHS": f"toy:{real_plugin}",
            "JAX_PLATFORMS": "toy",
            "FLEETSCOPE_AGENT__SHM_DIR": str(tmp_path),
            "FLEETSCOPE_AGENT_SOCKET": str(tmp_path / "no.sock"),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["kinds"].count(16) == said["kinds"].count(17) == 5
