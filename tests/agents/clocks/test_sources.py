"""What a host knows of who disciplines its clocks. Bytes of other programs are written down here by their own
specifications: chrony's candm.h, linux/ptp_clock.h, linux/vmclock-abi.h."""

import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleetscope.agents.clocks import ClockSources, Readers, sources
from fleetscope.agents.clocks import ptp as ptp_module
from fleetscope.agents.clocks.chrony import Chrony, Tracking, as_float, parse, request
from fleetscope.agents.clocks.kernel import KernelClock, clock_source, read_kernel_clock, suspended_ns
from fleetscope.agents.clocks.ptp import EXTENDED, PRECISE, Found, HardwareClock, hardware_clocks
from fleetscope.agents.clocks.vmclock import VmClock, VmClockPage
from fleetscope.agents.clocks.vmclock import parse as parse_vmclock
from fleetscope.native import recorder

SECOND = 1_000_000_000


# ---- the kernel


@pytest.mark.unit
def test_the_kernel_says_what_it_knows_of_its_clock() -> None:
    found = read_kernel_clock()
    assert 0 <= found.state <= 5
    assert found.max_error_ns >= 0
    # The kernel's TAI is what its offset says.
    before, tai, _ = recorder.read_clock(time.CLOCK_TAI)
    _, wall, after = recorder.read_clock(time.CLOCK_REALTIME)
    assert abs(tai - wall - found.tai_s * SECOND) <= SECOND // 2 + after - before
    assert clock_source()
    assert suspended_ns() > -1_000_000


@pytest.mark.unit
def test_a_bracket_of_each_clock_encloses_it_and_an_unknown_clock_is_an_error() -> None:
    for clock in (time.CLOCK_REALTIME, time.CLOCK_TAI, time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC):
        low = time.clock_gettime_ns(clock)
        before, value, after = recorder.read_clock(clock)
        assert low <= value <= time.clock_gettime_ns(clock)
        assert before <= after <= time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    with pytest.raises(OSError, match="Invalid argument"):
        recorder.read_clock(99)


# ---- chrony


def chrony_float(exponent: int, coefficient: int) -> int:
    word = (exponent & 0x7F) << 25 | coefficient & 0x1FFFFFF
    return struct.unpack("!i", struct.pack("!I", word))[0]  # type: ignore[no-any-return]


def tracking_reply(sequence: int, *, status: int = 0, leap: int = 0, reply: int = 5) -> bytes:
    """Offset -3 * 2^-22 s, root delay 2^-11 s, dispersion 2^-13 s, from 10.0.0.7 of stratum 2."""
    head = struct.pack("!BBBBHHHHHHIII", 6, 2, 0, 0, 33, reply, status, 0, 0, 0, sequence, 0, 0)
    floats = [0, chrony_float(-19, -(3 << 22)), 0, 0, 0, 0, chrony_float(-9, 1 << 23), chrony_float(-11, 1 << 23), 0]
    body = struct.pack("!I4s12xHHHHIII", 0x0A000007, bytes((10, 0, 0, 7)), 1, 0, 2, leap, 0, 1_800_000_000, 5)
    return head + body + struct.pack("!9i", *floats)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("exponent", "coefficient", "value"),
    [
        (0, 0, 0.0),
        (25, 1, 1.0),
        (0, 1 << 24 - 1, 0.25),
        (-64, 1, 2.0**-89),
        (63, -1, -(2.0**38)),
        (2, -(1 << 24), -2.0),
    ],
)
def test_chronys_floats(exponent: int, coefficient: int, value: float) -> None:
    assert as_float(chrony_float(exponent, coefficient)) == value


@pytest.mark.unit
def test_a_tracking_reply() -> None:
    found = parse(tracking_reply(77), 77)
    assert found == Tracking("10.0.0.7", 2, 0, round(-3 / 2**22 * 1e9), round(1e9 / 2**11), round(1e9 / 2**13))
    assert found.synchronized
    assert not parse(tracking_reply(77, leap=3), 77).synchronized
    assert len(request(1)) == len(tracking_reply(77)) == 104


