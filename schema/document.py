"""Pages of docs/ that follow from this room. `python -m fleetscope.schema.document docs` (make docs) writes them.

A test compares the committed pages with these functions, so a page cannot fall behind the code.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from fleetscope.schema import columns, errors, hardware, metrics, otlp, payloads, tables

_KIND = {
    "raw": "appended; rows are never merged",
    "rollup": "rows of one key are merged on the way in and on reading",
    "dimension": "the newest row of a key counts",
    "log": "appended, small",
}


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _fields(schema: pa.Schema) -> Iterator[str]:
    yield _row("column", "type", "unit", "meaning")
    yield "|---|---|---|---|"
    for field in schema:
        kind = str(field.type).replace("halffloat", "float16")
        unit = field.metadata[b"unit"].decode()
        meaning = field.metadata[b"meaning"].decode()
        if columns.is_later(field):
            meaning += f" (since format {field.metadata[b'since'].decode()})"
        yield _row(field.name, kind + (", may be null" if field.nullable else ""), unit, meaning)


def tables_page() -> str:
    """docs/format/tables.md"""
    lines = [
        "# Tables of the lake",
        "",
        "Written from `schema/tables.py` by `make docs`. Times are int64 ns of fleet time (Unix epoch); identities",
        "are 64-bit hashes of natural keys (`schema/identity.py`). `Kind` and flag bits: `schema/vocabulary.py`.",
        f"The format is {columns.FORMAT}. Columns are only ever added: a file of an earlier one lacks them,",
        "and readers take 0, an empty text, or null where the column may be null.",
    ]
    for spec in tables.TABLES.values():
        key = f" Key: {', '.join(f'`{name}`' for name in spec.key)}." if spec.key else ""
        partitions = ", ".join(f"`{name}`" for name in spec.partitions) or "none"
        lines += ["", f"## {spec.name}", "", f"{spec.kind}: {_KIND[spec.kind]}.{key} Partitions: {partitions}.", ""]
        lines += _fields(spec.schema)
    lines += ["", "# Payloads on the wire", "", "## WIRE_SPANS", "", *_fields(payloads.WIRE_SPANS)]
    lines += ["", "## WIRE_SAMPLES", "", *_fields(payloads.WIRE_SAMPLES)]
    lines += ["", "## PROGRAM_OPS (ProgramChunk.ops)", "", *_fields(tables.PROGRAM_OPS)]
    return "\n".join(lines) + "\n"


def _label(name: str, values: Sequence[str]) -> str:
    return f"{name} ({', '.join(values)})" if values else name


def _type(metric: metrics.Metric) -> str:
    return metric.type if metric.native is None else f"{metric.type}, native schema {metric.native}"


def metrics_page() -> str:
    """docs/metrics.md"""
    lines = ["# Metrics", "", "Written from `schema/metrics.json` by `make docs`.", ""]
    lines += [_row("name", "type", "unit", "labels", "from", "since", "meaning"), "|---|---|---|---|---|---|---|"]
    for metric in sorted(metrics.metrics().values(), key=lambda metric: (metric.source, metric.name)):
        labels = ", ".join(_label(name, metric.values.get(name, ())) for name in metric.labels)
        lines.append(
            _row(f"`{metric.name}`", _type(metric), metric.unit, labels, metric.source, metric.since, metric.help)
        )
    return "\n".join(lines) + "\n"


def otlp_page() -> str:
    """docs/otlp.md"""
    lines = [
        "# Metrics by OTLP",
        "",
        "Written from `schema/otlp.json` by `make docs`. `otlp.endpoint` makes agent and exporter push what stands on",
        "their pages, beside them (extra `fleetscope[otlp]`; docs/design/0023-histograms-and-otlp.md). These go by the",
        "names of OpenTelemetry's conventions, the host (`host.name`) in the resource; `hw.type` is `gpu` for a TPU,",
        "too, for want of a word. All others go by their own names, units and labels ([metrics](metrics.md)), so that",
        "Prometheus' OTLP endpoint makes of them the series that a scrape has. Sums are cumulative.",
        "",
        _row("metric", "goes by", "instrument", "unit", "attributes"),
        "|---|---|---|---|---|",
    ]
    kinds = {"counter": "counter", "updown": "up-down counter", "gauge": "gauge"}
    for name, told in otlp.conventions().items():
        attributes = ", ".join(f"{key}: {text}" for key, text in told.attributes)
        lines.append(_row(f"`{name}`", f"`{told.name}`", kinds[told.kind], told.unit, attributes))
    return "\n".join(lines) + "\n"


def errors_page() -> str:
    """docs/errors.md"""
    lines = [
        "# Errors",
        "",
        "Written from `schema/errors.json` by `make docs`. The text of an error begins with its number.",
        "",
    ]
    lines += [_row("number", "name", "a caller can", "meaning"), "|---|---|---|---|"]
    can = {
        "retryable": "try again",
        "backpressure": "slow down, or drop and count",
        "permanent": "not cure it by repeating",
        "unknown": "look whether it happened",
    }
    for name, entry in sorted(errors.catalogue().items(), key=lambda item: int(item[1]["number"])):
        lines.append(_row(f"FS{entry['number']}", name, can[entry["action"]], entry["meaning"]))
    return "\n".join(lines) + "\n"


def hardware_page() -> str:
    """docs/hardware.md"""
    lines = ["# Hardware", "", "Written from `schema/hardware.json` by `make docs`. Dense peaks of a chip.", ""]
    lines += [_row("SKU", "peak FLOP/s", "memory bandwidth", "source"), "|---|---|---|---|"]
    for sku in hardware.skus().values():
        peaks = ", ".join(f"{dtype} {value / 1e12:g} T" for dtype, value in sku.peak_flops.items())
        lines.append(_row(sku.sku, peaks, f"{sku.hbm_bandwidth / 1e9:g} GB/s", sku.source))
    return "\n".join(lines) + "\n"


PAGES = {
    "format/tables.md": tables_page,
    "metrics.md": metrics_page,
    "otlp.md": otlp_page,
    "errors.md": errors_page,
    "hardware.md": hardware_page,
}


def main() -> None:
    """Write the pages into the folder named on the command line."""
    parser = argparse.ArgumentParser(description="Write the pages of docs/ that follow from schema/.")
    parser.add_argument("docs", type=Path, help="the docs folder")
    folder = parser.parse_args().docs
    for name, page in PAGES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page())


if __name__ == "__main__":
    main()
