"""Who is known: hosts, their addresses and groups. Replaced whole, so any thread may look."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from fleetscope.schema.errors import ConfigInvalid

Address = tuple[str, int]
"""(IP address as text, port); IPv6 without scope, IPv4 never in its IPv6 form."""
MOST = 1 << 16


@dataclass(frozen=True, slots=True)
class Peer:
    """Another host. `id`: identity.host_id of its name in the cluster; `group`: rack or slice, "" if not told."""

    id: int
    host: str
    address: Address
    group: str = ""


def plain(ip: str) -> str:
    """An address in the one way it is compared by; ValueError for a name or nonsense."""
    parsed = ipaddress.ip_address(ip.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def parse_address(text: str) -> Address:
    """ "10.0.0.5:9466" or "[fd00::5]:9466"; ConfigInvalid for anything else."""
    host, colon, port = text.rpartition(":")
    try:
        if not colon or host.startswith("[") != host.endswith("]"):
            raise ValueError(text)
        number = int(port)
        if not 0 <= number < 1 << 16:
            raise ValueError(text)
        return plain(host.strip("[]")), number
    except ValueError:
        raise ConfigInvalid(f"{text!r} is no address like 10.0.0.5:9466 or [fd00::5]:9466") from None


class Roster:
    """An address that two hosts claim is nobody's: who answers there cannot be told."""

    def __init__(self, peers: Iterable[Peer] = ()) -> None:
        self.by_id: dict[int, Peer] = {}
        by_address: dict[Address, Peer | None] = {}
        for peer in peers:
            if peer.id in self.by_id or len(self.by_id) >= MOST:
                continue
            self.by_id[peer.id] = peer
            by_address[peer.address] = None if peer.address in by_address else peer
        self.by_address = {address: peer for address, peer in by_address.items() if peer is not None}
        self.by_id = {peer.id: peer for peer in self.by_address.values()}
