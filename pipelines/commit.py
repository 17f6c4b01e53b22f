"""Parts of an epoch -> segments of what is small, the new carried state, and one manifest: the only commit (DESIGN
3.5).
"""

from base64 import b64decode
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fleetscope.pipelines import counted, counters, durations, frequency, handed, idle, ledger, step
from fleetscope.pipelines.dtypes import add_dtypes
from fleetscope.pipelines.elements import Part, frame, unframe
from fleetscope.pipelines.flops import OpTables
from fleetscope.pipelines.merge import merge
from fleetscope.pipelines.plan import CODE_VERSION, Plan, offset_ranges, segment_name
from fleetscope.pipelines.segments import discard
from fleetscope.pipelines.state import PartitionState, pack
from fleetscope.schema.errors import CommitUnknown, LedgerBroken
from fleetscope.schema.tables import LEDGER, TABLES
from fleetscope.sinks.lake.chain import Chain
from fleetscope.sinks.lake.encode import Profile
from fleetscope.sinks.lake.faults import fault_point
from fleetscope.sinks.lake.manifest import Manifest
from fleetscope.sinks.lake.objects import ObjectStore
from fleetscope.sinks.lake.segment import SegmentRef, write_segment


@dataclass(frozen=True, slots=True)
class CarriedPartition:
    """Next offset, when the oldest batch that waits for a bracket was admitted (0: none), and the packed state."""

    offset: int
    held_since_ns: int
    state: bytes


@dataclass(frozen=True, slots=True)
class Carried:
    """What stands in the manifest's state. `changed_runs`: runs whose counters this epoch moved."""

    generation: int
    topic_id: str
    partitions: dict[int, CarriedPartition]
    programs: dict[int, int]
    changed_runs: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        order = sorted(self.partitions)
        head = {
            "generation": self.generation,
            "topic_id": self.topic_id,
            "partitions": [
                [number, self.partitions[number].offset, self.partitions[number].held_since_ns] for number in order
            ],
            "programs": {str(key): value for key, value in self.programs.items()},
            "changed_runs": sorted(self.changed_runs),
        }
        return frame(head, [self.partitions[number].state for number in order])

    @classmethod
    def from_bytes(cls, data: bytes) -> "Carried":
        head, blobs = unframe(data)
        return cls(
            head["generation"],
            head["topic_id"],
            {
                number: CarriedPartition(offset, held_since_ns, state)
                for (number, offset, held_since_ns), state in zip(head["partitions"], blobs, strict=True)
            },
            {int(key): value for key, value in head["programs"].items()},
            tuple(head["changed_runs"]),
        )


def commit_epoch(plan: Plan, part: Part, store: ObjectStore, ops: OpTables) -> Manifest:
    """Write what is left, check the ledger, create the manifest. Raises LedgerBroken and what Chain.commit raises."""
    facts = part.facts
    by_partition = {fact["partition"]: fact for fact in facts.get("partition", [])}
    missing = {item.partition for item in plan.partitions} - set(by_partition)
    if missing:
        raise LedgerBroken(f"partitions {sorted(missing)} of the plan were not read")
    states = {
        partition: PartitionState.from_json(fact["state"]) if "state" in fact else handed.take(plan.attempt, partition)
        for partition, fact in by_partition.items()
        if "packed" not in fact
    }
    ledger_rows: list[dict[str, Any]] = []
    fates = _fates(by_partition, facts.get("fate", []))
    for partition, state in states.items():
        fact = by_partition[partition]
        for source in fact["changed"]:
            state.sources[source].changed = True
        ledger.settle(partition, state, fates.get(partition, []))
        lost = {int(source): ranges for source, ranges in fact["lost"].items()}
        ledger_rows += ledger.rows(state, lost, plan.now_ns, plan.chain, plan.number)
    tables = dict(part.tables)
    if "ran" in tables and tables["ran"].num_rows:
        ops.refresh(plan.programs)
    priced, dtypes = counted.advance(states, tables, ops)
    least_ns = counted.shortest(states, ops)
    tables["step"], tables["step_program"] = step.advance(states, tables, plan.now_ns, least_ns)
    tables["dtypes"] = pa.concat_tables([tables["dtypes"], dtypes]) if "dtypes" in tables else dtypes
    corrections = [found for found in (idle.advance(states, tables, plan.now_ns), priced) if found.num_rows]
    if corrections:
        known = [tables["device_10s"]] if "device_10s" in tables else []
        tables["device_10s"] = merge("device_10s", [*known, *corrections])
    if "clocks" in tables:
        frequency.remember(states, tables["clocks"])
    if "device_10s" in tables:
        tables["device_10s"] = counted.with_peaks(states, tables["device_10s"])
        tables["device_10s"] = frequency.at_real_clock(states, tables["device_10s"])
    changed_runs = _count(plan, states, tables, by_partition)
    tables = {name: table for name, table in tables.items() if name in TABLES}
    for state in states.values():
        state.shelve()
        state.forget()
    if ledger_rows:
        tables["ledger"] = pa.Table.from_pylist(ledger_rows, schema=LEDGER)
    carried = Carried(
        plan.generation,
        plan.topic_id,
        {partition: _carry(fact, states.get(partition)) for partition, fact in by_partition.items()},
        dict(plan.programs),
        tuple(changed_runs),
    )
    segments = [SegmentRef(**ref) for ref in facts.get("segment", [])]
    try:
        _write(plan, tables, store, segments)
        committed = Chain(store, plan.chain).commit(
            Manifest(
                chain=plan.chain,
                number=plan.number,
                generation=plan.generation,
                attempt=plan.attempt,
                parent=plan.parent,
                now_ns=plan.now_ns,
                offsets=offset_ranges(plan, {partition: fact["reached"] for partition, fact in by_partition.items()}),
                segments=tuple(sorted(segments, key=lambda ref: (ref.table, ref.path))),
                state=carried.to_bytes(),
                code_version=CODE_VERSION,
                counts=_counts(by_partition, fates, tables),
            )
        )
    except CommitUnknown:
        raise
    except Exception:
        discard(store, segments)
        raise
    fault_point("commit.after_manifest")
    return committed


