"""From a URL to a log."""

from __future__ import annotations

import importlib.util
import os
from threading import Lock
from urllib.parse import urlsplit

from fleetscope.transport.errors import BadLogUrl, ComponentMissing
from fleetscope.transport.log import Log
from fleetscope.transport.settings import Setting

_shared: dict[tuple[int, str, tuple[tuple[str, Setting], ...]], Log] = {}
_shared_lock = Lock()


def open_log(url: str, **settings: Setting) -> Log:
    """`file:///path` (an embedded log; the folder is made) or `kafka://host:port,host:port`.

    Settings may also stand in the URL's query (`?acks_timeout_s=10`); keyword arguments win. An unknown setting is
    BadLogUrl naming the nearest known one. A broker that cannot be reached raises BrokerUnavailable within about 5 s;
    what else keeps us out is told as soon (`transport.preflight`).
    """
    scheme = urlsplit(url).scheme
    if scheme in ("file", "kafka"):
        _require("crc32c", "both logs check every record; in Python alone Kafka is 20 times slower")
    if scheme == "file":
        from fleetscope.transport.embedded.log import open_embedded

        return open_embedded(url, settings)
    if scheme == "kafka":
        _require("kafka", "kafka-python 3.0.12")
        from fleetscope.transport.kafka.log import open_kafka

        return open_kafka(url, settings)
    raise BadLogUrl(f"a log URL begins with file:// or kafka://, not with {scheme + '://' if scheme else 'nothing'!r}")


def _require(module: str, why: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise ComponentMissing(f"the package {module} is not installed ({why})")


def shared_log(url: str, **settings: Setting) -> Log:
    """One log per process and (url, settings), kept open: for Beam stages, which are pickled and made anew each run.

    Re-assigning a Kafka consumer costs 21 ms of CPU and connecting one far more, so it must not happen per epoch.
    """
    key = (os.getpid(), url, tuple(sorted(settings.items())))
    with _shared_lock:
        log = _shared.get(key)
        if log is None:
            log = _shared[key] = open_log(url, **settings)
        return log
