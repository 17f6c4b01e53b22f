"""Who made what, and who went on with it: links of regions, from Python and C."""

import asyncio
import os
import subprocess
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetscope.native import _recorder as recorder
from fleetscope.native import include_dir
from fleetscope.native.recorder import CONSUMER, PRODUCER, Segment

from .test_public_header import CC

pytestmark = pytest.mark.unit

Link = tuple[str, str, int, int]


def links(segment: Segment, **drain: int) -> list[Link]:
    """(region, "p" or "c", context type, context id) in the order of the ring."""
    got, names = segment.drain(**drain), segment.names()
    letter = {PRODUCER: "p", CONSUMER: "c"}
    return [
        (names[got.name[row]], letter[kind], context, number)
        for row, kind, context, number in zip(
            got.link_row.tolist(), got.link_kind.tolist(), got.link_type.tolist(), got.link_id.tolist(), strict=True
        )
    ]


def test_every_way_to_give_a_link(segment: Segment) -> None:
    site = recorder.site("site", sample=4)
    with recorder.annotate("annotate", producer=1, consumer=(16, 2), shard=3):
        pass
    with recorder.annotate("many", consumer=[3, (5, 4), 5]):
        pass
    with recorder.annotate("metadata", _pt=10, _p=6, _ct=2, _c=7):
        pass
    with recorder.step(9, consumer=8):
        pass
    for _ in range(3):
        with site(producer=9):  # a pass with links is no sample
            pass
    with site(consumer=10), recorder.site("inner"):
        recorder.link(producer=11)
    region = site.begin(consumer=12)
    region.link(producer=13)
    region.end()
    recorder.end(recorder.begin("begin", producer=14))
    recorder.instant("moment", producer=15)
    site.instant(consumer=16)
    recorder.link(consumer=17)  # in no region: a moment of its own

    @recorder.annotate("decorated")
    def work() -> None:
        recorder.link(consumer=18)
        recorder.link(producer=19)

    work()
    assert links(segment) == [
        ("annotate", "p", 0, 1), ("annotate", "c", 16, 2),
        ("many", "c", 0, 3), ("many", "c", 5, 4), ("many", "c", 0, 5),
        ("metadata", "p", 10, 6), ("metadata", "c", 2, 7),
        ("step", "c", 0, 8),
        ("site", "p", 0, 9), ("site", "p", 0, 9), ("site", "p", 0, 9),
        ("inner", "p", 0, 11), ("site", "c", 0, 10),
        ("site", "c", 0, 12), ("site", "p", 0, 13),
        ("begin", "p", 0, 14), ("moment", "p", 0, 15), ("site", "c", 0, 16), ("link", "c", 0, 17),
        ("decorated", "c", 0, 18), ("decorated", "p", 0, 19),
    ]  # fmt: skip


def test_arguments_stay_beside_links_and_in_a_new_segment(segment: Segment, tmp_path: Path) -> None:
    annotation = recorder.annotate("load", producer=[1, 2], shard=7, note="x")
    recorder.close(True)
    again = Segment(recorder.open(str(tmp_path)))
    recorder.record(True)
    with annotation:
        pass
    got, names = again.drain(), again.names()
    assert [names[key] for key in got.arg_key] == ["shard", "note"]
    assert (got.arg_value[0], names[got.arg_value[1]]) == (7, "x")
    assert got.link_id.tolist() == [1, 2]


@pytest.mark.parametrize(
    "id_", [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1, (1 << 64) + 5, -(1 << 80), np.uint64(3)]
)
def test_an_id_is_64_bits_whatever_it_was(segment: Segment, id_: Any) -> None:
    recorder.instant("moment", producer=id_)
    low = int(id_) % (1 << 64)
    assert links(segment) == [("moment", "p", 0, low - (1 << 64) if low >= 1 << 63 else low)]


class Hostile:
    def __index__(self) -> int:
        raise AssertionError("an array of a device would be waited for")


@pytest.mark.parametrize(
    "word", [None, True, 1.5, "7", (), (1,), (1, 2, 3), (-1, 5), (1 << 24, 5), ("x", 5), {1}, Hostile(), (0, Hostile())]
)
def test_what_is_no_id_is_no_link_and_no_error(segment: Segment, word: Any) -> None:
    with recorder.annotate("a", producer=word, _p=word, _pt=3), recorder.step(1, consumer=word):
        recorder.link(consumer=word)
        recorder.begin("b", producer=word).end()
    with recorder.annotate("c", consumer=[word, 5, word]):
        pass
    with recorder.annotate("d", _pt=5), recorder.annotate("e", _pt="x", _p=5):
        pass
    assert links(segment) == [("c", "c", 0, 5)]


def test_more_links_than_a_region_holds_are_moments_of_their_own(segment: Segment) -> None:
    with recorder.site("batch"):
        for number in range(100):
            recorder.link(consumer=number)
    with recorder.annotate("cut", consumer=list(range(1000))):
        pass
    found = links(segment)
    assert [link[3] for link in found if link[0] == "batch"] == list(range(64))
    assert [link[3] for link in found if link[0] == "link"] == list(range(64, 100))
    assert [link[3] for link in found if link[0] == "cut"] == list(range(64))
    with recorder.site("fresh"):
        recorder.link(consumer=1)
    assert links(segment) == [("fresh", "c", 0, 1)]


