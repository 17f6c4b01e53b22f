"""Names of topics and groups: the same rule on both back ends."""

from __future__ import annotations

import re

from fleetscope.transport.errors import BadName

# What Kafka allows; for the embedded log it also keeps path separators out.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_name(name: str) -> bool:
    """Whether a text may name a topic."""
    return name not in (".", "..") and _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """The name, or BadName."""
    if not is_name(name):
        raise BadName(f"{name[:300]!r} cannot name a topic or group: 1 to 249 of letters, digits, '.', '_', '-'")
    return name
