"""XSpace (XProf's capture format) as Arrow columns: ``decode(data) -> XSpace``.

The decoder reads the protobuf wire format itself and makes no Python object per event. Field numbers and meanings are
those of tsl/profiler/protobuf/xplane.proto; names of stats those of xla/tsl/profiler/utils/xplane_schema.cc. Ids are
64-bit patterns, signed here. All times are integers in the unit their name ends with.

Every string column of a *stat* in ``events`` and ``event_metadata``, and ``stats.name``, is a dictionary column, and
all of them share one dictionary: equal text has equal codes across columns and tables. Invalid UTF-8 becomes U+FFFD
and is counted in ``replaced_utf8``. Tables of one capture share their memory: a column that is kept keeps all of it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from fleetscope.native import _xspace

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

OWNER_PLANE, OWNER_EVENT_METADATA, OWNER_EVENT = 0, 1, 2
"""Values of ``stats.owner``: the table that ``stats.row`` counts in."""

FAULTS = {
    1: "a value reaches beyond the bytes there are",
    2: "a varint is longer than 10 bytes",
    3: "an impossible field tag",
    4: "a group without its end",
    5: "messages of 2 GiB or more cannot be decoded",
    6: "its columns need more memory than allowed",
    7: "out of memory",
}


class XSpaceError(ValueError):
    """The bytes are not an XSpace, or need more memory than allowed. ``fault`` is a key of FAULTS; ``offset`` the
    byte at which."""

    def __init__(self, fault: int, offset: int) -> None:
        super().__init__(f"XSpace fault {fault} at byte {offset}: {FAULTS.get(fault, 'unknown')}")
        self.fault = fault
        self.offset = offset


class XSpace:
    """One decoded capture. Tables are made on first use and share the decoder's memory."""

    def __init__(self, decoded: _xspace.Decoded) -> None:
        self._decoded = decoded

    @property
    def replaced_utf8(self) -> int:
        """Invalid UTF-8 sequences that became U+FFFD."""
        return self._decoded.replaced_utf8

    @property
    def memory_bytes(self) -> int:
        """Bytes of column memory the decoder used."""
        return self._decoded.memory_bytes

    @cached_property
    def planes(self) -> pa.RecordBatch:
        """One row a plane: plane (row number), id, name."""
        return _batch(self._decoded.planes)

    @cached_property
    def lines(self) -> pa.RecordBatch:
        """One row a line: plane, line (row number), id, display_id, name, display_name, timestamp_ns, duration_ps,
        first_event and event_count (its rows in ``events``). Lines of a plane with equal id are one timeline."""
        return _batch(self._decoded.lines)

    @cached_property
    def events(self) -> pa.RecordBatch:
        """One row an event, in file order: plane, line, metadata_id, metadata (row in ``event_metadata``, null when
        there is none), offset_ps (since the line's timestamp_ns; 0 for aggregated events), duration_ps,
        num_occurrences (null unless aggregated), then a nullable column for each stat named in
        native/xspace_decoder/layout.h: int64 or dictionary. A stat whose value has another type, or that an event
        carries twice, is in ``stats``.
        """
        return _batch(self._decoded.events)

    @cached_property
    def event_metadata(self) -> pa.RecordBatch:
        """One row an event kind: plane, id, name, display_name, metadata, and its stats: flops, model_flops,
        bytes_accessed, raw_bytes_accessed, hlo_category, program_id, symbol_id, source, source_stack, tf_op,
        deduplicated_name, shape_with_layout, memory_access_breakdown (serialised), hlo_proto (serialised
        xla.HloProto, plane /host:metadata). They hold for every event of the kind. ``child_id`` is not kept."""
        return _batch(self._decoded.event_metadata)

    @cached_property
    def stat_metadata(self) -> pa.RecordBatch:
        """One row a stat name of a plane: plane, id, name, description."""
        return _batch(self._decoded.stat_metadata)

    @cached_property
    def stats(self) -> pa.RecordBatch:
        """Every stat without a column of its own, so that none is lost: owner (OWNER_*), row (of the owner's table),
        name (null where the plane does not name it: then stat_id), kind (field number of the value in XStat: 2
        double, 3 uint64, 4 int64, 5 str, 6 bytes, 7 ref, 0 none), int_value (kinds 3 and 4 as bit pattern, id of a
        ref), double_value, str_value (kind 5, and the text a ref stands for), bytes_value, stat_id.
        """
        return _batch(self._decoded.stats)

    @property
    def errors(self) -> list[str]:
        """What the producer reported as errors."""
        return self._messages(0)

    @property
    def warnings(self) -> list[str]:
        return self._messages(1)

    @property
    def hostnames(self) -> list[str]:
        return self._messages(2)

    def _messages(self, kind: int) -> list[str]:
        batch = _batch(self._decoded.messages)
        return [text for of, text in zip(*(column.to_pylist() for column in batch.columns), strict=True) if of == kind]


def decode(data: Buffer, *, memory_limit: int = 0) -> XSpace:
    """Decodes a serialised XSpace (any contiguous buffer, not kept). The GIL is released meanwhile.

    ``memory_limit`` bounds the columns in bytes; 0 stands for 64 x the input + 16 MiB (real captures need 3 to 8 x).
    Raises XSpaceError; the input never crashes it.
    """
    decoded = _xspace.decode(data, memory_limit)
    if decoded.fault:
        raise XSpaceError(decoded.fault, decoded.fault_offset)
    return XSpace(decoded)


def _batch(table: _xspace.Table) -> pa.RecordBatch:
    # Here, because the profiler imports this package into user processes without pyarrow.
    import pyarrow as pa

    return pa.record_batch(table)