def test_a_region_of_begin_keeps_as_many(segment: Segment) -> None:
    region = recorder.begin("batch", consumer=list(range(60)))
    for number in range(60, 70):
        region.link(producer=number)
    region.end()
    region = recorder.begin("batch")
    for number in range(70, 140):
        region.link(consumer=number)
    region.end()
    found = links(segment)
    assert sorted(link[3] for link in found) == list(range(140))
    assert {link[0] for link in found} == {"batch"}


def test_a_region_given_up_takes_its_links_along(segment: Segment) -> None:
    for _ in range(40):
        region = recorder.begin("dropped")
        recorder.link(producer=1)
        recorder.link(producer=1)
        del region
    with recorder.site("kept"):
        recorder.link(producer=2)
    assert links(segment) == [("kept", "p", 0, 2)]


def test_a_region_that_ends_elsewhere_keeps_its_links(segment: Segment) -> None:
    region = recorder.begin("request", consumer=1)
    recorder.link(producer=2)
    thread = threading.Thread(target=lambda: (region.link(producer=3), region.end()))
    thread.start()
    thread.join()
    assert sorted(links(segment)) == [("request", "c", 0, 1), ("request", "p", 0, 2), ("request", "p", 0, 3)]


def test_tasks_link_the_region_of_their_own_frame(segment: Segment) -> None:
    site = recorder.site("request")

    async def request(number: int) -> None:
        with site:
            await asyncio.sleep(0.02)
            recorder.link(consumer=number)
            await asyncio.sleep(0.02 * number)

    async def main() -> None:
        await asyncio.gather(*map(request, (3, 1, 2)))

    asyncio.run(main())
    got = segment.drain()
    by_id = dict(zip(got.link_id.tolist(), got.dur[got.link_row].tolist(), strict=True))
    assert by_id[1] < by_id[2] < by_id[3]


def test_a_pass_that_leaves_no_record_has_its_links_beside_it(segment: Segment) -> None:
    site = recorder.site("seldom", sample=4)
    for number in range(16):
        with site:
            recorder.link(consumer=number)
    regions = [site.begin() for _ in range(16)]
    other = recorder.begin("other")  # the newest of the thread, of no concern to them
    for number, region in enumerate(regions, 16):
        region.link(consumer=number)
        region.end()
    other.end()
    found = links(segment)
    assert sorted(link[3] for link in found) == [*range(32)]
    # One of each sixteen passes is kept, whichever it is.
    assert sorted(link[0] for link in found) == ["link"] * 30 + ["seldom"] * 2


def test_new_ids_never_meet_those_of_other_processes(segment: Segment) -> None:
    mine = {recorder.new_flow() for _ in range(1000)}
    ends = []
    for _ in range(2):
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, " ".join(str(recorder.new_flow()) for _ in range(1000)).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            ends.append({int(text) for text in pipe.read().split()})
        os.wait()
    assert len(mine | ends[0] | ends[1]) == 3000
    assert all(0 < number < 1 << 63 for number in mine | ends[0] | ends[1])


def test_a_drain_cuts_no_event_from_its_links(segment: Segment) -> None:
    for number in range(50):
        with recorder.annotate("batch", consumer=list(range(number, number + 60))):
            pass
    found: list[int] = []
    for _ in range(200):
        got = segment.drain(max_records=1)
        assert np.bincount(got.link_row, minlength=len(got)).tolist() == [60] * len(got)
        found += got.link_id.tolist()
        if not got.more:
            break
    assert found == [number for first in range(50) for number in range(first, first + 60)]


def test_links_from_c(segment: Segment, tmp_path: Path) -> None:
    (tmp_path / "c.c").write_text(
        textwrap.dedent("""
        #include <fleetscope/recorder.h>
        uint64_t work(uint64_t got) {
          uint64_t made = fleetscope_new_flow();
          FLEETSCOPE_SCOPE("native");
          FLEETSCOPE_CONSUMER(11, got);
          { FLEETSCOPE_SCOPE_AS(inner, "inner"); FLEETSCOPE_FLOW(inner, 5); FLEETSCOPE_PRODUCER(0, made); }
          FLEETSCOPE_PRODUCER(1u << 24, 1);
          return made;
        }
        void alone(void) { FLEETSCOPE_PRODUCER(0, 9); }
        """)
    )
    out = tmp_path / "libc.so"
    words = [CC, "-std=c11", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-I", include_dir()]
    subprocess.run([*words, str(tmp_path / "c.c"), "-o", str(out)], check=True)
    import ctypes

    library = ctypes.CDLL(str(out))
    library.work.restype, library.work.argtypes = ctypes.c_uint64, [ctypes.c_uint64]
    made = library.work((1 << 64) - 1)
    library.alone()
    with recorder.site("python"):  # ctypes lets go of the GIL
        library.alone()
    assert 0 < made < 1 << 63
    assert links(segment) == [
        ("inner", "p", 0, made),
        ("native", "c", 11, -1),
        ("link", "p", 0, 9),
        ("python", "p", 0, 9),
    ]
