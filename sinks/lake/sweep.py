"""Sweeping: what no reader, no fold and no running epoch can need any more. Always from what is named, never by guess.

The library's `vacuum(full=True)` would delete segments that are committed but not folded yet; it is used in its lite
form only, for files that a replace or a dimension rewrite removed.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from deltalake.exceptions import DeltaError

from fleetscope.schema.errors import ManifestInvalid, ObjectMissing
from fleetscope.schema.tables import TABLES
from fleetscope.sinks.lake.chain import Chain, chain_folder, chain_numbers, manifest_key
from fleetscope.sinks.lake.failures import of_table
from fleetscope.sinks.lake.generation import STATES, current_generation
from fleetscope.sinks.lake.objects import ObjectStore
from fleetscope.sinks.lake.rounds import Round, read_round, round_keys
from fleetscope.sinks.lake.segment import table_root
from fleetscope.sinks.lake.tables import live_files, open_version

READER_S = 3600.0
"""A reader may hold a snapshot this long; what its round names stays."""
MANIFEST_S = 86_400.0
"""Manifests folded everywhere go after a day; a worker whose epoch took longer must start again (EpochFenced tells
it)."""


@dataclass(frozen=True, slots=True)
class Swept:
    """How many of each kind were deleted."""

    manifests: int = 0
    states: int = 0
    segments: int = 0
    rounds: int = 0
    unfinished: int = 0


def settled_round(store: ObjectStore, now_s: float) -> tuple[Round | None, int]:
    """The newest round older than READER_S: what it has folded, no reader looks for in manifests any more. Older rounds
    are deleted (how many is the second value): readers open the newest."""
    modified = store.modified("rounds")
    settled = [key for key in round_keys(store) if modified.get(key, now_s) < now_s - READER_S]
    for key in settled[:-1]:
        store.delete(key)
    return (read_round(store, settled[-1]) if settled else None), len(settled[:-1])


def sweep(store: ObjectStore, now_s: float | None = None) -> Swept:
    """One pass. Safe beside workers, readers and other coordinators; every deletion can be repeated."""
    now_s = time.time() if now_s is None else now_s
    settled, rounds = settled_round(store, now_s)
    if settled is None:
        return Swept()
    manifests = states = 0
    for chain in chain_numbers(store):
        gone, left = _sweep_chain(store, chain, settled.folded.get(chain, 0), now_s)
        manifests, states = manifests + gone, states + left
    states += _sweep_generations(store, now_s)
    segments, unfinished = _sweep_files(store, settled, now_s)
    for name in settled.versions:
        _vacuum(store, name)
    return Swept(manifests, states, segments, rounds, unfinished)


def _sweep_chain(store: ObjectStore, chain: int, folded: int, now_s: float) -> tuple[int, int]:
    """Manifests folded everywhere and a day old, oldest first, never the newest; then the states no manifest refers
    to."""
    modified = store.modified(chain_folder(chain))
    keys = [key for key in sorted(modified) if not key.rsplit("/", 1)[-1].startswith(".")]
    gone = 0
    for key in keys[:-1]:
        if key > manifest_key(chain, folded) or modified[key] > now_s - MANIFEST_S:
            break
        store.delete(key)
        gone += 1
    folder = f"state/chain-{chain}"
    kept = {key.rsplit("/", 1)[-1].removesuffix(".json") for key in keys[gone:]}
    states = 0
    for key, written in store.modified(folder).items():
        if written < now_s - MANIFEST_S and key.rsplit("/", 1)[-1].split("-", 1)[0] not in kept:
            store.delete(key)
            states += 1
    return gone, states


def _sweep_generations(store: ObjectStore, now_s: float) -> int:
    """States of a day ago that the newest generation does not begin with."""
    current = current_generation(store)
    kept = current.state_object if current is not None else ""
    old = [key for key, written in store.modified(STATES).items() if written < now_s - MANIFEST_S and key != kept]
    for key in old:
        store.delete(key)
    return len(old)


def _sweep_files(store: ObjectStore, settled: Round, now_s: float) -> tuple[int, int]:
    """Data files that are neither in a table nor waiting to be: losers' segments after a day; rollup and dimension
    segments whose rows a settled round holds merged, at once. And unfinished writes after a day."""
    files = {name: _data_files(store, name) for name in TABLES}
    # what was listed above and is named by nothing read below was named by nothing then
    folded, unfolded = _named(store, settled)
    segments = unfinished = 0
    for name, modified in files.items():
        held = _held(store, name)
        for key, written in modified.items():
            if key.rsplit("/", 1)[-1].startswith("."):
                if written < now_s - MANIFEST_S:
                    store.delete(key)
                    unfinished += 1
            elif key in held or key in unfolded:
                continue
            elif written < now_s - MANIFEST_S or (key in folded and TABLES[name].kind in ("rollup", "dimension")):
                store.delete(key)
                segments += 1
    return segments, unfinished


def _data_files(store: ObjectStore, table: str) -> Mapping[str, float]:
    log = f"{table_root(table)}/_delta_log/"
    return {key: written for key, written in store.modified(table_root(table)).items() if not key.startswith(log)}


def _named(store: ObjectStore, settled: Round) -> tuple[set[str], set[str]]:
    """(segments of manifests a settled round has folded, segments of all others)."""
    folded: set[str] = set()
    unfolded: set[str] = set()
    for number in chain_numbers(store):
        chain = Chain(store, number)
        for key in store.keys(chain_folder(number)):
            try:
                manifest = chain.get(int(key.rsplit("/", 1)[-1].removesuffix(".json")))
            except (ObjectMissing, ValueError) as error:
                raise ManifestInvalid(f"{key}: {error}") from error
            if manifest is not None:
                into = folded if manifest.number <= settled.folded.get(number, 0) else unfolded
                into |= {segment.key for segment in manifest.segments}
    return folded, unfolded


def _held(store: ObjectStore, table: str) -> set[str]:
    """Files of the newest version, and those a commit removed, which `_vacuum` deletes when no reader can hold them."""
    handle = open_version(store, table)
    if handle is None:
        return set()
    paths = [item.path for item in live_files(table, handle)]
    try:
        # removed files, however recently; a dry run deletes nothing
        paths += handle.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False, full=False)
    except (DeltaError, OSError) as error:
        raise of_table(error, f"table {table}") from None
    return {f"{table_root(table)}/{path}" for path in paths}


def _vacuum(store: ObjectStore, table: str) -> None:
    handle = open_version(store, table)
    if handle is None:
        return
    try:
        handle.vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False, full=False)
    except (DeltaError, OSError) as error:
        raise of_table(error, f"table {table}") from None
