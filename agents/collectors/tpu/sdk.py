"""libtpu's monitoring SDK, in Python (its C interface has no stable layout): alone in telling throttling and links."""

import importlib.util
import re
from typing import Any

from fleetscope.agents.collectors.tpu.answers import Histogram, Unreadable

_LINK = re.compile(r"(?:tray(\d+)\.)?chip(\d+)\.([\w.]+):\s*(\d+)")
"""As in "tray1.chip3.ici0.int: 10", the vendor's own format of a link and its score."""


class Sdk:
    """`monitoring`: libtpu.sdk.tpumonitoring, or what behaves like it; None: found when first asked."""

    name = "sdk"

    def __init__(self, monitoring: Any = None) -> None:
        self._monitoring = monitoring

    @property
    def there(self) -> bool:
        return self._monitoring is not None or importlib.util.find_spec("libtpu") is not None

    def _data(self, metric: str) -> list[str]:
        if not self.there:
            return []
        try:
            if self._monitoring is None:
                from libtpu.sdk import tpumonitoring

                self._monitoring = tpumonitoring
            found = self._monitoring.get_metric(metric).data
            # A method in some releases, an attribute in others.
            return [str(entry) for entry in (found() if callable(found) else found) or ()]
        except ImportError:
            raise Unreadable("sdk_missing") from None
        except Exception as error:  # the library raises its own kinds; a metric it does not know is one of them
            if type(error).__name__ in ("ValueError", "KeyError", "NotImplementedError"):
                return []
            raise Unreadable(type(error).__name__) from error

    def numbers(self, metric: str, timeout_s: float) -> list[tuple[int, float]]:
        """Values stand in the order of the chips, some behind a name and a colon."""
        found: list[tuple[int, float]] = []
        for place, text in enumerate(self._data(metric)):
            try:
                found.append((place, float(text.rpartition(":")[2])))
            except ValueError:
                continue
        return found

    def histograms(self, metric: str, timeout_s: float) -> list[Histogram]:
        """It tells percentiles of a distribution, which nobody can add up: they are left out."""
        return []

    def links(self) -> list[tuple[tuple[int, int], str, int]]:
        """((tray, chip) as the vendor numbers them, link, score): 0 is healthy, 10 cannot be used."""
        found = [_LINK.fullmatch(text.strip()) for text in self._data("ici_link_health")]
        return [((int(m[1] or 0), int(m[2])), m[3], int(m[4])) for m in found if m is not None]
