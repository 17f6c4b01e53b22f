"""Probes between hosts: four times of each exchange, from which the coordinator has bounds on their clocks' offset."""

from fleetscope.agents.probes.directory import TOLD_EVERY_S, Directory, signed
from fleetscope.agents.probes.graph import peers
from fleetscope.agents.probes.keys import KeyFile
from fleetscope.agents.probes.packet import ALL_STAMPS
from fleetscope.agents.probes.port import ProbePort
from fleetscope.agents.probes.requester import Exchange
from fleetscope.agents.probes.responder import Me
from fleetscope.agents.probes.roster import Peer, Roster, parse_address

__all__ = [
    "ALL_STAMPS",
    "TOLD_EVERY_S",
    "Directory",
    "Exchange",
    "KeyFile",
    "Me",
    "Peer",
    "ProbePort",
    "Roster",
    "parse_address",
    "peers",
    "signed",
]
