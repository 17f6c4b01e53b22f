"""The real v6e-4 capture: raw device time placed by the code every clock goes through, beside the capture's own times.

    .venv/bin/python benchmarks/clock_v6e.py

Samples are found as the tests find them (FLEETSCOPE_SAMPLES, else ../shared/samples). What is expected was read from
the file by hand before there was a line of ours (reference/xprof.md 5.3): 15.04 to 15.05 ppm on all four cores, half of
all ops displaced by more than 1 ms.
"""

import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from clocklab.anchors import ANCHORS
from clocklab.counters import Shape
from report import report

from fleetscope.agents.xspace.drafts import anchor_snapshots, clock_epoch, wall_snapshots
from fleetscope.agents.xspace.events import events_of, name_codes
from fleetscope.agents.xspace.importing import read_capture, source_of
from fleetscope.agents.xspace.planes import device_planes
from fleetscope.agents.xspace.session import in_session
from fleetscope.pipelines.align.clocks import ClockState
from fleetscope.schema.rational import apply
from fleetscope.schema.vocabulary import DEVICE_WORK

FILE = "xplane/xprof__tpu_inference_2.xplane.pb"
CLEAN_NS, DISPLACED_NS = 30_000, 1_000_000


def sample() -> Path:
    folder = os.environ.get("FLEETSCOPE_SAMPLES")
    return (Path(folder) if folder else Path(__file__).resolve().parents[2] / "shared" / "samples") / FILE


def main() -> int:
    imported = read_capture(sample())
    source, session = source_of(imported, "bench"), imported.capture.session
    clocks = ClockState()
    clocks.take(source, wall_snapshots(session.start_ns, session.stop_ns))
    planes = {plane.ordinal: plane for plane in device_planes(imported.space) if plane.platform == "tpu"}
    failed: list[str] = []
    cores: list[dict[str, Any]] = []
    ops = displaced = kept = 0
    raw_total: dict[str, int] = defaultdict(int)
    own_total: dict[str, int] = defaultdict(int)
    others: dict[str, float] = dict.fromkeys(ANCHORS, 0.0)
    for spans in imported.capture.devices:
        timed = in_session(events_of(imported.space, planes[spans.ordinal].op_lines), session, "device_offset_ps")
        raw, raw_dur = timed.events.ints("device_offset_ps"), timed.events.ints("device_duration_ps")
        own_ns = session.start_ns + timed.begin // 1000
        epoch = clock_epoch(spans.clock, f"core-{spans.ordinal}")
        clocks.take(source, anchor_snapshots(epoch, spans.anchors))
        first, last = int(raw.min()) // 1250, int((raw + raw_dur).max()) // 1250
        (segment,) = clocks.place(source, epoch, first, last, 0)
        placed = apply(raw // 1250, segment.x0, segment.y0, segment.n, segment.d)
        ppm = (segment.n * epoch.period_den / (segment.d * epoch.period_num) - 1) * 1e6
        off = own_ns - placed
        strayed, clean = int((np.abs(off) > DISPLACED_NS).sum()), int((np.abs(off) <= CLEAN_NS).sum())
        ops, displaced = ops + len(raw), displaced + strayed
        # Durations as they go into the lake: whole ticks of the device's own clock.
        work = np.isin(spans.rows.column("kind").to_numpy(), [int(kind) for kind in DEVICE_WORK])
        rows = np.sort(spans.rows.column("dur").to_numpy()[work].astype(np.int64) * 1250)
        kept += int((rows == np.sort(raw_dur)).sum()) if len(rows) == len(raw_dur) else 0
        codes, names = name_codes(timed.events, "display_name")
        for code, mine, theirs in zip(codes.tolist(), raw_dur.tolist(), timed.dur.tolist(), strict=True):
            raw_total[names[code]] += mine
            own_total[names[code]] += theirs
        order = np.argsort(raw, kind="stable")
        sane = np.abs(off) <= CLEAN_NS
        for name, anchor in ANCHORS.items():
            reads = own_ns[order]
            stated = anchor(Shape(1 << 45, 5, 4), raw[order] // 1250, reads, reads, raw[sane] // 1250)
            others[name] = max(others[name], float(np.abs(stated - placed[sane]).max()) / 1e3)
        if not 15.04 <= round(ppm, 2) <= 15.05:
            failed.append(f"core {spans.ordinal}: {ppm:.4f} ppm")
        if segment.quality == "guaranteed":
            failed.append(f"core {spans.ordinal}: placed by an estimate and called guaranteed")
        cores.append(
            {
                "core": spans.ordinal, "ppm": round(ppm, 4), "ops": len(raw), "displaced": strayed, "clean": clean,
                "clean_p99_us": round(float(np.percentile(np.abs(off[sane]), 99)) / 1e3, 1), "err_ns": segment.err_ns,
            }
        )  # fmt: skip
    ranking = {
        kind: sorted(total, key=lambda name: (-total[name], name))[:4]
        for kind, total in (("raw", raw_total), ("own", own_total))
    }
    share = displaced / ops
    if len(cores) != 4:
        failed.append(f"{len(cores)} cores")
    if share < 0.5:
        failed.append(f"{share:.3f} of ops displaced")
    if kept != ops:
        failed.append(f"{ops - kept} durations are not the raw ones")
    if ranking["raw"] == ranking["own"]:
        failed.append("the ranking of the top four ops is the same by raw and by own times")
    return report(
        "clock_v6e", round(share, 4), "share displaced", 0.5, failed=failed, cores=cores, ops=ops, durations_kept=kept,
        top_four=ranking, others_max_us={name: round(value, 1) for name, value in others.items()},
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
