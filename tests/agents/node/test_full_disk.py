"""A disk that is full while huge windows arrive: refused or counted, and nothing else is held up."""

import errno
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetscope.agents.spool.store import DiskSegment

from .conftest import Child, MakeAgent, batches, eventually

SEND = """
def window(number, size, path=""):
    import time
    now = protocol.Clocks(time.clock_gettime_ns(4), time.time_ns(), time.clock_gettime_ns(4))
    body = open(path, "rb").read() if path else b"x" * size
    message = protocol.Window(number, 200_000_000, now, now, 1, 0, -1, 0, 1000, 1000, False)
    try:
        send(message, body)
        say(sent=len(body))
    except OSError as error:
        say(error=type(error).__name__)
"""


@pytest.mark.fault
def test_a_full_disk_while_a_100_mb_xspace_arrives(
    make_agent: MakeAgent,
    spawn: Callable[..., Child],
    monkeypatch: pytest.MonkeyPatch,
    samples: Path,
    tmp_path: Path,
) -> None:
    full = {"is": False}
    append = DiskSegment.append

    def limited(segment: DiskSegment, data: bytes) -> None:
        if full["is"]:
            raise OSError(errno.ENOSPC, "no space left")
        append(segment, data)

    monkeypatch.setattr(DiskSegment, "append", limited)
    agent = make_agent(spool_bytes=256 << 20)
    big, bigger = spawn(0), spawn(1)
    for child in (big, bigger):
        child.do(f"exec({SEND!r})")
        child.do("connect()")
    capture = max((samples / "xplane").glob("*tpu*.pb"), key=lambda path: path.stat().st_size).read_bytes()
    # XSpace bytes one after the other are one XSpace: planes of all.
    (tmp_path / "big.pb").write_bytes(capture * max(1, (30 << 20) // len(capture)))
    full["is"] = True
    memory_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert bigger.do("window(1, 100 << 20)")[0] == {"error": "BrokenPipeError"} or agent.server.counts["garbage"] == 1
    eventually(lambda: agent.server.counts["garbage"] == 1)
    big.do(f"window(1, 0, {str(tmp_path / 'big.pb')!r})")
    for _ in range(3):
        big.do("exec('for n in range(100):\\n with r.annotate(\"work\"): pass')")
        agent.tick()
    # Idle it is before the window has arrived, too.
    eventually(lambda: sum(process.windows["decoded"] for process in agent.registry) == 1 and agent.decoder.idle())
    assert agent.failed_rounds == 0
    # Nothing of the 100 MB was kept, and of the 30 MB what decoding takes.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_kb < 900_000
    full["is"] = False
    big.do("connect()")  # the agent is there as before
    big.do("exec('for n in range(10):\\n with r.annotate(\"later\"): pass')")
    agent.tick()
    for child in (big, bigger):
        child.close()
    eventually(lambda: (agent.tick(), agent.registry.finished == 2)[1])
    eventually(lambda: agent.spool.stats().events > 0 and len(batches(tmp_path / "s", big.pid)) > 0)
    agent.close()
    mine = batches(tmp_path / "s", big.pid)
    last = mine[-1]
    rows = sum(batch.rows for batch in mine)
    lost = sum(item.events for item in last.dropped)
    assert last.produced == rows + lost
    assert lost > 10_000  # the spans of the window, and what was recorded meanwhile
