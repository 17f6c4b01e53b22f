"""One round: all tables brought to the same manifests, then published as one moment.

Several coordinators may do this at once. A table's fold is fenced by its app transactions; the round by its number.
What must be watched is consistency: a table that another coordinator has already taken beyond our target would show its
rows twice to a reader that adds the manifests behind the round. So targets are raised until no table is ahead of them.
"""

import logging
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from fleetscope.pipelines.coordinate.tail import ChainTail
from fleetscope.schema.errors import FleetscopeError, FoldConflict, ManifestInvalid, VersionUnknown
from fleetscope.schema.tables import TABLES
from fleetscope.sinks.lake.chain import chain_numbers
from fleetscope.sinks.lake.encode import Profile
from fleetscope.sinks.lake.fold import Merge, chain_app, fold_table
from fleetscope.sinks.lake.manifest import Manifest
from fleetscope.sinks.lake.objects import ObjectStore
from fleetscope.sinks.lake.rounds import Round, commit_round, newest_round, round_key
from fleetscope.sinks.lake.tables import LakeTable

REFRESH_ALL_S = 60.0
"""How often tables without news are looked at: another coordinator may have replaced files of a version we would go on
naming."""
_RAISES = 16
AT_ONCE = 8
"""Tables folded at once where each request is a round trip."""
ROUND_MERGED_ROWS = 1 << 20
"""Rollup and dimension rows merged in one round, ~300 B each in memory; after an outage several rounds follow each
other."""

_log = logging.getLogger(__name__)


class Moments:
    """Makes rounds of one lake. Not for several threads; any number of processes."""

    def __init__(self, store: ObjectStore, merge: Merge, made_by: str, profile: Profile = "compact") -> None:
        self.store = store
        self.made_by = made_by
        self.tables = {name: LakeTable(store, name, profile) for name in TABLES}
        self.last: Round | None = newest_round(store)
        self._merge = merge
        self._tails: dict[int, ChainTail] = {}
        self._touched: set[str] = set()
        self._refreshed_s = self._listed_s = float("-inf")
        self.broken: dict[int, FleetscopeError] = {}

    @property
    def behind(self) -> bool:
        """Whether manifests have been seen that no round holds yet."""
        return any(tail.manifests for tail in self._tails.values())

    def touch(self, table: str) -> None:
        """The table was changed outside a fold (replace, symbols): the next round must name its new version."""
        self._touched.add(table)

    @property
    def touched(self) -> bool:
        return bool(self._touched)

    def look(self) -> list[ChainTail]:
        """See new rounds of other coordinators and new manifests; one cheap look a chain when there is nothing new."""
        number = 0 if self.last is None else self.last.number
        # the next number may have been made and swept while we stood by, so now and then all are listed
        overdue = time.monotonic() - self._listed_s > REFRESH_ALL_S
        if overdue or self.store.size(round_key(number + 1)) is not None:
            self._see_rounds()
        folded: Mapping[int, int] = {} if self.last is None else self.last.folded
        for chain, tail in self._tails.items():
            tail.advance(folded.get(chain, 0))
        self._see_manifests(folded)
        return list(self._tails.values())

    def _see_rounds(self) -> None:
        self._listed_s = time.monotonic()
        newest = newest_round(self.store)
        if newest is not None and (self.last is None or newest.number > self.last.number):
            self.last = newest

    def _see_manifests(self, folded: Mapping[int, int]) -> None:
        for chain in chain_numbers(self.store):
            if chain not in self._tails:
                self._tails[chain] = ChainTail.begin(self.store, chain, folded.get(chain, 0))
            try:
                self._tails[chain].look()
                self.broken.pop(chain, None)
            except (ManifestInvalid, VersionUnknown) as error:
                # what was committed before the damage is folded; the other chains go on
                if chain not in self.broken:
                    _log.error("chain %d is folded no further: %s", chain, error)
                self.broken[chain] = error

    def make(self, now_ns: Callable[[], int] = time.time_ns) -> Round | None:
        """Fold everything committed and publish it. None: nothing new, or another coordinator published first.

        A chain whose manifests are damaged is in `broken` and is folded up to the damage. Raises FoldConflict (try
        again), SegmentInvalid or ManifestInvalid (the lake is damaged; the message says where).
        """
        self._see_rounds()
        tails = self.look()
        if not self._touched and not any(tail.manifests for tail in tails):
            return None
        base = self.last
        changed = set(self._touched)
        targets = self._fold({} if base is None else base.folded)
        record = Round(
            1 if base is None else base.number + 1,
            now_ns(),
            self.made_by,
            self._versions({} if base is None else base.versions),
            dict(sorted(targets.items())),
        )
        won = commit_round(self.store, record)
        self.last = record if won else newest_round(self.store)
        if not won:
            return None
        self._touched -= changed
        for chain, tail in self._tails.items():
            tail.advance(record.folded.get(chain, 0))
        return record

    def _fold(self, folded: Mapping[int, int]) -> dict[int, int]:
        """Bring every table to the same manifests; chain -> number. Raised while a table is found beyond it."""
        targets = {}
        left = ROUND_MERGED_ROWS
        for chain, tail in self._tails.items():
            targets[chain], merged = tail.within(left)
            left = max(0, left - merged)
        for _ in range(_RAISES):
            manifests = {
                chain: [item for item in self._tails[chain].manifests if item.number <= target]
                for chain, target in targets.items()
            }
            named = {segment.table for items in manifests.values() for item in items for segment in item.segments}
            self._fold_tables(sorted(named), manifests, folded)
            self._refresh_others(named)
            self._see_manifests(folded)
            raised = {chain: max(targets.get(chain, 0), self._reached(chain, folded)) for chain in self._tails}
            if raised == targets:
                return targets
            missing = [chain for chain, target in raised.items() if target > self._tails[chain].target]
            if missing:
                raise ManifestInvalid(f"chains {missing}: tables hold manifests that are not there")
            targets = raised
        raise FoldConflict("other coordinators fold faster than this one can follow")

    def _fold_tables(
        self, names: list[str], manifests: Mapping[int, list[Manifest]], folded: Mapping[int, int]
    ) -> None:
        def fold(name: str) -> None:
            fold_table(self.tables[name], manifests, folded, self._merge)

        if self.store.is_local:
            for name in names:
                fold(name)
            return
        # About 17 requests a table, one after the other: 6 s a round at 20 ms each. Tables are independent until the
        # round names them together.
        with warnings.catch_warnings(), ThreadPoolExecutor(AT_ONCE, "fleetscope-fold") as pool:
            # each commit does the same for itself, and threads would restore each other's filters
            warnings.simplefilter("ignore", DeprecationWarning)
            list(pool.map(fold, names))

    def _reached(self, chain: int, folded: Mapping[int, int]) -> int:
        """The furthest that any table, as last refreshed, has been taken along a chain."""
        app = chain_app(chain)
        return max(folded.get(chain, 0), *(table.transaction(app) for table in self.tables.values()))

    def _refresh_others(self, named: set[str]) -> None:
        everything = time.monotonic() - self._refreshed_s > REFRESH_ALL_S
        for name, table in self.tables.items():
            if name not in named and (everything or name in self._touched):
                table.refresh()
        if everything:
            self._refreshed_s = time.monotonic()

    def _versions(self, base: Mapping[str, int]) -> dict[str, int]:
        """Table -> version. A handle older than the base round's was not touched since: the base's version still is
        right."""
        newest = {name: max(table.version, base.get(name, -1)) for name, table in self.tables.items()}
        return {name: version for name, version in newest.items() if version >= 0}