def _carry(fact: dict[str, Any], state: PartitionState | None) -> CarriedPartition:
    since = min((held.since_ns for held in state.held), default=0) if state else 0
    if state is None:
        return CarriedPartition(fact["reached"], since, b64decode(fact["packed"]))
    data = pack(state.to_json())
    handed.packed(data, state)
    return CarriedPartition(fact["reached"], since, data)


Fate = tuple[int, int, int, int]


def _fates(by_partition: dict[int, Any], processed: Iterable[list[int]]) -> dict[int, list[Fate]]:
    """partition -> (source, stored, dead events, dead messages): what `read` refused and what later stages did."""
    fates: dict[int, list[Fate]] = {}
    for partition, fact in by_partition.items():
        for source, dead in fact.get("dead", {}).items():
            fates.setdefault(partition, []).append((int(source), 0, dead, 0))
    for partition, source, stored, dead, messages_dead in processed:
        fates.setdefault(partition, []).append((source, stored, dead, messages_dead))
    return fates


def _count(
    plan: Plan, states: dict[int, PartitionState], tables: dict[str, pa.Table], by_partition: dict[int, Any]
) -> set[str]:
    changed: set[str] = set()
    for partition, state in states.items():
        mine = {record.process: record.run for record in state.sources.values()}
        changed |= counters.add_events(state)
        owned = pa.array(sorted(mine), pa.int64())
        for table, add in (("device_10s", counters.add_devices), ("step", counters.add_steps)):
            if table in tables and tables[table].num_rows:
                rows = tables[table].filter(pc.is_in(tables[table].column("process"), value_set=owned))
                changed |= add(state, rows, mine)
        if "dtypes" in tables and tables["dtypes"].num_rows:
            rows = tables["dtypes"].filter(pc.is_in(tables["dtypes"].column("process"), value_set=owned))
            add_dtypes(state, rows, tables.get("device_10s"), counters.runs_of(state, mine))
        if "op_durations" in tables:
            rows = tables["op_durations"].filter(pc.is_in(tables["op_durations"].column("process"), value_set=owned))
            durations.add_ops(rows, counters.runs_of(state, mine))
            changed |= {mine[process] or counters.NO_RUN for process in rows.column("process").unique().to_pylist()}
        counters.note_time(state, by_partition[partition]["newest_ns"], plan.now_ns)
    return changed


def _write(plan: Plan, tables: dict[str, pa.Table], store: ObjectStore, into: list[SegmentRef]) -> None:
    """Write the tables and name the files in `into`, each as soon as it is there."""
    profile: Profile = "portable" if plan.encoding == "portable" else "compact"
    for index, (name, rows) in enumerate(sorted(tables.items())):
        if rows.num_rows:
            into += write_segment(store, name, rows, segment_name(plan, f"c{index}"), profile)
            fault_point("commit.segment_written")
    fault_point("commit.before_manifest")


def _counts(by_partition: dict[int, Any], fates: dict[int, list[Fate]], tables: dict[str, pa.Table]) -> dict[str, int]:
    messages = [fact["messages"] for fact in by_partition.values() if "messages" in fact]
    all_fates = [fate for found in fates.values() for fate in found]
    return {
        "messages": sum(item[0] for item in messages),
        "duplicate_messages": sum(item[2] for item in messages),
        "stored": sum(fate[1] for fate in all_fates),
        "dead_lettered": sum(fate[2] for fate in all_fates),
        "dead_letters": tables["dead_letter"].num_rows if "dead_letter" in tables else 0,
        "steps": tables["step"].num_rows if "step" in tables else 0,
    }
