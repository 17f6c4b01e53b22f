"""The generation of chains a worker belongs to: the lake's, or a new one where the configuration wants other chains.

A new generation begins in four steps, each of which any worker may repeat after any crash:

1. Every chain of the old one gets a *fence*: an empty manifest of the new generation, which holds the chain's carried
   state again. From then on no worker of the old generation can commit: the number it builds on has a successor.
2. All that was committed before the fences must be folded: the tables then hold the old chains whole before they hold
   anything of the new ones.
3. What the fences carry, partition by partition, is one object.
4. The generation's record, put-if-absent, names it, the offsets and each chain's last number. That creation makes the
   generation real; workers that come to the same chains write the same record and all of them have won.
"""

import logging
import time
from collections.abc import Mapping

from fleetscope.pipelines.commit import Carried, CarriedPartition
from fleetscope.pipelines.plan import CODE_VERSION, new_attempt
from fleetscope.schema.config import Config
from fleetscope.schema.errors import EpochFenced, GenerationFenced, GenerationPending, ManifestInvalid
from fleetscope.sinks.lake.chain import Chain
from fleetscope.sinks.lake.faults import fault_point
from fleetscope.sinks.lake.generation import (
    Generation,
    current_generation,
    get_state,
    put_state,
    spread,
    start_generation,
)
from fleetscope.sinks.lake.manifest import Manifest
from fleetscope.sinks.lake.objects import ObjectStore
from fleetscope.sinks.lake.rounds import newest_round
from fleetscope.transport.log import Log
from fleetscope.transport.topics import Topics

logger = logging.getLogger(__name__)

FOLD_PATIENCE_NS = 60_000_000_000
"""Manifests that waited longer say that no coordinator runs. Chains are not fenced then: nobody would work on them."""

_ATTEMPTS = 64


def ensure_generation(config: Config, log: Log, store: ObjectStore) -> Generation:
    """The lake's generation with `worker.chain_count` chains; begun if there is none, or none with so many.

    Raises GenerationPending (try again: the coordinator has to fold first), GenerationFenced (another worker started
    other chains in the same moment).
    """
    topics = Topics(config.log.topic_prefix)
    found = current_generation(store)
    if found is None:
        info = log.topic(topics.telemetry)
        chains = spread(range(info.partitions), config.worker.chain_count)
        starts = log.start_offsets(topics.telemetry)
        fresh = Generation(1, topics.telemetry, info.topic_id, chains, starts, dict.fromkeys(chains, 0))
        return start_generation(store, fresh)
    partitions = sorted(partition for owned in found.chains.values() for partition in owned)
    wanted = spread(partitions, config.worker.chain_count)
    if found.chains == wanted and not _is_fenced(store, found):
        return found
    return _start_next(store, found, wanted)


def carried_at(store: ObjectStore, generation: Generation, chain: int, manifest: Manifest | None) -> Carried:
    """What a chain of `generation` carries behind `manifest`, its newest (None: it has none).

    Raises GenerationFenced if the chain is in a newer generation, ManifestInvalid if manifests are missing.
    """
    base = generation.bases.get(chain, 0)
    number = manifest.number if manifest is not None else 0
    if number < base:
        raise ManifestInvalid(f"chain {chain} ends at {number}, generation {generation.number} begins behind {base}")
    if manifest is None or number == base:
        return _beginning(store, generation, chain)
    if manifest.generation != generation.number:
        raise GenerationFenced(
            f"chain {chain} is in generation {manifest.generation}, this worker in {generation.number}: "
            "worker.chain_count was changed, start it with the new one"
        )
    return Carried.from_bytes(Chain(store, chain).state(manifest))


def _beginning(store: ObjectStore, generation: Generation, chain: int) -> Carried:
    partitions: dict[int, CarriedPartition] = {}
    if generation.state_object:
        known = Carried.from_bytes(get_state(store, generation)).partitions
        partitions = {number: known[number] for number in generation.chains[chain] if number in known}
    return Carried(generation.number, generation.topic_id, partitions, {})


