"""What does not change about a host and a process while they live."""

import os
import platform
import socket
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from fleetscope.agents.batches import clean_text
from fleetscope.schema import wire_pb2 as wire


@cache
def boot_id() -> str:
    """Unique for one boot of this host; "unknown" where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def start_ticks(pid: int) -> int | None:
    """When a process started (field 22 of /proc/PID/stat, clock ticks after boot); None if it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    # The command in parentheses may hold anything, parentheses too.
    fields = stat[stat.rfind(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


@cache
def pid_namespace() -> int:
    """Inode of this process' pid namespace; 0 where the kernel does not say."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class Host:
    """Identity of this host; the base of every source."""

    cluster: str
    name: str
    boot_id: str

    @classmethod
    def here(cls, cluster: str, name: str = "") -> "Host":
        return cls(cluster, name or socket.gethostname(), boot_id())

    def source(self) -> wire.Source:
        """Of the agent itself: host samples, heartbeats."""
        return wire.Source(cluster=self.cluster, host=self.name, boot_id=self.boot_id)

    def info(self) -> wire.HostInfo:
        try:
            agent = version("fleetscope")
        except PackageNotFoundError:
            agent = "unknown"
        return wire.HostInfo(
            cluster=self.cluster,
            host=self.name,
            boot_id=self.boot_id,
            os=clean_text(platform.platform()),
            cpus=psutil.cpu_count() or 0,
            memory_bytes=psutil.virtual_memory().total,
            agent_version=agent,
        )
