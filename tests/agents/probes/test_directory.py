"""Who is known: what hosts announce of themselves, keys, addresses."""

from pathlib import Path

import pytest

from fleetscope.agents.probes import Directory, KeyFile, Peer, Roster, parse_address, signed
from fleetscope.agents.probes import keys as keys_module
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.errors import ConfigInvalid
from fleetscope.schema.identity import host_id
from fleetscope.transport.log import Message

KEY, OTHER = bytes(range(32)), bytes(32)


def message(value: bytes, key: bytes = b"h1", tombstone: bool = False) -> Message:
    return Message("fleetscope.peers", 0, 0, key, value, (), 0, tombstone)


def said(host: str = "h1", address: str = "10.0.0.1:9466", at_ns: int = 5, key: bytes = KEY, **more: str) -> Message:
    told = wire.ProbeAddress(cluster="c", host=host, address=address, at_ns=at_ns)
    for name, value in more.items():
        setattr(told, name, value)
    return message(signed(told, key).SerializeToString(), host.encode())


@pytest.mark.unit
def test_what_hosts_announce_is_known_by_address_and_id() -> None:
    directory = Directory("c", lambda: (OTHER, KEY))
    assert directory.take(said(group="rack-1"))
    assert not directory.take(said(group="rack-1", at_ns=6))
    assert directory.take(said("h2", "[fd00::2]:9466"))
    roster = directory.roster([Peer(host_id("c", "h3"), "h3", ("10.0.0.3", 1))])
    assert sorted(peer.host for peer in roster.by_id.values()) == ["h1", "h2", "h3"]
    assert roster.by_address[("fd00::2", 9466)].host == "h2"
    assert roster.by_address[("10.0.0.1", 9466)].group == "rack-1"
    assert directory.take(message(b"", b"h1", tombstone=True))
    assert "h1" not in {peer.host for peer in directory.roster().by_id.values()}


@pytest.mark.fault
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (said(key=bytes(16)), "unauthenticated"),
        (message(b"\xff\xff\xff"), "malformed"),
        (
            message(wire.ProbeAddress(cluster="c", host="h1", address="10.0.0.1:9").SerializeToString()),
            "unauthenticated",
        ),
        (said(address="db.internal:80"), "malformed"),
        (said(address="10.0.0.1:0"), "malformed"),
        (said(address="10.0.0.1:70000"), "malformed"),
        (said(host=""), "malformed"),
        (said(group="g" * 300), "malformed"),
    ],
)
def test_what_cannot_be_believed_is_counted(bad: Message, why: str) -> None:
    directory = Directory("c", lambda: (KEY,))
    assert not directory.take(bad)
    assert directory.refused == {why: 1}
    assert not directory.roster().by_id


@pytest.mark.fault
def test_an_old_announcement_does_not_move_a_host_and_others_clusters_are_none_of_ours() -> None:
    directory = Directory("c", lambda: (KEY,))
    assert directory.take(said(at_ns=10))
    assert not directory.take(said(address="10.6.6.6:9466", at_ns=9))
    assert [peer.address[0] for peer in directory.roster().by_id.values()] == ["10.0.0.1"]
    assert not Directory("d", lambda: (KEY,)).take(said())


@pytest.mark.fault
def test_an_address_of_two_hosts_is_nobodys_and_one_machine_has_few() -> None:
    roster = Roster([Peer(1, "a", ("10.0.0.1", 5)), Peer(2, "b", ("10.0.0.1", 5)), Peer(3, "c", ("10.0.0.1", 6))])
    assert [peer.host for peer in roster.by_id.values()] == ["c"]
    directory = Directory("c", lambda: (KEY,))
    for port in range(100):
        directory.take(said(f"h{port}", f"10.0.0.9:{port + 1}"))
    assert len(directory.roster().by_id) == 16


@pytest.mark.unit
@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.5:9466", ("10.0.0.5", 9466)),
        ("[fd00::5]:9466", ("fd00::5", 9466)),
        ("[::ffff:10.0.0.5]:1", ("10.0.0.5", 1)),
        ("[FD00:0::5]:0", ("fd00::5", 0)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.unit
@pytest.mark.parametrize(
    "text", ["", "host:1", "10.0.0.5", "10.0.0.5:", "10.0.0.5:-1", "10.0.0.5:65536", "[::1:5", "::1]:5"]
)
def test_no_addresses(text: str) -> None:
    with pytest.raises(ConfigInvalid, match="no address"):
        parse_address(text)


@pytest.mark.unit
def test_keys_rotate_without_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module, "LOOK_S", 0.0)
    path = tmp_path / "key"
    path.write_text("# of the fleet\n" + KEY.hex() + "\n")
    file = KeyFile(path)
    assert file.keys == (KEY,)
    path.write_text(OTHER.hex() + "\n" + KEY.hex())
    file.look()
    assert file.keys == (OTHER, KEY)
    path.write_text("not hex")
    file.look()
    assert file.keys == (OTHER, KEY)


@pytest.mark.fault
@pytest.mark.parametrize("text", ["", "abcd", "xyz", "00" * 16 + "\n" + "11" * 16 + "\n" + "22" * 16, "00" * 65])
def test_a_key_file_that_is_none_is_an_error_without_the_key(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    with pytest.raises(ConfigInvalid) as error:
        KeyFile(path)
    assert "probes.key_file" in str(error.value)
    assert not text or text.splitlines()[0] not in str(error.value).replace(str(path), "")
    with pytest.raises(ConfigInvalid):
        KeyFile(tmp_path / "absent")
