"""The thread that pushes. Whatever the receiver does costs this thread its time and nobody else anything: no queue, one
request at a time, and what did not get through is counted.
"""

import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fleetscope.schema.config import OtlpConfig
from fleetscope.schema.errors import ConfigInvalid
from fleetscope.schema.otlp import HOST
from fleetscope.transport.families import Family

if TYPE_CHECKING:
    from fleetscope.transport.otlp.receiver import Receiver

log = logging.getLogger(__name__)

OUTCOMES = ("accepted", "rejected", "throttled", "refused", "unavailable", "unreachable", "late")
"""Of points: rejected by a receiver that took the rest; not taken for 429, another 4xx or 3xx, 5xx, no answer; of a
push that did not begin, because the one before it was not over."""
STOP_S = 5.0


def pusher(
    config: OtlpConfig,
    service: str,
    instance: str,
    families: Callable[[], Iterable[Family]],
    *,
    cluster: str = "",
    host: str = "",
) -> "Pusher | None":
    """None where nothing is to be pushed. `instance` tells this one of the service from all others: where host and
    cluster are no labels, their series would be the same. Raises ConfigInvalid for an endpoint, header or certificate
    that cannot be, and where the extra is not installed."""
    if not config.endpoint:
        return None
    try:
        from fleetscope.transport.otlp.receiver import Receiver
    except ImportError as error:
        raise ConfigInvalid(f"otlp.endpoint needs fleetscope[otlp]: {error}") from error
    about = {"service.namespace": "fleetscope", "service.name": service, "service.instance.id": instance, HOST: host}
    about["k8s.cluster.name" if "KUBERNETES_SERVICE_HOST" in os.environ else "fleetscope.cluster"] = cluster
    return Pusher(Receiver(config, {name: value for name, value in about.items() if value}), config, families)


class Pusher:
    """Pushes every `interval_s` until `stop`. Where fleets begin at once, their pushes do not."""

    def __init__(self, receiver: "Receiver", config: OtlpConfig, families: Callable[[], Iterable[Family]]) -> None:
        self._receiver, self._families = receiver, families
        self._interval_s = config.interval_s
        self._where = urlsplit(config.endpoint).netloc
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleetscope-otlp", daemon=True)
        self._size = 0
        self._failing_since_s = 0.0
        self.points: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        """Points by outcome."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """At once, but for a request in progress, which gets `STOP_S`."""
        self._stop.set()
        self._receiver.close()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    @property
    def failing_s(self) -> float:
        """How long the receiver has not taken all there was; 0 while it does."""
        since_s = self._failing_since_s
        return time.monotonic() - since_s if since_s else 0.0

    def _run(self) -> None:
        due_s = time.monotonic() + random.uniform(0, self._interval_s)
        while not self._stop.wait(max(0.0, due_s - time.monotonic())):
            try:
                self.push()
            except Exception:  # a defect costs a push, not all that follow
                log.exception("otlp")
            due_s += self._interval_s
            missed = max(0, int((time.monotonic() - due_s) // self._interval_s) + 1)
            self.points["late"] += missed * self._size
            due_s += missed * self._interval_s

    def push(self) -> None:
        """All series as they are now, or up to the first request that fails: the rest would fare no better."""
        size = 0
        lost = why = ""
        for points, request in self._receiver.requests(self._families()):
            size += points
            if lost:
                self.points[lost] += points
                continue
            answer = self._receiver.send(request)
            rejected = min(answer.rejected, points)
            self.points["rejected"] += rejected
            self.points[answer.outcome] += points - rejected
            if answer.outcome != "accepted":
                lost = answer.outcome
            if lost or rejected:
                why = why or answer.reason or "points were rejected"
        self._size = size
        self._note(why)

    def _note(self, why: str) -> None:
        """Said when it begins and when it ends, not once a push. `why` not all was taken; "": it was."""
        if not why and self._failing_since_s:
            log.info("otlp: %s takes metrics again", self._where)
            self._failing_since_s = 0.0
        elif why and not self._failing_since_s:
            log.warning("otlp: %s does not take all metrics: %.200s", self._where, why)
            self._failing_since_s = time.monotonic()
