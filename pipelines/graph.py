"""The one graph: plan -> read -> work -> combine -> commit. Built once, run once an epoch with the plan as its input.

    Impulse | ReadPlan | Read | Work | CombinePerKey(Combine) | Commit

`Read` is serial per partition and keeps the order of offsets; `Work` is stateless; `Combine` merges rollups;
`Commit` is one element. On FnApiRunner all before the combine is one fused stage, so chunks are never encoded and
memory holds one of them.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindow
from apache_beam.typehints.decorators import with_input_types, with_output_types
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from fleetscope.pipelines import handed
from fleetscope.pipelines.combine import merge_parts
from fleetscope.pipelines.commit import commit_epoch
from fleetscope.pipelines.elements import Chunk, Item, ItemCoder, Part
from fleetscope.pipelines.flops import shared_op_tables
from fleetscope.pipelines.plan import Plan, States
from fleetscope.pipelines.read import PartitionReader, untouched
from fleetscope.pipelines.work import ChunkWorker
from fleetscope.sinks.lake.faults import fault_point
from fleetscope.sinks.lake.objects import open_store
from fleetscope.transport.open import shared_log

_slots: dict[str, tuple[Plan, States]] = {}
"""Plan of the epoch that is about to run, by graph: a pipeline that is built once cannot carry its input."""


_EPOCH = 0
"""The one key. CombineGlobally would add it and take it off in two more stages, 4 ms of CPU an epoch each."""


def set_plan(slot: str, plan: Plan, states: States) -> None:
    handed.begin(plan.attempt)
    _slots[slot] = (plan, states)


def clear_plan(slot: str) -> None:
    plan, _ = _slots.pop(slot)
    handed.end(plan.attempt)


class _Stage(beam.DoFn):
    def __init__(self) -> None:
        """Beam's constructor has no types of its own."""

    def __dir__(self) -> list[str]:
        # Three times a run Beam asks for the signature of every method in dir() to find state and timers: 12 of the
        # 45 ms of a small epoch. Stages have neither.
        return ["process"]

    # It asks again for each method by name, ten times a stage and run: answered here without inspect.signature (2 ms).

    def _inspect_process(self) -> tuple[list[str], list[Any]]:
        return ["element"], []

    def _inspect_none(self) -> tuple[list[str], list[Any]]:
        return [], []

    _inspect_setup = _inspect_start_bundle = _inspect_finish_bundle = _inspect_teardown = _inspect_none


class ReadPlan(_Stage):
    """(partition, plan, carried state) for each partition. A graph that is built once finds the plan in its slot."""

    def __init__(self, slot: str, plan: bytes = b"", states: States | None = None) -> None:
        self._slot = slot
        self._given = (plan, dict(states or {}))

    def process(self, element: Any) -> Iterator[tuple[int, bytes, bytes]]:
        plan, states = self._given
        if not plan:
            epoch, carried = _slots[self._slot]
            plan, states = epoch.to_bytes(), dict(carried)
        for part in Plan.from_bytes(plan).partitions:
            yield part.partition, plan, states.get(part.partition, b"")


class Read(_Stage):
    """A partition's plan -> chunks of batches, then one Part with its new state."""

    def process(self, element: tuple[int, bytes, bytes]) -> Iterator[Item]:
        partition, plan_bytes, state = element
        plan = Plan.from_bytes(plan_bytes)
        part = plan.of(partition)
        if part.idle:
            yield untouched(plan_bytes, part, state)
            return
        reader = PartitionReader(plan, plan_bytes, part, state, shared_log(plan.log_url))
        yield from reader.chunks()
        fault_point("read.done")
        yield reader.outcome()


class Work(_Stage):
    """Chunks -> segments on disk and Parts. Rows of a bundle share segments: a file per chunk would be too small."""

    def __init__(self) -> None:
        self._worker: ChunkWorker | None = None

    def start_bundle(self) -> None:
        self._worker = None

    def process(self, element: Item) -> Iterator[tuple[int, Item]]:
        if isinstance(element, Chunk):
            if self._worker is None:
                plan = Plan.from_bytes(element.plan)
                self._worker = ChunkWorker(plan, open_store(plan.lake_url), shared_log(plan.log_url))
            with self._tidy():
                self._worker.work(element)
        else:
            yield _EPOCH, element

    @contextmanager
    def _tidy(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            assert self._worker is not None
            self._worker.discard()
            raise

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if self._worker is not None:
            with self._tidy():
                part = self._worker.finish()
            yield WindowedValue((_EPOCH, part), MIN_TIMESTAMP, (GlobalWindow(),))
            self._worker = None


@with_input_types(Item)
@with_output_types(Part)
class Combine(beam.CombineFn):
    """Merges Parts; rollup rows of one key become one row."""

    def __init__(self) -> None:
        """As for stages."""

    def create_accumulator(self) -> list[Part]:
        return []

    def add_input(self, accumulator: list[Part], element: Part) -> list[Part]:
        accumulator.append(element)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[list[Part]]) -> list[Part]:
        return [part for accumulator in accumulators for part in accumulator]

    def compact(self, accumulator: list[Part]) -> list[Part]:
        return [merge_parts(accumulator)]

    def extract_output(self, accumulator: list[Part]) -> Part:
        return merge_parts(accumulator)

    def get_accumulator_coder(self) -> beam.coders.Coder:
        return beam.coders.IterableCoder(ItemCoder())


class Commit(_Stage):
    """The whole epoch's Part -> its manifest. A retry finds its own attempt in place and has won."""

    def process(self, element: tuple[int, Part]) -> Iterator[bytes]:
        _, part = element
        (text,) = set(part.facts["plan"])  # each partition's reader names it
        plan = Plan.from_bytes(text.encode())
        ops = shared_op_tables(shared_log(plan.log_url), plan.programs_topic)
        manifest = commit_epoch(plan, part, open_store(plan.lake_url), ops)
        yield manifest.digest.encode()


def build(pipeline: beam.Pipeline, slot: str, plan: bytes = b"", states: States | None = None) -> PCollection[bytes]:
    """Add the graph to a pipeline; its output is the digest of the manifest it committed."""
    committed: PCollection[bytes] = (
        pipeline
        | "Impulse" >> beam.Impulse()
        | "ReadPlan" >> beam.ParDo(ReadPlan(slot, plan, states)).with_output_types(tuple[int, bytes, bytes])
        | "Read" >> beam.ParDo(Read()).with_output_types(Item)
        | "Work" >> beam.ParDo(Work()).with_output_types(tuple[int, Item])
        | "Combine" >> beam.CombinePerKey(Combine())
        | "Commit" >> beam.ParDo(Commit()).with_output_types(bytes)
    )
    return committed
