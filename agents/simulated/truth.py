"""The truth beside the data: what every event was, in device ticks and true time, written as the simulation goes."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SPANS = pa.schema(
    [
        ("host", pa.int32()),
        ("chip", pa.int32()),  # -1: a host thread
        ("process", pa.int64()),
        ("device", pa.int64()),
        ("source", pa.int64()),
        ("seq", pa.int64()),
        ("start", pa.int64()),  # ticks of the clock of the chip (host: monotonic_raw ns)
        ("dur", pa.int64()),
        ("line", pa.int32()),
        ("kind", pa.uint8()),
        ("program", pa.int64()),
        ("op", pa.int32()),
        ("exec", pa.int64()),
        ("step", pa.int64()),
        ("true_begin_ns", pa.int64()),  # Unix ns of true time
        ("true_end_ns", pa.int64()),
        ("wall_begin_ns", pa.int64()),  # the host's wall clock as it stood
        ("wall_end_ns", pa.int64()),
    ]
)
RANGES = pa.schema(
    [
        ("host", pa.int32()),
        ("chip", pa.int32()),
        ("device", pa.int64()),
        ("tick_from", pa.int64()),
        ("tick_to", pa.int64()),
        ("true_from_ns", pa.int64()),
        ("true_to_ns", pa.int64()),
        ("rows", pa.int64()),
    ]
)
CLOCKS = pa.schema(
    [
        ("host", pa.int32()),
        ("chip", pa.int32()),
        ("device", pa.int64()),
        ("key", pa.string()),
        ("register", pa.string()),
        ("period_num", pa.int64()),
        ("period_den", pa.int64()),
        ("ppm", pa.float64()),
    ]
)
STEPS = pa.schema(
    [
        ("host", pa.int32()),
        ("step", pa.int64()),
        ("true_begin_ns", pa.int64()),
        ("wall_begin_ns", pa.int64()),
        ("data_wait_ns", pa.int64()),
        ("flops", pa.int64()),  # of all chips of the host
    ]
)
EXECUTIONS = pa.schema(
    [(name, pa.int32()) for name in ("host", "chip")]
    + [(name, pa.int64()) for name in ("device", "launch", "enqueue", "begin", "end")]  # ticks of monotonic_raw
)
DAMAGE = pa.schema(
    [
        ("kind", pa.string()),
        ("host", pa.int32()),
        ("source", pa.int64()),
        ("batch", pa.int64()),
        ("first", pa.int64()),
        ("rows", pa.int64()),
        ("at_ns", pa.int64()),
    ]
)
FAULTS = pa.schema(
    [
        ("kind", pa.string()),
        ("host", pa.int32()),
        ("chip", pa.int32()),
        ("at_s", pa.float64()),
        ("lasting_s", pa.float64()),
        ("amount", pa.float64()),
        ("count", pa.int64()),
    ]
)
HOST_CLOCKS = pa.schema(
    [("host", pa.int32())]
    + [(name, pa.int64()) for name in ("true_ns", "raw_ns", "realtime_ns")]
    + [("resets", pa.int32())]
)
"""What the clocks of a host showed at the end of each second of true time (Unix ns)."""
FILES = {
    "spans": SPANS,
    "ranges": RANGES,
    "clocks": CLOCKS,
    "host_clocks": HOST_CLOCKS,
    "steps": STEPS,
    "executions": EXECUTIONS,
    "damage": DAMAGE,
    "faults": FAULTS,
}


class Truth:
    """Parquet files of `folder`, appended row group by row group. Without a folder nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._writers: dict[str, pq.ParquetWriter] = {}
        self.wanted = folder is not None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for name, schema in FILES.items():
                self._writers[name] = pq.ParquetWriter(folder / f"{name}.parquet", schema, compression="zstd")

    def write(self, name: str, columns: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Rows of one file: columns by name, or a list of rows."""
        if not self._writers:
            return
        schema = FILES[name]
        if isinstance(columns, list):
            self._writers[name].write_table(pa.Table.from_pylist(columns, schema))
        else:
            arrays = [pa.array(columns[field.name], field.type) for field in schema]
            self._writers[name].write_table(pa.Table.from_arrays(arrays, schema=schema))

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}
