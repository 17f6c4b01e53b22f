"""Whose a chip is and what it is now: a real gRPC kubelet (built), real processes, and what they can do wrong."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetscope.agents.collectors import Claim, Reading, Sample
from fleetscope.agents.collectors.kubelet import LIST, KubeletCollector
from fleetscope.agents.collectors.named import chip
from fleetscope.agents.node.chips import STATES, Chips, state
from fleetscope.agents.node.devices import Devices
from fleetscope.agents.node.owners import Holders, Owner, Pods
from fleetscope.agents.node.pjrt import Seen
from fleetscope.schema import podresources_pb2 as pods
from fleetscope.schema import wire_pb2 as wire

UTILIZATION = chip("utilization_ratio")


def device(number: int, **other: Any) -> wire.Device:
    return wire.Device(**{"key": f"GPU-{number}", "platform": "gpu", "sku": "H200", "local_ordinal": number, **other})


def claim(key: str, pod: str, resource: str = "nvidia.com/gpu") -> Claim:
    return Claim(resource, key, "team", pod, "main")


@dataclass(slots=True)
class Host:
    """What one collector says of a host, as a test wants it."""

    chips: list[wire.Device]
    used: dict[str, float] = field(default_factory=dict)
    holders: dict[str, frozenset[int]] = field(default_factory=dict)
    claims: list[Claim] | None = None
    withheld: dict[str, str] = field(default_factory=dict)

    @property
    def current(self) -> Reading:
        samples = [Sample(UTILIZATION, value, key) for key, value in self.used.items()]
        return Reading(samples, holders=self.holders, claims=self.claims)

    def devices(self) -> list[wire.Device]:
        return self.chips

    def quarantined(self) -> dict[str, str]:
        return self.withheld


def nobody(pid: int) -> Mapping[str, str]:
    return {}


def chips_of(host: Host, kubernetes: bool = True, greeted: Mapping[int, Owner] | None = None) -> Chips:
    holders = Holders(lambda pid: None, nobody, lambda pid: 1)
    return Chips([host], lambda: greeted or {}, lambda: kubernetes, holders)


# ---- states


@pytest.mark.property
@given(
    st.one_of(st.none(), st.floats(0, 1)), st.sampled_from([None, False, True]), st.sampled_from([None, False, True])
)
def test_every_chip_is_exactly_one_thing(utilization: float | None, held: bool | None, claimed: bool | None) -> None:
    found = state(utilization, held, claimed)
    assert found in STATES
    if found == "free":
        # Nobody computes, nobody has it open, nobody claims it: each of them known.
        assert not utilization
        assert (held, claimed) != (True, False)
        assert claimed is False
    if found == "busy":
        assert utilization


@pytest.mark.unit
@pytest.mark.parametrize(
    ("utilization", "held", "claimed", "expected"),
    [
        (0.5, None, None, "busy"),
        (0.0, True, False, "allocated_idle"),
        (0.0, False, True, "allocated_idle"),
        (0.0, False, False, "free"),
        (0.0, False, None, "unknown"),  # the kubelet does not answer
        (None, True, True, "unknown"),  # somebody has it open, nobody measures
        (None, False, False, "free"),  # a TPU without a runtime
        (None, False, True, "allocated_idle"),
        (None, None, True, "unknown"),
    ],
)
def test_states_by_hand(utilization: float | None, held: bool | None, claimed: bool | None, expected: str) -> None:
    assert state(utilization, held, claimed) == expected


@pytest.mark.unit
def test_a_host_in_kubernetes_and_one_without() -> None:
    host = Host([device(n) for n in range(4)], {f"GPU-{n}": 0.0 for n in range(4)})
    host.holders = {f"GPU-{n}": frozenset() for n in range(4)}
    host.used["GPU-0"] = 0.7
    host.claims = [claim("GPU-0", "a"), claim("GPU-1", "a")]
    chips = chips_of(host)
    assert [c.state for c in chips.now()] == ["busy", "allocated_idle", "free", "free"]
    host.claims = None
    assert [c.state for c in chips.now()] == ["busy", "unknown", "unknown", "unknown"]
    host.holders["GPU-2"] = frozenset({77})
    alone = chips_of(host, kubernetes=False, greeted={77: Owner(run="r", attempt="a1")})
    assert [c.state for c in alone.now()] == ["busy", "free", "allocated_idle", "free"]
    assert alone.now()[2].owners == (Owner(run="r", attempt="a1"),)


@pytest.mark.fault
def test_a_lost_chip_and_one_that_lies_are_unknown_not_idle() -> None:
    host = Host([device(0), device(1), device(2)], {"GPU-0": 0.0, "GPU-1": 0.9})
    host.holders = {"GPU-0": frozenset(), "GPU-1": frozenset({5})}
    host.withheld = {"GPU-1": "temperature", "GPU-0": "suspect_zero"}
    assert [c.state for c in chips_of(host, kubernetes=False).now()] == ["free", "unknown", "unknown"]


@pytest.mark.fault
def test_slices_count_for_their_chip() -> None:
    """RT-18: seven instances are one chip of the inventory, and a pod that has one of them has that chip."""
    slices = [device(0, key=f"MIG-{n}", partition=f"GPU-0/{n}") for n in range(7)]
    host = Host([device(0), *slices, device(1)], {f"MIG-{n}": 0.0 for n in range(7)}, claims=[])
    host.used["GPU-1"] = 0.0
    host.holders = {d.key: frozenset() for d in host.chips}
    chips = chips_of(host)
    assert [(c.device.key, c.state) for c in chips.now()] == [("GPU-0", "free"), ("GPU-1", "free")]
    host.claims = [claim("MIG-3", "a", "nvidia.com/mig-1g.18gb"), claim("MIG-4", "b", "nvidia.com/mig-1g.18gb")]
    now = chips.now()
    assert [c.state for c in now] == ["allocated_idle", "free"]
    assert [owner.pod for owner in now[0].owners] == ["a", "b"]
    host.used["MIG-4"] = 0.2
    assert chips.now()[0].state == "busy"


# ---- pods


@pytest.mark.fault
def test_a_chip_handed_over_within_one_scrape_has_one_owner_at_every_moment() -> None:
    """dcgm-exporter 140, 237, 428 (RT-20): the kubelet goes on listing a pod that has ended beside the next."""
    host = Host([device(0)], {"GPU-0": 0.5}, {"GPU-0": frozenset()}, [claim("GPU-0", "old")])
    chips = chips_of(host)
    assert [o.pod for o in chips.now()[0].owners] == ["old"]
    for both in ([claim("GPU-0", "new"), claim("GPU-0", "old")], [claim("GPU-0", "old"), claim("GPU-0", "new")]):
        host.claims = both
        assert [o.pod for o in chips.now()[0].owners] == ["new"]
    assert chips.pods.odd == {"claimed_twice": 1}
    host.claims = []
    assert chips.now()[0].owners == ()


@pytest.mark.unit
def test_claims_join_by_uuid_address_or_a_tpus_ordinal_and_by_nothing_else() -> None:
    """jobstats 34, gpustack 1633 (RT-17): an index of a GPU says nothing."""
    amd = device(3, key="amd-1", local_name="0000:0c:00.0")
    tpu = device(1, key="h/0000:00:05.0", platform="tpu", sku="TPU v6e")
    table = Pods()
    found = table.of(
        [
            claim("GPU-7::0", "a"), claim("GPU-7::1", "b"), claim("0000:0c:00.0", "c", "amd.com/gpu"),
            claim("1", "d", "google.com/tpu"), claim("7", "e"), claim("GPU-99", "f"),
        ],
        [device(7), amd, tpu],
    )  # fmt: skip
    assert {key: [owner.pod for owner in owners] for key, owners in found.items()} == {
        "GPU-7": ["a", "b"],
        "amd-1": ["c"],
        "h/0000:00:05.0": ["d"],
    }
    assert table.odd == {"unknown_device": 2}


class Kubelet(grpc.GenericRpcHandler):
    """The kubelet's service on a real socket; what it answers is bytes, so that it can answer wrong ones."""

    def __init__(self) -> None:
        self.answer: Callable[[], bytes] = lambda: b""

    def service(self, details: Any) -> Any:
        if details.method == LIST:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: self.answer(), None, None)
        return None


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[tuple[Kubelet, KubeletCollector]]:
    service, path = Kubelet(), tmp_path / "k.sock"
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[service])
    server.add_insecure_port(f"unix://{path}")
    server.start()
    collector = KubeletCollector(path)
    yield service, collector
    collector.close()
    server.stop(0).wait()


