"""Call sites, regions that end elsewhere, moments; levels, categories and sampling."""

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import greenlet
import pytest

from fleetscope.native import _recorder as recorder
from fleetscope.native.recorder import DATA_WAIT, HOST, Segment

pytestmark = pytest.mark.unit


def spans(segment: Segment) -> list[tuple[str, float, int]]:
    """(name, milliseconds, weight) in the order of the ring."""
    got, names = segment.drain(), segment.names()
    ms = 1e-6 * segment.info.period_num / segment.info.period_den
    return [(names[n], d * ms, w) for n, d, w in zip(got.name, got.dur.tolist(), got.weight.tolist(), strict=True)]


def names(segment: Segment) -> list[str]:
    return [name for name, *_ in spans(segment)]


def test_a_site_is_one_object_for_the_same_words(segment: Segment) -> None:
    site = recorder.site("load")
    assert recorder.site("load") is site
    assert recorder.site("load", level=2) is not site
    with site as entered:
        assert entered is site
        with site:  # recursion
            time.sleep(0.01)
    with pytest.raises(KeyError), recorder.site("data_wait of shards"):
        raise KeyError

    @site
    def decorated(x: int) -> int:
        return x + 1

    assert decorated(1) == 2
    got = segment.drain()
    assert [segment.names()[n] for n in got.name] == ["load", "load", "data_wait of shards", "load"]
    assert got.kind.tolist() == [HOST, HOST, DATA_WAIT, HOST]
    assert got.dur[0] <= got.dur[1]
    assert got.start[1] <= got.start[0]


def test_what_is_no_name_or_no_level_is_no_error(segment: Segment) -> None:
    wrong: Any = recorder.site
    for site in (wrong(3), wrong(), wrong("x", level=99), wrong("x", sample="often"), wrong("x", what=1)):
        with site:
            pass
    recorder.instant(None)
    recorder.end(None)
    recorder.end(recorder.begin(7))
    assert names(segment) == ["3", "unnamed", "x", "x", "x", "None", "7"]


def test_tasks_that_interleave_keep_their_own_time(segment: Segment) -> None:
    site = recorder.site("request")

    async def request(seconds: float) -> None:
        with site:
            await asyncio.sleep(seconds)

    async def through_a_stack(seconds: float) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(site)
            await asyncio.sleep(seconds)

    async def main() -> None:
        await asyncio.gather(*(request(seconds) for seconds in (0.3, 0.1, 0.2)))
        await through_a_stack(0.05)

    asyncio.run(main())
    found = [ms for _, ms, _ in spans(segment)]
    for ms, slept in zip(found, (100, 200, 300, 50), strict=True):
        assert slept <= ms < slept + 90


def test_greenlets_that_interleave_keep_their_own_time(segment: Segment) -> None:
    """One thread, one site, stacks that are swapped under it: `with`, begin and end, and a nested region each."""
    site = recorder.site("green")

    def work(number: int) -> None:
        with site:
            hub.switch()
            with recorder.annotate("inner"):
                hub.switch()
            region = recorder.begin("region")
            hub.switch()
            region.end()

    hub = greenlet.getcurrent()
    greens = [greenlet.greenlet(work) for _ in range(3)]
    for green in greens:
        green.switch(0)
    assert [region.depth for region in segment.open_now()] == [0, 1, 2]
    time.sleep(0.05)
    for green in greens[1:]:
        green.switch()  # into its inner region
    for green in greens * 3:
        if not green.dead:
            green.switch()
    assert all(green.dead for green in greens)
    found = spans(segment)
    assert sorted(name for name, *_ in found) == ["green"] * 3 + ["inner"] * 3 + ["region"] * 3
    assert [name for name, ms, _ in found if ms >= 50] == ["green"] * 3
    assert segment.open_now() == []
    assert segment.state().abandoned == 0


