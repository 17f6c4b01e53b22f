"""What roles listen on with nothing configured, by the kernel's tables, in a network namespace of their own."""

import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

_BOTH = """
import ctypes, os, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
def with_us():
    ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM
command = [sys.executable, "-m", "fleetscope.cli.main"]
roles = [subprocess.Popen([*command, role], preexec_fn=with_us) for role in ("up", "agent")]
print(*(role.pid for role in roles), flush=True)
sys.stdin.read()
for role in roles:
    role.terminate()
sys.exit(max(abs(role.wait()) for role in roles))
"""
LISTENING, CONNECTED = "0A", "01"


def _address(word: str) -> str:
    """Of /proc/net/tcp and tcp6: little-endian words of hex, a colon, the port."""
    host, _, port = word.partition(":")
    raw = b"".join(struct.pack("<I", int(host[at : at + 8], 16)) for at in range(0, len(host), 8))
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return f"{socket.inet_ntop(family, raw)}:{int(port, 16)}"


def _rows(pid: int, table: str) -> list[list[str]]:
    return [line.split() for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]]


def _listening(pid: int) -> set[str]:
    tcp = [_address(row[1]) for table in ("tcp", "tcp6") for row in _rows(pid, table) if row[3] == LISTENING]
    # A connected one takes datagrams of one address alone: the agent's question to chronyd, on loopback.
    others = [row for table in ("udp", "udp6", "raw", "raw6") for row in _rows(pid, table) if row[3] != CONNECTED]
    udp = [_address(row[1]) for row in others]
    return {*tcp, *udp}


def _unix(pid: int) -> set[str]:
    """Paths (or @names, which anybody on the machine may connect to) that are listened on. The table is of the network
    namespace."""
    return {row[7] for row in _rows(pid, "unix") if len(row) > 7 and int(row[3], 16) & 0x10000}


@pytest.mark.e2e
def test_with_nothing_configured_every_role_listens_on_loopback_or_a_socket_of_its_own(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not shutil.which("unshare") or not shutil.which("ip") or subprocess.run(["unshare", "-n", "true"]).returncode:
        if os.environ.get("FLEETSCOPE_REQUIRE_ALL"):
            pytest.fail("unshare -n or ip is missing")
        pytest.skip("unshare -n or ip is missing")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("FLEETSCOPE_")}
    variables |= {"FLEETSCOPE_HOME": str(tmp_path / "s")}
    agent_socket = tmp_path / "s" / "agent.sock"
    with (tmp_path / "said").open("wb") as said:
        roles = subprocess.Popen(
            ["unshare", "-n", sys.executable, "-c", _BOTH],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
        )
        request.addfinalizer(roles.kill)  # and its children with it
        assert roles.stdin is not None
        assert roles.stdout is not None
        up, agent = map(int, roles.stdout.readline().split())
        seen: set[str] = set()
        paths: set[str] = set()
        deadline = time.monotonic() + 120
        # Until both pages and the worker are up: its first epoch is in the lake by then.
        while time.monotonic() < deadline and roles.poll() is None:
            seen |= _listening(up)
            paths |= _unix(agent)
            if {"127.0.0.1:9464", "127.0.0.1:9465"} <= seen and list((tmp_path / "s" / "lake").rglob("*.json")):
                break
            time.sleep(0.2)
        seen |= _listening(up)
        mode = stat.S_IMODE(agent_socket.stat().st_mode)
        text = (tmp_path / "said").read_text()
        roles.stdin.close()
        roles.stdout.close()
        assert roles.wait(60) == 0, text
    assert {"127.0.0.1:9464", "127.0.0.1:9465"} <= seen, text
    outside = {address for address in seen if not address.startswith(("127.", "::1:", "::ffff:127."))}
    assert outside == set()
    assert seen == {"127.0.0.1:9464", "127.0.0.1:9465"}, "SECURITY.md lists what listens"
    assert paths == {str(agent_socket)}
    assert mode == 0o600