@pytest.mark.fault
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "short"),
        (tracking_reply(78), "something else"),
        (tracking_reply(77, status=2), "status 2"),
        (tracking_reply(77, reply=9), "status 0"),
        (tracking_reply(77)[:-1], "short"),
        (b"\x05" + tracking_reply(77)[1:], "something else"),
    ],
)
def test_what_is_no_answer_of_chronyd(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(data, 77)


@pytest.fixture
def chronyd() -> Iterator[tuple[int, dict[str, object]]]:
    """Answers requests as `behave` says, at a port of its own."""
    served = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    served.bind(("127.0.0.1", 0))
    behave: dict[str, object] = {"answer": tracking_reply}

    def serve() -> None:
        while True:
            data, source = served.recvfrom(4096)
            if not data:
                return
            answer: Callable[[int], bytes] | None = behave["answer"]  # type: ignore[assignment]
            if answer is not None:
                served.sendto(answer(struct.unpack_from("!I", data, 8)[0]), source)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield served.getsockname()[1], behave
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.sendto(b"", served.getsockname())
    thread.join(30)
    served.close()


def eventually(look: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.e2e
def test_chronyd_is_asked_without_waiting(chronyd: tuple[int, dict[str, object]], tmp_path: Path) -> None:
    port, _ = chronyd
    chrony = Chrony(port, tmp_path / "none.sock")
    assert chrony.look() is None
    found: list[Tracking] = []

    def look() -> bool:
        time.sleep(0.01)
        try:
            found.extend(filter(None, [chrony.look()]))
        except ValueError:  # nobody was so fast
            return False
        return bool(found)

    eventually(look)
    assert found[0].reference == "10.0.0.7"
    chrony.close()


@pytest.mark.fault
def test_a_host_without_chronyd(free_port: Callable[[], int], tmp_path: Path) -> None:
    chrony = Chrony(free_port(), tmp_path / "none.sock")
    assert chrony.look() is None

    def refused() -> bool:
        try:
            chrony.look()
        except (OSError, ValueError):
            return True
        return False

    eventually(refused)


# ---- PTP hardware clocks


class FakeCard:
    """A driver with the ways it is said to have; times in ns."""

    def __init__(self, *ways: int, name: str = "fake") -> None:
        self.ways = ways
        self.asked: list[int] = []

    def ioctl(self, descriptor: int, code: int, buffer: bytearray) -> int:
        self.asked.append(code)
        if code not in self.ways:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        if code == PRECISE:
            for at, ns in ((0, 37 * SECOND + 5), (16, 1), (32, 9 * SECOND)):
                struct.pack_into("@qII", buffer, at, ns // SECOND, ns % SECOND, 0)
            return 0
        count, clock = struct.unpack_from("@Ii", buffer)
        assert (count, clock) == (5, time.CLOCK_MONOTONIC_RAW)
        for sample in range(count):
            # The third is the tightest.
            width = 100 + abs(sample - 2) * 1000
            for place, ns in enumerate((sample * 10_000, 37 * SECOND + sample * 10_000, sample * 10_000 + width)):
                struct.pack_into("@qII", buffer, 16 + (sample * 3 + place) * 16, ns // SECOND, ns % SECOND, 0)
        return 0


@pytest.fixture
def device(tmp_path: Path) -> Path:
    path = tmp_path / "ptp0"
    path.write_bytes(b"")
    return path


@pytest.mark.unit
@pytest.mark.parametrize(
    ("ways", "found"),
    [
        ((PRECISE, EXTENDED), Found("ptp0", (9 * SECOND, 37 * SECOND + 5, 9 * SECOND), "precise")),
        ((EXTENDED,), Found("ptp0", (20_000, 37 * SECOND + 20_000, 20_100), "extended")),
        ((), Found("ptp0", (1, 2, 3), "posix")),
    ],
)
def test_a_network_cards_clock_is_read_by_the_best_way_there_is(
    device: Path, ways: tuple[int, ...], found: Found
) -> None:
    card = FakeCard(*ways)
    clock = HardwareClock(device, card.ioctl, lambda descriptor: (1, 2, 3))
    assert clock.read() == clock.read() == found
    assert len(card.asked) <= 3  # what failed once is not asked again
    clock.close()


@pytest.mark.fault
def test_a_card_that_is_gone_is_an_error_and_one_that_may_not_be_opened_is_named(device: Path, tmp_path: Path) -> None:
    def gone(descriptor: int) -> tuple[int, int, int]:
        raise OSError(errno.ENODEV, "No such device")

    clock = HardwareClock(device, FakeCard().ioctl, gone)
    with pytest.raises(OSError, match="No such device"):
        clock.read()
    clock.close()
    (tmp_path / "ptp1").symlink_to(tmp_path / "nowhere")
    clocks, refused = hardware_clocks(tmp_path)
    assert [clock.name for clock in clocks] == ["ptp0"]
    assert refused == {"ptp1": "No such file or directory"}
    for clock in clocks:
        clock.close()


@pytest.mark.unit
def test_a_posix_clock_of_a_file_that_is_none_is_an_error() -> None:
    with open(os.devnull) as file, pytest.raises(OSError, match=r"Invalid argument|not supported"):
        ptp_module._posix(file.fileno())


# ---- vmclock


def vmclock_page(*, sequence: int = 4, disruption: int = 9, generation: int = 0, magic: int = 0x4B4C4356) -> bytes:
    flags = 1 << 8 if generation else 0
    head = struct.pack("<IIHBBIQQ2xBBHBB", magic, 4096, 1, 1, 1, sequence, disruption, flags, 2, 0, 37, 0, 0)
    return (head + bytes(64) + struct.pack("<Q", generation)).ljust(4096, b"\0")


@pytest.mark.unit
def test_a_vmclock_page(tmp_path: Path) -> None:
    path = tmp_path / "vmclock0"
    path.write_bytes(vmclock_page(generation=3))
    page = VmClockPage(path)
    assert page.read() == VmClock(4, 9, 3)
    with path.open("r+b") as file:
        file.write(vmclock_page(sequence=5, disruption=10))
    assert page.read() is None  # odd: it is being written
    with path.open("r+b") as file:
        file.write(vmclock_page(sequence=6, disruption=10))
    assert page.read() == VmClock(6, 10, 0)
    page.close()


@pytest.mark.fault
def test_a_page_that_is_no_vmclock(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no vmclock"):
        parse_vmclock(vmclock_page(magic=1))
    with pytest.raises(OSError, match="No such file"):
        VmClockPage(tmp_path / "none")


# ---- all of them


def absent(why: str) -> Callable[[], object]:
    def read() -> object:
        raise OSError(errno.ENOENT, why)

    return read


@pytest.mark.unit
def test_who_disciplines_the_clock_and_how_well(
    chronyd: tuple[int, dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MISSING_S", 0.0)  # looks come faster here than answers may
    port, behave = chronyd
    kernel = KernelClock(0, 0x2001, 1_500_000, 20_000, 17_250, 37)
    looks = ClockSources(
        Readers(
            kernel=lambda: kernel, clock_source=lambda: "tsc", suspended_ns=lambda: 5,
            chrony=lambda: Chrony(port, tmp_path / "none"), hardware=lambda: ([], {}),
            vmclock=absent("none"),  # type: ignore[arg-type]
        )
    )  # fmt: skip
    assert looks.look().state().sync_source == "ntp"
    eventually(lambda: looks.look().tracking)
    state = looks.told().state()
    assert (state.clocksource, state.synchronized, state.max_error_ns, state.tai_s) == ("tsc", True, 1_500_000, 37)
    assert (state.sync_source, state.reference, state.root_delay_ns) == ("chrony", "10.0.0.7", round(1e9 / 2**11))
    assert (state.suspended_ns, state.frequency_ppb, state.vm_disruption) == (5, 17_250, 0)
    assert looks.missing == {"vmclock": "none", "ptp": "no /dev/ptp*"}
    behave["answer"] = lambda sequence: tracking_reply(sequence, leap=3)
    eventually(lambda: not looks.look().state().synchronized)
    looks.close()


@pytest.mark.fault
def test_what_is_missing_says_so_once_and_is_looked_for_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    nothing = Readers(
        kernel=absent("seccomp"), clock_source=absent("no sysfs"), chrony=absent("no chrony"),
        hardware=lambda: ([], {"ptp0": "Permission denied"}), vmclock=absent("no vm"),
    )  # type: ignore[arg-type]  # fmt: skip
    looks = ClockSources(nothing)
    for _ in range(5):
        told = looks.look()
    assert told.state().sync_source == ""
    assert not told.state().synchronized
    assert sorted(record.message for record in caplog.records) == [
        "no clock source adjtimex: seccomp",
        "no clock source chrony: no chrony",
        "no clock source clocksource: no sysfs",
        "no clock source ptp: ptp0: Permission denied",
        "no clock source vmclock: no vm",
    ]
    monkeypatch.setattr(sources, "MISSING_S", 0.0)
    looks = ClockSources(nothing)
    looks.look()
    nothing.clock_source = lambda: "hpet"
    assert looks.look().source == "hpet"
    assert "clocksource" not in looks.missing


@pytest.mark.fault
def test_chronyd_that_fails_is_not_asked_for_a_while_and_one_without_news_keeps_its_last_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    word, answers = Tracking("a", 1, 0, 2, 3, 4), []

    class Daemon:
        def look(self) -> Tracking | None:
            answers.append(1)
            if len(answers) == 3:
                raise OSError(errno.ECONNREFUSED, "Connection refused")
            return word if len(answers) in (1, 5) else None

    looks = ClockSources(
        Readers(chrony=Daemon, vmclock=absent("none"), hardware=lambda: ([], {}))  # type: ignore[arg-type]
    )
    assert [looks.look().tracking for _ in range(4)] == [word, word, None, None]
    assert len(answers) == 3
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 2 * sources.MISSING_S)
    # Without an answer it is still away; the next one ends that.
    assert looks.look().tracking is None
    assert looks.missing["chrony"] == "Connection refused"
    assert looks.look().tracking == word
    assert "chrony" not in looks.missing


@pytest.mark.fault
def test_a_card_that_hangs_holds_up_nobody_and_its_word_grows_old(
    device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, go = threading.Event(), threading.Event()

    def posix(descriptor: int) -> tuple[int, int, int]:
        hangs.set()
        go.wait(60)
        return 1, 2, 3

    card = HardwareClock(device, FakeCard().ioctl, posix)
    looks = ClockSources(
        Readers(chrony=absent("none"), vmclock=absent("none"), hardware=lambda: ([card], {}))  # type: ignore[arg-type]
    )
    monkeypatch.setattr(sources, "OLD_S", 600.0)
    looks.start()
    assert hangs.wait(60)
    begin = time.monotonic()
    told = looks.told()
    assert told.source == clock_source()  # what was read before it hung
    assert told.hardware == ()
    monkeypatch.setattr(sources, "OLD_S", 0.0)
    assert looks.told().source == ""
    assert time.monotonic() - begin < 30
    go.set()
    looks.stop()