def test_generators_begin_here_and_end_there(segment: Segment) -> None:
    site = recorder.site("produce")

    def produce() -> Iterator[int]:
        region = site.begin()
        try:
            yield 1
        finally:
            region.end()
            region.end()  # once more does nothing

    first, second = produce(), produce()
    next(first)
    time.sleep(0.05)
    next(second)
    first.close()
    thread = threading.Thread(target=second.close)  # ends on another thread
    thread.start()
    thread.join()
    assert segment.open_now() == []
    found = spans(segment)
    assert [name for name, *_ in found] == ["produce", "produce"]
    assert found[0][1] >= 50 > found[1][1]
    region = recorder.begin("dropped")
    assert len(segment.open_now()) == 1
    del region
    gc.collect()
    assert segment.open_now() == []
    assert (names(segment), segment.state().abandoned) == ([], 1)


def test_a_region_outlives_the_thread_that_began_it(segment: Segment) -> None:
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(recorder.begin("orphan")))
    thread.start()
    thread.join()
    recorder.end(made[0])
    recorder.end(made[0])
    assert names(segment) == ["orphan"]
    assert segment.open_now() == []


def test_moments_have_no_length(segment: Segment) -> None:
    recorder.instant("restart")
    recorder.site("reload").instant()
    assert [(name, ms) for name, ms, _ in spans(segment)] == [("restart", 0), ("reload", 0)]


def site_name(shift: int) -> str:
    return f"io {shift}"


def test_one_in_two_to_the_k_is_kept_with_its_weight(segment: Segment) -> None:
    site = recorder.site("often", sample=3)
    for _ in range(80):
        with site:
            assert len(segment.open_now()) == 1  # what hangs is seen, kept or not
    for _ in range(16):
        site.instant()
    got = spans(segment)
    assert [(name, weight) for name, _, weight in got] == [("often", 8)] * 12


def test_a_sampled_site_that_nests_ends_its_own(segment: Segment) -> None:
    site = recorder.site("deep", sample=1)
    lasted: list[float] = []
    while len(lasted) < 8 or not min(lasted) < 10 <= max(lasted):  # one of the two is kept, now this, now that
        with site:
            time.sleep(0.01)
            with site:
                pass
        ((_, ms, weight),) = spans(segment)
        assert weight == 2
        lasted.append(ms)
        assert len(lasted) < 64


def test_of_passes_that_take_turns_all_sides_are_kept_alike(segment: Segment) -> None:
    """Every 2^k-th pass of read, write, read, write would be a read."""
    for shift in (1, 2, 3):
        site, side = recorder.site(site_name(shift), sample=shift), [recorder.site(name) for name in ("read", "write")]
        for number in range(8000):
            with site, side[number % 2]:
                pass
        got, said = segment.drain(), segment.names()
        inner = [said[n] for n in got.name]
        kept = [inner[row - 1] for row, name in enumerate(inner) if name == site_name(shift)]
        expected = 8000 >> shift
        assert len(kept) == expected
        # One of each block at a uniform place: the number of reads is binomial, here within five deviations.
        assert abs(kept.count("read") - expected / 2) <= 5 * (expected / 4) ** 0.5


