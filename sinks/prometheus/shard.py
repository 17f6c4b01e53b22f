"""Which hosts an exporter shows, where several share a fleet."""

import zlib
from dataclasses import dataclass, field

from fleetscope.schema.errors import ConfigInvalid


@dataclass(frozen=True, slots=True)
class Shard:
    """Hosts whose hash leaves `number` when divided by `count`; what is of no host belongs to number 0."""

    number: int = 0
    count: int = 1
    _known: dict[str, bool] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """From "i/n", 0 <= i < n. Raises ConfigInvalid."""
        number, _, count = text.partition("/")
        if not (number.isdigit() and count.isdigit() and int(number) < int(count)):
            raise ConfigInvalid(f"exporter.shard {text!r} is not i/n with i from 0 to n - 1")
        return cls(int(number), int(count))

    def has(self, host: str | None) -> bool:
        """Whether it shows the series of a host; None: of those that have none."""
        if self.count == 1 or host is None:
            return self.number == 0
        known = self._known.get(host)
        if known is None:
            known = self._known[host] = zlib.crc32(host.encode()) % self.count == self.number
        return known

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def other(self) -> str:
        """Label of what is folded: the sums of two shards are two series."""
        return "other" if self.count == 1 else f"other {self}"


WHOLE = Shard()