def listing(*devices: tuple[str, str]) -> bytes:
    """(pod, device) each."""
    answer = pods.ListPodResourcesResponse()
    for pod, key in devices:
        container = answer.pod_resources.add(name=pod, namespace="team").containers.add(name="main")
        container.devices.add(resource_name="nvidia.com/gpu", device_ids=[key])
    return answer.SerializeToString()


@pytest.mark.fault
def test_the_kubelets_socket_and_what_can_be_wrong_with_it(kubelet: Any, tmp_path: Path) -> None:
    service, collector = kubelet
    service.answer = lambda: listing(("a", "GPU-0"), ("b", "GPU-1"))
    assert collector.read(0.0) == Reading(claims=(claim("GPU-0", "a"), claim("GPU-1", "b")))
    by_claim = pods.ListPodResourcesResponse()
    resource = by_claim.pod_resources.add(name="c", namespace="team").containers.add(name="main")
    resource.dynamic_resources.add().claim_resources.add(driver_name="gpu.nvidia.com", device_name="GPU-2")
    service.answer = by_claim.SerializeToString
    assert collector.read(0.0).claims == (Claim("gpu.nvidia.com", "GPU-2", "team", "c", "main"),)
    # protobuf 4691 (RT-23): a name that is no UTF-8 is an error with a name, not an exception
    service.answer = lambda: b"\x0a\x04\x0a\x02\xff\xfe"
    assert collector.read(0.0) == Reading(errors={"undecodable": 1})

    def broken() -> bytes:
        raise OSError("no")

    service.answer = broken
    assert collector.read(0.0) == Reading(errors={"unknown": 1})
    assert KubeletCollector(tmp_path / "none").read(0.0) == Reading()


