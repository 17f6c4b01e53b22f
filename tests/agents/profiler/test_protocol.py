"""Frames of the agent socket: whatever arrives in whatever pieces, and what is no frame."""

import json
import struct
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetscope.agents.profiler import protocol
from fleetscope.agents.profiler.protocol import (
    Clocks,
    Config,
    Cost,
    End,
    Followed,
    FrameError,
    Hello,
    Program,
    Ran,
    Reader,
    Schedule,
    Stretch,
    Window,
)

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(max_size=40)


def _message(kind: type) -> st.SearchStrategy[Any]:
    """Of every field: left to itself Hypothesis fills those with a default too, with numbers that no frame carries."""
    return st.builds(kind, **{name: OF_TYPE[hint] for name, hint in get_type_hints(kind).items()})


OF_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int: INT64, str: TEXT, bool: st.booleans(), float: st.floats(0, 1e9),
    tuple[str, ...]: st.lists(TEXT, max_size=3).map(tuple),
    dict[str, str]: st.dictionaries(TEXT, TEXT, max_size=3),
    dict[str, int]: st.dictionaries(TEXT, INT64, max_size=3),
}  # fmt: skip
OF_TYPE[Clocks] = _message(Clocks)
OF_TYPE[Followed] = _message(Followed)
for row in (Stretch, Ran):
    OF_TYPE[tuple[row, ...]] = st.lists(_message(row), max_size=3).map(tuple)  # type: ignore[valid-type]
MESSAGES = st.one_of([_message(kind) for kind in (Hello, Config, Schedule, Window, Program, Cost, End)])


@pytest.mark.property
@given(frames=st.lists(st.tuples(MESSAGES, st.binary(max_size=100)), max_size=4), cut=st.integers(1, 50))
def test_what_is_sent_arrives_in_any_pieces(frames: list[tuple[protocol.Message, bytes]], cut: int) -> None:
    stream = b"".join(protocol.encode(message, body) + body for message, body in frames)
    reader = Reader()
    got = [frame for at in range(0, len(stream), cut) for frame in reader.feed(stream[at : at + cut])]
    assert got == frames


@pytest.mark.property
@given(data=st.binary(max_size=200))
def test_bytes_that_are_no_frame_are_a_frame_error_or_not_yet_whole(data: bytes) -> None:
    try:
        for message, _ in Reader(max_body_bytes=1 << 20).feed(data):
            assert message is None
    except FrameError:
        pass


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
)


@pytest.mark.property
@given(header=JSON)
def test_json_that_is_no_message(header: object) -> None:
    with pytest.raises(FrameError):
        protocol.decode(json.dumps(header).encode())


@pytest.mark.unit
def test_layout_of_a_frame() -> None:
    """As docs/format/agent-socket.md says it, by hand."""
    header = b'{"type":"end","at_ns":5,"steps":7}'
    assert protocol.encode(End(5, 7)) == struct.pack("<II", len(header), 0) + header
    stream = struct.pack("<II", 34, 3) + header + b"abc"
    assert list(Reader().feed(stream)) == [(End(5, 7), b"abc")]


@pytest.mark.unit
def test_newer_peers_are_understood_as_far_as_known() -> None:
    assert protocol.decode(b'{"type":"end","at_ns":5,"steps":7,"mood":"good"}') == End(5, 7)
    assert protocol.decode(b'{"type":"farewell"}') is None


@pytest.mark.unit
@pytest.mark.parametrize(
    "header",
    [
        b'{"type":"end","at_ns":"5","steps":7}',
        b'{"type":"end","at_ns":true,"steps":7}',
        b'{"type":"end","at_ns":5}',
        b'{"type":"window","opened":[1,2]}',
        b'{"type":"config","allow":7}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_headers_of_the_wrong_shape(header: bytes) -> None:
    with pytest.raises(FrameError):
        protocol.decode(header)


@pytest.mark.unit
def test_lengths_beyond_the_limits_are_refused_before_they_are_awaited() -> None:
    for prefix in (struct.pack("<II", 1 << 30, 0), struct.pack("<II", 10, 1 << 30)):
        with pytest.raises(FrameError, match="too large"):
            list(Reader().feed(prefix))
    with pytest.raises(FrameError, match="too large"):
        protocol.encode(Hello(1, 1, 1, "", "", "", 0, 1, "x" * (300 << 10), "", "", "", "", "", 1))


PLACES = (
    "FLEETSCOPE_AGENT_SOCKET",
    "FLEETSCOPE_AGENT__SOCKET",
    "FLEETSCOPE_STATE_DIR",
    "FLEETSCOPE_HOME",
    "XDG_STATE_HOME",
)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"FLEETSCOPE_AGENT_SOCKET": "/a/b"}, "/a/b"),
        ({"FLEETSCOPE_AGENT__SOCKET": "/c"}, "/c"),
        ({"FLEETSCOPE_STATE_DIR": "/s"}, "/s/agent.sock"),
        ({"FLEETSCOPE_HOME": "/h"}, "/h/agent.sock"),
        ({"XDG_STATE_HOME": "/x"}, "/x/fleetscope/agent.sock"),
        ({"HOME": "/me"}, "/me/.local/state/fleetscope/agent.sock"),
    ],
)
def test_where_the_socket_is(variables: dict[str, str], wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PLACES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert protocol.default_socket() == wanted


@pytest.mark.unit
def test_the_agent_looks_in_the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    from fleetscope.schema import config

    for name in (*PLACES, "FLEETSCOPE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    assert str(config.load().agent_socket) == protocol.default_socket()
    monkeypatch.setenv("FLEETSCOPE_STATE_DIR", "/s")
    assert str(config.load().agent_socket) == protocol.default_socket()
