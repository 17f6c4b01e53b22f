"""jax.profiler through a wrapped plugin, and windows of it calibrated with exact counts."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.fault

Run = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(("profiler", "planes"), [(1, ["TOYOWN"]), (0, [f"TOY:{i}" for i in range(4)])])
def test_jax_profiles_through_the_plugins_own_extension_or_ours(on_toy: Run, profiler: int, planes: list[str]) -> None:
    said = on_toy(f"""
        os.environ["JAX_PLATFORMS"] = "cpu"
        records, toy = begin("profiler={profiler}", mode=THREAD, stall_us=300)
        import glob
        import jax
        from jaxlib import _profiler
        _profiler.register_plugin_profiler(_pjrt_shim.wrap("toy", library))
        executable = toy.compile(toy.client(), "jit_f")
        with jax.profiler.trace(folder + "/trace"):
            toy.execute(executable, 30, devices=4)
            toy.settle()
        (file,) = glob.glob(folder + "/trace/**/*.xplane.pb", recursive=True)
        planes = [plane for plane in jax.profiler.ProfileData.from_file(file).planes if "CUSTOM" in plane.name]
        events = {{}}
        for plane in planes:
            events[plane.name] = sorted((e.start_ns, e.duration_ns) for line in plane.lines for e in line.events)
        say(planes=sorted(events), events=events, own=toy.live("profiles"))
    """)  # fmt: skip
    assert said["planes"] == [f"/device:CUSTOM:{name}" for name in planes]
    assert said["own"] == profiler
    if profiler:
        return
    for events in said["events"].values():
        assert len(events) == 30
        # One worker completes four devices in turn, 0.3 ms each.
        ends = [start + duration for start, duration in events]
        assert all(later[0] >= end - 1 for end, later in zip(ends, events[1:], strict=False))
        assert ends[-1] - events[0][0] >= 30 * 4 * 0.3e6 * 0.9


@pytest.mark.alone
def test_windows_calibrated_with_exact_counts_tell_the_plugins_truth(on_toy: Run) -> None:
    """Windows alone lose what they cut; the ratio inside them, times the shim's count, is the whole (DESIGN 5)."""
    said = on_toy("""
        os.environ["JAX_PLATFORMS"] = "cpu"
        records, toy = begin("profiler=1,devices=1", mode=THREAD, stall_us=6000)
        info = records.segment.info
        tick_ns = info.period_num / info.period_den
        toy.set(period_ps=round(tick_ns * 1000))
        import glob
        import jax
        from jaxlib import _profiler
        _profiler.register_plugin_profiler(_pjrt_shim.wrap("toy", library))
        jax.numpy.ones(1).block_until_ready()
        executable = toy.compile(toy.client(), "jit_f")
        over = []
        def train():  # two executions ahead, all the time
            while not over:
                if toy.lib.toy_waiting() < 3:
                    toy.execute(executable, 1, devices=1)
                time.sleep(0.0005)
        thread = threading.Thread(target=train)
        thread.start()
        observed, cut, ops, complete = 0.0, 0.0, 0.0, 0
        for window in range(12):
            with jax.profiler.trace(f"{folder}/trace{window}"):
                begun = time.perf_counter()
                time.sleep(0.05)
                observed += time.perf_counter() - begun
            (file,) = glob.glob(f"{folder}/trace{window}/**/*.xplane.pb", recursive=True)
            (plane,) = [p for p in jax.profiler.ProfileData.from_file(file).planes if "TOYOWN" in p.name]
            modules, line = plane.lines
            complete += len(list(modules.events))
            ops += sum(e.duration_ns for e in line.events if e.name == "large")
            cut += sum(e.duration_ns for e in modules.events)
        over.append(1)
        thread.join()
        toy.settle()
        log, dones = toy.log(), sorted((r["start"] + r["dur"], r["start"]) for r in records.of(17))
        busy = float((log[:, 4] - log[:, 6]).sum()) * tick_ns
        occupied, free_from = 0, 0
        for done, enqueued in dones:
            occupied += done - max(enqueued, free_from)
            free_from = done
        say(executions=len(log), dones=len(dones), large=0.7 * busy, estimate=ops / complete * len(dones),
            busy=busy, occupied=occupied * tick_ns, duty=cut / 1e9 / observed, complete=complete)
    """)
    assert said["dones"] == said["executions"] > 50
    assert said["complete"] > 30
    assert said["estimate"] == pytest.approx(said["large"], rel=0.15)
    # Occupancy is an upper bound of busy time, and close to it while the queue is never empty.
    assert said["busy"] * 0.999 <= said["occupied"] <= said["busy"] * 1.3
    assert said["duty"] < 0.97  # what the windows alone say of a device that is never idle