def test_what_the_governor_thins_is_told_with_its_weight(segment: Segment) -> None:
    site, own, wait = recorder.site("thin hot"), recorder.site("thin own", sample=4), recorder.site("data_wait")

    @recorder.annotate("thin decorated")
    def decorated() -> None:
        pass

    def passes(count: int) -> dict[str, tuple[int, int]]:
        """Records and the sum of their weights, by name."""
        for number in range(count):
            with site, own, wait, recorder.annotate("thin named", n=number), recorder.step(number):
                site.instant()
            recorder.end(recorder.begin(site))
            decorated()
        found: dict[str, tuple[int, int]] = {}
        for name, _, weight in spans(segment):
            records, total = found.get(name, (0, 0))
            found[name] = records + 1, total + weight
        return found

    def others(found: dict[str, tuple[int, int]], **shifts: int) -> None:
        """Annotations. Where other tests of this process have filled the table of names they are drawn together."""
        for name, shift in shifts.items():
            count, total = found.pop(f"thin {name}")
            assert total == count << shift
            assert total == pytest.approx(128, abs=60 if shift else 0)

    recorder.set_thinning(0, {"thin hot": 5, "thin own": 1, "thin decorated": 3, "data_wait": 4})
    found = passes(128)
    others(found, named=0, decorated=3)
    assert found == {"thin hot": (12, 384), "thin own": (8, 128), "data_wait": (128, 128), "step": (128, 128)}
    recorder.set_thinning(2, {"thin hot": 0})
    found = passes(128)
    others(found, named=2, decorated=2)
    assert found == {"thin hot": (384, 384), "thin own": (8, 128), "data_wait": (128, 128), "step": (128, 128)}
    # A change inside a region: what was decided at its begin holds, and so does its weight.
    begun = [recorder.begin(site) for _ in range(8)]
    recorder.set_thinning(0, {"thin hot": 3})
    with recorder.annotate("thin named", x=1):
        recorder.set_thinning(3, {})
        for region in begun:
            recorder.end(region)
    assert [weight for _, _, weight in spans(segment)] == [1] * 9
    recorder.set_thinning(99, {"thin hot": 99, "thin own": -1})  # nonsense is left out, or bounded
    recorder.set_thinning(0, {})
    assert passes(4)["thin hot"] == (12, 12)
    record_ps, pass_ps = recorder.region_cost()
    assert 1_000 < pass_ps < record_ps < 10_000_000
    # Names beyond those that are kept for their next use (8 192) are thinned too.
    recorder.set_thinning(3, {})
    for number in range(9000):
        with recorder.annotate(f"from data {number}", n=number):
            pass
    last = [weight for _, _, weight in spans(segment)]
    assert sum(last) == pytest.approx(9000, abs=9000 * 0.2)  # the first of these each draw for themselves
    assert set(last) == {8}


def test_levels_and_categories_switch_sites_while_they_are_open(segment: Segment) -> None:
    user, verbose = recorder.site("user"), recorder.site("verbose", level=3)
    io = recorder.site("io", category="io")
    for site in (user, verbose, io):
        with site:
            pass
    assert names(segment) == ["user", "io"]
    recorder.set_level(3, ["io"])
    for site in (user, verbose, io):
        with site:
            pass
    assert names(segment) == ["user", "verbose"]
    with verbose:
        recorder.set_level(1, [])  # begun: it ends
    recorder.set_level(1, ["io"])
    with io:
        recorder.set_level(1, [])  # not begun: it does not end
    assert names(segment) == ["verbose"]
    assert segment.open_now() == []


def test_recording_that_stops_leaves_no_open_region_behind(segment: Segment) -> None:
    site = recorder.site("outer")
    with site, recorder.annotate("with arguments", a=1):
        recorder.record(False)
        assert segment.open_now() == []
        with site:
            pass
        recorder.record(True)
    with site:
        assert [region.depth for region in segment.open_now()] == [0]
    assert (names(segment), segment.state().abandoned) == (["outer"], 2)


def test_more_sites_than_types_of_their_own(segment: Segment) -> None:
    for number in range(4200):
        with recorder.site(f"s{number}"):
            pass
    got = names(segment)
    assert got == [f"s{number}" for number in range(4200)]


def test_names_of_data_take_no_site_each(segment: Segment) -> None:
    kinds = {type(recorder.annotate(f"file {number}")) for number in range(10)}
    assert kinds == {recorder.Annotation}
    assert isinstance(recorder.annotate("literal"), recorder.Site)


def test_a_forked_child_passes_through_its_sites_and_its_open_regions(segment: Segment) -> None:
    site = recorder.site("parent")
    region = site.begin()
    with site:
        child = os.fork()
        if child == 0:
            with site:
                pass
            region.end()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    region.end()
    assert names(segment) == ["parent", "parent"]


def test_interpreter_exit_with_sites_and_regions_open(tmp_path: Path) -> None:
    code = """
        import sys
        from fleetscope.native import _recorder as r
        r.on_first_use(None); r.open(sys.argv[1]); r.record(True)
        site = r.site("x"); site.__enter__(); kept = site.begin(); r.begin("y")
        class Late:
            def __del__(self): kept.end(); site.__exit__(None, None, None)
        late = Late()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], timeout=60, check=False)
    assert done.returncode == 0
