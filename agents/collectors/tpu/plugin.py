"""The page of the GKE TPU device plugin (port 2112), in Prometheus' text format. Its node-scope series alone."""

import http.client
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from fleetscope.agents.collectors.tpu.answers import Histogram, Unreadable

PAGE_BYTES = 4 << 20


class PluginPage:
    """`url`: of the page. It is read once a second at most, whatever is asked of it."""

    name = "plugin"

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._path = parts.netloc, parts.path or "/"
        self._values: dict[str, list[tuple[int, float]]] = {}

    def refresh(self, timeout_s: float) -> None:
        """Reads the page. Raises Unreadable."""
        self._values = {}
        connection = http.client.HTTPConnection(self._host, timeout=timeout_s)
        try:
            connection.request("GET", self._path)
            answer = connection.getresponse()
            if answer.status != 200:
                raise Unreadable(f"http_{answer.status}")
            text = answer.read(PAGE_BYTES).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise Unreadable("refused" if isinstance(error, ConnectionRefusedError) else "no_answer") from error
        finally:
            connection.close()
        self._values = _parse(text)

    def numbers(self, metric: str, timeout_s: float) -> list[tuple[int, float]]:
        return self._values.get(metric, [])

    def histograms(self, metric: str, timeout_s: float) -> list[Histogram]:
        return []


def _parse(text: str) -> dict[str, list[tuple[int, float]]]:
    """accelerator_id is "<uuid>-<number>". Series with a pod say again what those without say: they are left out, or a
    chip that goes from pod to pod would count twice."""
    found: dict[str, list[tuple[int, float]]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                number = sample.labels.get("accelerator_id", "").rpartition("-")[2]
                if sample.labels.get("pod") or not number.isdecimal() or len(number) > 9:
                    continue
                found.setdefault(sample.name, []).append((int(number), sample.value))
    except ValueError as error:
        raise Unreadable("undecodable") from error
    return found
