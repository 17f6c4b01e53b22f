"""Secrets of a configuration: which they are, and how none reaches a log, a screen or a command line."""

import logging
import os
import re
from collections.abc import Iterable
from urllib.parse import parse_qsl, quote, quote_plus, urlsplit, urlunsplit

MASK = "***"
LEAST = 4
"""Shorter ones are not looked for: they would blot out half of every line."""

_NAMES = re.compile(r"secret|passw|token|access_?key|account_?key|credential|signature|sas_", re.IGNORECASE)
_OURS = ("FLEETSCOPE_", "AWS_", "AZURE_", "GOOGLE_")

_known: set[str] = set()


def is_secret(name: str) -> bool:
    """Whether a setting or variable of this name holds a secret itself, and not the place of a file that does."""
    return bool(_NAMES.search(name)) and not name.lower().endswith("file")


def of_url(url: str) -> list[str]:
    """Values of settings with a secret's name in the query, and a password before the host."""
    parts = urlsplit(url)
    found = [value for name, value in parse_qsl(parts.query) if is_secret(name)]
    return [*found, *([parts.password] if parts.password else [])]


def shown(url: str) -> str:
    """The URL with its secrets masked."""
    parts = urlsplit(url)
    query = "&".join(
        f"{name}{mark}{MASK if mark and is_secret(name) else value}"
        for name, mark, value in (pair.partition("=") for pair in parts.query.split("&"))
    )
    netloc = parts.netloc
    if parts.password:
        before, _, host = netloc.rpartition("@")
        netloc = f"{before.partition(':')[0]}:{MASK}@{host}"
    masked_url = urlunsplit(parts._replace(query=query, netloc=netloc))
    # urlunsplit leaves the slashes of an empty host out: file:///x.
    return masked_url if of_url(url) else url


def remember(values: Iterable[str]) -> None:
    """From now on `masked` hides these, also as they stand in a URL."""
    for value in values:
        if len(value) >= LEAST:
            _known.update((value, quote(value, safe=""), quote_plus(value)))


def remember_environment() -> None:
    """What the environment calls a secret of ours or of an object store."""
    remember(value for name, value in os.environ.items() if name.startswith(_OURS) and is_secret(name))


def masked(text: str) -> str:
    for value in sorted(_known, key=len, reverse=True):
        text = text.replace(value, MASK)
    return text


class MaskingFormatter(logging.Formatter):
    """Lines and tracebacks without what is remembered: libraries log their whole configuration."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))