@pytest.mark.fault
def test_a_kubelet_that_is_gone_or_never_answers_is_named(kubelet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    service, collector = kubelet
    monkeypatch.setattr("fleetscope.agents.collectors.kubelet.PERIOD_S", 0.2)
    import threading

    held = threading.Event()
    service.answer = lambda: listing() if held.wait(20) else b""
    assert collector.read(0.0).errors == {"deadline_exceeded": 1}
    held.set()


# ---- which chip a runtime means


def ordinals(child: subprocess.Popen[bytes], devices: Devices, platform: str = "gpu") -> list[str]:
    """Key of the device that the runtime of a process calls 0, 1, 2, 3."""
    process: Any = SimpleNamespace(os_pid=child.pid, hello=SimpleNamespace(rank=5), pjrt=None)
    return [devices.seen(process, Seen(platform, n, "H200", f"{platform}:{n}", "")).key for n in range(4)]


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """A process that has files of `tmp_path` open, with variables of its own."""
    children: list[subprocess.Popen[bytes]] = []

    def start(*names: str, **variables: str) -> subprocess.Popen[bytes]:
        program = "import sys; kept = [open(p) for p in sys.argv[1:]]; print(1, flush=True); input()"
        paths = [str(tmp_path / name) for name in names]
        for path in paths:
            Path(path).touch()
        child = subprocess.Popen(
            [sys.executable, "-c", program, *paths], env={**os.environ, **variables},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert child.stdout is not None
        child.stdout.readline()
        children.append(child)
        return child

    yield start
    for child in children:
        child.communicate(b"\n")


@pytest.mark.fault
def test_a_runtimes_ordinal_is_of_the_chips_its_process_sees(opens: Any, tmp_path: Path) -> None:
    """gpustack 1633, 5784 (RT-17): a container's GPU 0 is not the host's. Minor numbers run against the bus here."""
    gpus = [device(n) for n in range(4)]
    slices = [device(3, key=f"MIG-{n}", partition=f"GPU-3/{n}") for n in range(2)]
    paths = {f"GPU-{n}": str(tmp_path / f"nvidia{3 - n}") for n in range(4)}
    devices = Devices(SimpleNamespace(name="h"), lambda: [*reversed(gpus), *slices], lambda: paths)  # type: ignore[arg-type]
    every = [f"nvidia{n}" for n in range(4)]
    unknown = [f"h/gpu/5/{n}" for n in range(4)]
    assert ordinals(opens(*every), devices) == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert ordinals(opens("nvidia0", "nvidia2"), devices) == ["GPU-1", "GPU-3", *unknown[2:]]
    assert ordinals(opens(*every, CUDA_VISIBLE_DEVICES="2,0"), devices) == ["GPU-2", "GPU-0", *unknown[2:]]
    assert ordinals(opens("nvidia0", NVIDIA_VISIBLE_DEVICES="MIG-1"), devices) == ["MIG-1", *unknown[1:]]
    assert ordinals(opens(*every, NVIDIA_VISIBLE_DEVICES="all"), devices)[3] == "GPU-3"
    # CUDA stops at the first that is none.
    assert ordinals(opens(*every, CUDA_VISIBLE_DEVICES="1,9,0"), devices) == ["GPU-1", *unknown[1:]]


@pytest.mark.fault
def test_a_tpu_is_told_only_by_a_process_that_has_it_open(opens: Any, tmp_path: Path) -> None:
    chips = [device(n, key=f"h/pci/{n}", platform="tpu", sku="TPU v6e") for n in range(4)]
    paths = {f"h/pci/{n}": str(tmp_path / f"vfio{n}") for n in range(4)}
    devices = Devices(SimpleNamespace(name="h"), lambda: chips, lambda: paths)  # type: ignore[arg-type]
    assert ordinals(opens("vfio3", "vfio1"), devices, "tpu") == ["h/pci/1", "h/pci/3", "h/tpu/5/2", "h/tpu/5/3"]
    # Not yet open: all of them could be its own.
    assert ordinals(opens(), devices, "tpu")[0] == "h/tpu/5/0"
    for each in chips:
        each.sku = "TPU v7x"
    assert ordinals(opens("vfio0"), devices, "tpu")[0] == "h/tpu/5/0"  # counts cores, not chips


# ---- processes


@pytest.mark.fault
def test_the_child_that_has_the_chip_open_is_of_the_run_its_launcher_said_hello_for() -> None:
    """dynolog 430, 241 (RT-22): launcher, shell, worker; and a process the agent cannot see."""
    parents = {30: 20, 20: 10, 10: 1, 50: 1}
    environments: dict[int, dict[str, str]] = {
        30: {"SLURM_JOB_ID": "4711"},
        50: {"SLURM_JOB_ID": "4712", "SLURM_JOB_NAME": "t\\xff", "SLURM_STEP_ID": "0"},
    }

    def variables(pid: int) -> Mapping[str, str]:
        if pid not in environments:
            raise PermissionError(pid)
        return environments[pid]

    holders = Holders(parents.get, variables, lambda pid: None if pid == 99 else 7)
    greeted = {10: Owner(run="train", attempt="a1")}
    assert holders.of([30], greeted) == [Owner(run="train", attempt="a1", slurm_job="4711")]
    # Nobody said hello: what Slurm left in its environment.
    assert holders.of([50], greeted) == [Owner(run="t\\xff", attempt="slurm-4712-0-0", slurm_job="4712")]
    for _ in range(2):
        assert holders.of([99], greeted) == [Owner()]
        assert holders.of([60], greeted) == [Owner()]
    assert holders.odd == {"pid_not_visible": 1, "environment_denied": 1}


@pytest.mark.unit
def test_a_real_process_whose_environment_is_no_text() -> None:
    variables = {**os.environb, b"SLURM_JOB_ID": b"12", b"SLURM_JOB_NAME": b"caf\xe9\x1b[31m", b"SLURM_STEP_ID": b"3"}
    child = subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True); input()"],
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        (owner,) = Holders().of([child.pid], {})
        assert (owner.slurm_job, owner.attempt) == ("12", "slurm-12-3-0")
        assert owner.run.isprintable()
        assert owner.run.startswith("caf")
        assert Holders().of([child.pid], {os.getpid(): Owner(run="mine")})[0].run == "mine"
    finally:
        child.communicate(b"\n")
    holders = Holders()
    assert holders.of([child.pid], {}) == [Owner()]
    assert holders.odd == {"pid_not_visible": 1}


@pytest.mark.fault
def test_what_is_kept_of_processes_and_pods_goes_with_them() -> None:
    """dcgm-exporter 292 (RT-41): state of what is gone must go too."""
    host = Host([device(0)], {"GPU-0": 0.5}, claims=[])
    chips = chips_of(host)
    for number in range(500):
        host.holders = {"GPU-0": frozenset({number})}
        host.claims = [claim("GPU-0", f"pod-{number}")]
        chips.now()
    assert len(chips.holders._launched) <= 1
    assert len(chips.pods._seen) <= 1


@pytest.mark.fault
def test_an_hour_of_churn_in_short_adds_up(repository: Path) -> None:
    """benchmarks/chip_states.py with fewer pods; its full form is an hour of 10 000."""
    command = [sys.executable, "benchmarks/chip_states.py", "--pods", "400", "--hosts", "24", "--seconds", "240"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.unit
def test_a_shared_chip_shows_no_more_owners_than_its_share_of_the_page() -> None:
    host = Host([device(0)], {"GPU-0": 0.5}, claims=[claim(f"GPU-0::{n}", f"p{n}") for n in range(40)])
    found = [name for name, labels, _ in chips_of(host).values() if name == "fleetscope_chip_owner_info"]
    assert len(found) == 8