def _is_fenced(store: ObjectStore, generation: Generation) -> bool:
    """Whether somebody began a newer generation and died: these chains can only go on in another one."""
    newest = (Chain(store, chain).latest() for chain in generation.chains)
    return any(manifest is not None and manifest.generation > generation.number for manifest in newest)


def _start_next(store: ObjectStore, old: Generation, wanted: Mapping[int, tuple[int, ...]]) -> Generation:
    _check_folded(store, old, younger_wait=False)
    fences = {chain: _fence(store, old, chain) for chain in old.chains}
    _check_folded(store, old, younger_wait=True)
    fault_point("generation.folded")
    number = old.number + 1
    last = {chain: fences.get(chain) or Chain(store, chain).latest() for chain in wanted}
    before = [manifest for manifest in (*fences.values(), *last.values()) if manifest is not None]
    partitions: dict[int, CarriedPartition] = {}
    for chain, fence in fences.items():
        partitions.update(Carried.from_bytes(Chain(store, chain).state(fence)).partitions)
    starts = {**old.starts, **{partition: carried.offset for partition, carried in partitions.items()}}
    state = Carried(number, old.topic_id, partitions, {}).to_bytes()
    fresh = Generation(
        number,
        old.topic,
        old.topic_id,
        dict(wanted),
        starts,
        {chain: manifest.number if manifest else 0 for chain, manifest in last.items()},
        max(manifest.now_ns for manifest in before),
        put_state(store, number, state),
    )
    fault_point("generation.before_put")
    try:
        started = start_generation(store, fresh)
    except GenerationFenced:
        # Another worker was first, and its chains may have gone on already, so that their ends are no fences any more.
        current = current_generation(store)
        if current is None or current.chains != wanted:
            raise
        return current
    fault_point("generation.after_put")
    logger.info("generation %d: %d chains instead of %d", number, len(wanted), len(old.chains))
    return started


def _fence(store: ObjectStore, old: Generation, chain: int) -> Manifest:
    """The chain's manifest of the next generation; made, if nobody has."""
    lake = Chain(store, chain)
    for _ in range(_ATTEMPTS):
        newest = lake.latest()
        if newest is not None and newest.generation > old.number:
            return newest
        carried = carried_at(store, old, chain, newest)
        fence = Manifest(
            chain=chain,
            number=(newest.number if newest is not None else 0) + 1,
            generation=old.number + 1,
            attempt=new_attempt(),
            parent=newest.digest if newest is not None else "",
            now_ns=max(time.time_ns(), old.now_ns + 1, newest.now_ns + 1 if newest is not None else 0),
            offsets=(),
            state=carried.to_bytes(),
            code_version=CODE_VERSION,
        )
        fault_point("generation.before_fence")
        try:
            made = lake.commit(fence)
        except EpochFenced:
            continue  # a worker of the old generation was faster, once more; or another one fenced it
        fault_point("generation.fenced")
        return made
    raise GenerationPending(f"chain {chain} commits faster than it can be fenced")


def _check_folded(store: ObjectStore, old: Generation, *, younger_wait: bool) -> None:
    """GenerationPending unless a round holds every manifest of the old generation; with not `younger_wait`, unless one
    holds those older than FOLD_PATIENCE_NS."""
    round_ = newest_round(store)
    folded = round_.folded if round_ is not None else {}
    for chain in old.chains:
        for manifest in Chain(store, chain).after(folded.get(chain, 0), 1):
            waited_long = time.time_ns() - manifest.now_ns >= FOLD_PATIENCE_NS
            if manifest.generation <= old.number and (younger_wait or waited_long):
                raise GenerationPending(
                    f"generation {old.number + 1} waits until chain {chain} is folded, from epoch {manifest.number} "
                    "on: run the coordinator"
                )
