"""Arrow schemas of everything stored, declared once: lake tables (DESIGN 3.4) and what of them is carried as it is
stored. Each field names its unit and meaning in its metadata. A Batch's payloads: `payloads.py`. All times are int64: a
float never holds a timestamp.
"""

from dataclasses import dataclass

import pyarrow as pa

from fleetscope.schema.columns import field as _f

_I64, _I32, _I16, _U8, _U32, _F64 = pa.int64(), pa.int32(), pa.int16(), pa.uint8(), pa.uint32(), pa.float64()
_STR = pa.string()
_LABELS = pa.map_(pa.string(), pa.string())
_COUNTS = pa.map_(pa.string(), pa.int64())

SPANS = pa.schema(
    [
        _f("t_ns", _I64, "ns", "begin in fleet time (Unix epoch)"),
        _f("t_sub", _I32, "tick", "begin ticks minus the smallest ticks that map to t_ns"),
        _f("dur_ns", _I64, "ns", "N(ticks): duration by the clock's own nominal period"),
        _f("dur_sub", _I32, "tick", "duration ticks minus the smallest ticks of dur_ns"),
        _f("child_ns", _I64, "ns", "time of directly nested spans; self time = dur_ns - child_ns"),
        _f("map", _I64, "id", "clock-map segment that placed it: clock_maps.map"),
        _f("host", _I64, "id", "hosts.host"),
        _f("process", _I64, "id", "processes.process"),
        _f("device", _I64, "id", "devices.device; 0 for a host thread"),
        _f("line", _I32, "", "line of the device or thread of the process"),
        _f("depth", _I16, "", "0 for an outermost span of its line"),
        _f("kind", _U8, "Kind", "what it is"),
        _f("program", _I64, "id", "programs.program, or names.program for host annotations"),
        _f("exec", _I64, "", "execution of the program on that device; -1 unknown"),
        _f("op", _I32, "ordinal", "ops.op"),
        _f("step", _I64, "", "user's step; -1 unknown"),
        _f("flow", _I64, "id", "0 none"),
        _f("weight", _I32, "", "as in WIRE_SPANS"),
        _f("flags", _U32, "SpanFlag", "quality bits"),
        _f("seq", _I64, "", "sequence number of the event in its source"),
        _f("capture", _I64, "id", "windows.window it came from; 0 none"),
    ]
)

SAMPLES = pa.schema(
    [
        _f("t_ns", _I64, "ns", "fleet time"),
        _f("map", _I64, "id", "clock_maps.map"),
        _f("host", _I64, "id", "hosts.host"),
        _f("process", _I64, "id", "processes.process"),
        _f("device", _I64, "id", "devices.device; 0 none"),
        _f("series", _I64, "id", "series.series"),
        _f("value_int", _I64, "series unit", "value, when integral", null=True),
        _f("value_float", _F64, "series unit", "value, when not integral", null=True),
        _f("flags", _U32, "", "quality bits"),
        _f("seq", _I64, "", "sequence number of the event in its source"),
    ]
)

SPAN_ARGS = pa.schema(
    [
        _f("t_ns", _I64, "ns", "begin of the span"),
        _f("process", _I64, "id", "with seq: the span"),
        _f("seq", _I64, "", "with process: the span"),
        _f("args", _STR, "json", "arguments of the annotation"),
    ]
)

LINKS = pa.schema(
    [
        _f("t_ns", _I64, "ns", "begin of the span"),
        _f("t_sub", _I32, "tick", "as in spans"),
        _f("dur_ns", _I64, "ns", "of the span"),
        _f("map", _I64, "id", "clock_maps.map"),
        _f("host", _I64, "id", "hosts.host"),
        _f("process", _I64, "id", "with seq: the span"),
        _f("line", _I32, "", "thread of the process"),
        _f("kind", _U8, "Kind", "of the span"),
        _f("program", _I64, "id", "names.program: its name"),
        _f("step", _I64, "", "user's step it ran in; -1 unknown"),
        _f("flags", _U32, "SpanFlag", "quality bits"),
        _f("seq", _I64, "", "with process: the span"),
        _f("role", _U8, "LinkRole", "produces, consumes, or both"),
        _f("context_type", _I32, "", "what the id counts; 0 to 17 as in XLA's TraceMe (schema.vocabulary)"),
        _f("context_id", _I64, "id", "64 bits; spans with the same type and id belong together"),
    ]
)
"""A row a link of a span. What stitching needs stands in it: `spans`, a thousand rows a link, is not read."""

_HISTOGRAM = [
    _f("hist_index", pa.list_(_I16), "", "bucket i holds (2^(i/32), 2^((i+1)/32)] ns; -32768 holds zero"),
    _f("hist_count", pa.list_(_I64), "", "spans in the bucket"),
]

OP_10S = pa.schema(
    [
        _f("t_ns", _I64, "ns", "begin of the 10 s window that holds the spans' ends"),
        _f("host", _I64, "id", "hosts.host (a function of process, kept for pruning)"),
        _f("process", _I64, "id", "key"),
        _f("device", _I64, "id", "key for modules and collectives, else 0"),
        _f("kind", _U8, "Kind", "key"),
        _f("program", _I64, "id", "key"),
        _f("op", _I32, "ordinal", "key"),
        _f("weight", _I32, "", "key; 0 rows are estimates from profiler windows and never added to others"),
        _f("count", _I64, "", "spans"),
        _f("sum_ns", _I64, "ns", "sum of durations"),
        _f("child_ns", _I64, "ns", "sum of child time; self = sum_ns - child_ns"),
        _f("sumsq_hi", _I64, "ns^2 * 2^32", "sum of d^2 >> 32"),
        _f("sumsq_lo", _I64, "ns^2", "sum of d^2 mod 2^32"),
        _f("min_ns", _I64, "ns", "shortest"),
        _f("max_ns", _I64, "ns", "longest"),
        *_HISTOGRAM,
        _f("windows", _I64, "", "sampling units (profiler window x device) with such a span"),
        _f("executions", _I64, "", "executions of the program in those units"),
        _f("duty_q30", _I64, "2^-30", "sum over spans of d / (W - d): / windows looked = share of time"),
        _f("duty_sq_hi", _I64, "2^-60 * 2^32", "sum over units of duty^2 >> 32"),
        _f("duty_sq_lo", _I64, "2^-60", "sum over units of duty^2 mod 2^32"),
        _f("rate_uhz", _I64, "1e-6 / s", "sum over spans of 1 / (W - d): / windows looked = occurrences a second"),
        _f("time_sq_hi", _I64, "ns^2 * 2^32", "sum over units of (op time)^2 >> 32"),
        _f("time_sq_lo", _I64, "ns^2", "sum over units of (op time)^2 mod 2^32"),
        _f("time_exec", _I64, "ns", "sum over units of op time x executions"),
        _f("exec_sq", _I64, "", "sum over units of executions^2"),
        _f("rate_sq_hi", _I64, "1e-12 / s^2 * 2^32", "sum over units of rate^2 >> 32", since=2),
        _f("rate_sq_lo", _I64, "1e-12 / s^2", "sum over units of rate^2 mod 2^32", since=2),
        _f("whole_q30", _I64, "2^-30", "sum over spans in whole executions of d / (W - their length)", since=2),
        _f("whole_sq_hi", _I64, "2^-60 * 2^32", "sum over units of whole^2 >> 32", since=2),
        _f("whole_sq_lo", _I64, "2^-60", "sum over units of whole^2 mod 2^32", since=2),
        _f("whole_rate_hi", _I64, "2^-30 1e-6 / s * 2^32", "sum of whole x rate of whole executions, >> 32", since=2),
        _f("whole_rate_lo", _I64, "2^-30 1e-6 / s", "the same mod 2^32", since=2),
        _f("near_q30", _I64, "2^-30", "part of duty in spans d > 3/4 W, the longest as if W - d were W / 64", since=2),
    ]
)

PROGRAM_TOTAL = -1
"""`op` of a row of OP_10S (kind MODULE, weight 0, counts no span) with a program's sums over profiler windows: busy
time of its ops in duty and whole, whole executions in executions and rate."""

OP_10S_KEY = ("t_ns", "host", "process", "device", "kind", "program", "op", "weight")

DEVICE_10S = pa.schema(
    [
        _f("t_ns", _I64, "ns", "begin of the 10 s window"),
        _f("host", _I64, "id", "hosts.host"),
        _f("process", _I64, "id", "key"),
        _f("device", _I64, "id", "key"),
        _f("weight", _I32, "", "key: 1 seen whole, 0 from profiler windows"),
        _f("busy_ns", _I64, "ns", "union of the op intervals"),
        _f("compute_ns", _I64, "ns", "instants whose class is compute"),
        _f("collective_ns", _I64, "ns", "exposed: nothing computes under it"),
        _f("collective_total_ns", _I64, "ns", "union of collective intervals"),
        _f("copy_ns", _I64, "ns", "exposed"),
        _f("copy_total_ns", _I64, "ns", "union of copy intervals"),
        _f("infeed_ns", _I64, "ns", "exposed"),
        _f("outfeed_ns", _I64, "ns", "exposed"),
        _f("other_ns", _I64, "ns", "busy with no known class"),
        _f("observed_ns", _I64, "ns", "how much of the window was looked at"),
        _f("occupancy_ns", _I64, "ns", "program in flight (upper bound of busy) of watched_ns, never added to busy"),
        _f("executions", _I64, "", "program executions that end here"),
        _f("flops", _I64, "FLOP", "executed, of ops whose count is known"),
        _f("model_flops", _I64, "FLOP", "without recomputation"),
        _f("flops_known_ns", _I64, "ns", "self time of ops whose FLOPs are known (0 counts as known)"),
        _f("op_ns", _I64, "ns", "self time of all ops: flops_known_ns / op_ns is the FLOP coverage"),
        _f("bytes_hbm", _I64, "byte", "moved to and from device memory, where known"),
        _f("peak_flop", _I64, "FLOP", "observed time x nominal peak of the dtype"),
        _f("peak_flop_clock", _I64, "FLOP", "the same at the clock the chip ran at; 0 unknown"),
        _f("err_ns", _I64, "ns", "worst stated alignment error of a row"),
        _f("unsynced", _I64, "", "rows placed by the wall clock alone: nothing ties the device's clock to the host's"),
        _f("dropped", _I64, "", "0: a source counts losses for all its lines, none is a device's (completeness.lost)"),
        _f("windows", _I64, "", "profiler windows looked at"),
        _f("busy_sq_hi", _I64, "ns^2 * 2^32", "sum over windows of busy^2 >> 32"),
        _f("busy_sq_lo", _I64, "ns^2", "sum over windows of busy^2 mod 2^32"),
        _f("duty_q30", _I64, "2^-30", "sum over windows of estimated busy share (1 / (W - d) weights)"),
        _f("duty_sq_hi", _I64, "2^-60 * 2^32", "sum over windows of duty^2 >> 32"),
        _f("duty_sq_lo", _I64, "2^-60", "sum over windows of duty^2 mod 2^32"),
        _f("sparse_core_ns", _I64, "ns", "exposed: nothing computes on the main cores under it", since=2),
        _f("watched_ns", _I64, "ns", "how much of it the executions were seen (shim); no op was looked at", since=2),
        _f("queue_ns", _I64, "ns", "sum over executions of begin - enqueue", since=2),
        _f("idle_input_ns", _I64, "ns", "idle (docs/design/0011) while the host waited for input", since=2),
        _f("idle_dispatch_ns", _I64, "ns", "idle while the host was dispatching", since=2),
        _f("idle_compile_ns", _I64, "ns", "idle while the host was compiling", since=2),
        _f("idle_checkpoint_ns", _I64, "ns", "idle while the host was saving", since=2),
        _f("idle_unknown_ns", _I64, "ns", "idle for no known cause; a cause found later takes from it", since=2),
        _f("run_ahead_max", _I64, "", "most executions enqueued and not yet complete", since=2),
        _f("watched_ran_ns", _I64, "ns", "sum of durations of executions that end here (shim)", since=2),
        _f("watched_known_ns", _I64, "ns", "of those whose programs' FLOPs are all known", since=2),
        _f("watched_flops", _I64, "FLOP", "executed by those; never added to flops, which ops tell", since=2),
        _f("watched_model_flops", _I64, "FLOP", "without recomputation", since=2),
        _f("watched_peak_flop", _I64, "FLOP", "watched_ns x nominal peak of the dtype", since=2),
        _f("watched_peak_flop_clock", _I64, "FLOP", "the same at the clock the chip ran at; 0 unknown", since=2),
    ]
)
DEVICE_10S_KEY = ("t_ns", "host", "process", "device", "weight")

STEP = pa.schema(
    [
        _f("t_ns", _I64, "ns", "begin of the step in fleet time"),
        _f("dur_ns", _I64, "ns", "begin to begin of the next step"),
        _f("run", _I64, "id", "runs.run"),
        _f("attempt", _I64, "id", "runs.attempt"),
        _f("host", _I64, "id", "hosts.host"),
        _f("process", _I64, "id", "processes.process"),
        _f("rank", _I32, "", "rank in the run"),
        _f("step", _I64, "", "user's number; ordinal when inferred"),
        _f("source", _STR, "", "declared | inferred"),
        _f("program", _I64, "id", "dominant program"),
        _f("executions", _I64, "", "program executions begun in it"),
        _f("data_wait_ns", _I64, "ns", "waiting for input"),
        _f("h2d_ns", _I64, "ns", "host to device transfer, and nothing of the other three kinds of wait"),
        _f("dispatch_ns", _I64, "ns", "in the step annotation, or in launches, and in nothing of the others"),
        _f("compile_ns", _I64, "ns", "compiling"),
        _f("checkpoint_ns", _I64, "ns", "saving"),
        _f("compute_ns", _I64, "ns", "device time by class, where covered"),
        _f("collective_ns", _I64, "ns", "exposed"),
        _f("copy_ns", _I64, "ns", "exposed"),
        _f("covered_ns", _I64, "ns", "how much of the step devices were observed"),
        _f("flags", _U32, "StepFlag", ""),
        _f("occupancy_ns", _I64, "ns", "devices with a program in flight, of watched_ns", since=2),
        _f("watched_ns", _I64, "ns", "how much of the step executions of its devices were seen (shim)", since=2),
        _f("queue_ns", _I64, "ns", "sum over executions of begin - enqueue", since=2),
        _f("d2h_ns", _I64, "ns", "device to host transfer, likewise", since=2),
        _f("sparse_core_ns", _I64, "ns", "exposed", since=2),
        _f("idle_ns", _I64, "ns", "watched_ns - occupancy_ns: the exposed wait", since=2),
        _f("confidence", _I32, "1/1000", "of an inferred step; 1000: declared, or as sure", since=2),
    ]
)
STEP_KEY = ("attempt", "process", "step", "t_ns")

STEP_PROGRAM = pa.schema(
    [
        _f("t_ns", _I64, "ns", "begin of the step in fleet time"),
        _f("host", _I64, "id", "hosts.host"),
        _f("process", _I64, "id", "key"),
        _f("attempt", _I64, "id", "key: runs.attempt"),
        _f("step", _I64, "", "key: step.step"),
        _f("program", _I64, "id", "key: programs.program, or as in program_loads.program_id"),
        _f("executions", _I64, "", "of the program, begun in the step; of all programs: step.executions"),
        _f("dur_ns", _I64, "ns", "sum of their durations"),
    ]
)
"""Which programs a step ran: each execution has FLOPs of its own (training and evaluation, gradient accumulation)."""
STEP_PROGRAM_KEY = ("attempt", "process", "step", "t_ns", "program")

COMPLETENESS = pa.schema(
    [
        _f("t_ns", _I64, "ns", "begin of the 10 s window"),
        _f("host", _I64, "id", "key"),
        _f("observed", _I64, "", "batches that arrived with their end in it"),
        _f("events", _I64, "", "events in them"),
        _f("lost", _I64, "", "events known lost (dropped at the source, by the source's own report)"),
        _f("late", _I64, "", "events that arrived after the window was reported"),
        _f("err_ns", _I64, "ns", "worst stated alignment error"),
    ]
)
COMPLETENESS_KEY = ("t_ns", "host")

LEDGER = pa.schema(
    [
        _f("now_ns", _I64, "ns", "`now` of the epoch that wrote it"),
        _f("chain", _I32, "", "chain"),
        _f("epoch", _I64, "", "manifest number"),
        _f("source", _I64, "id", "source of the numbers"),
        _f("host", _I64, "id", "hosts.host"),
        _f("process", _I64, "id", "processes.process"),
        _f("produced", _I64, "", "cumulative, by the source's own count"),
        _f("appended", _I64, "", "cumulative: highest event number seen"),
        _f("dropped", _COUNTS, "", "cumulative by reason, by the source's own count"),
        _f("stored", _I64, "", "cumulative"),
        _f("dead_lettered", _I64, "", "cumulative"),
        _f("duplicate", _I64, "", "cumulative events of batches taken before"),
        _f(
            "gaps",
            pa.list_(pa.struct([pa.field("first", _I64), pa.field("last", _I64)])),
            "",
            "open gaps, inclusive event numbers",
        ),
        _f(
            "lost",
            pa.list_(pa.struct([pa.field("first", _I64), pa.field("last", _I64)])),
            "",
            "gaps closed as lost in this epoch",
        ),
    ]
)

DEAD_LETTER = pa.schema(
    [
        _f("now_ns", _I64, "ns", "`now` of the epoch"),
        _f("topic", _STR, "", ""),
        _f("partition", _I32, "", ""),
        _f("offset", _I64, "", ""),
        _f("error", _I32, "", "number in errors.json"),
        _f("message", _STR, "", "what was wrong, naming the field"),
        _f("source", _I64, "id", "0 when the header could not be read"),
        _f("rows", _I64, "", "events it claimed; 0 when the header could not be read"),
        _f("value", pa.binary(), "", "the bytes as they came"),
    ]
)

WINDOWS = pa.schema(
    [
        _f("window", _I64, "id", "key"),
        _f("host", _I64, "id", "hosts.host"),
        _f("process", _I64, "id", "processes.process"),
        _f("device", _I64, "id", "devices.device"),
        _f("t_ns", _I64, "ns", "begin in fleet time"),
        _f("length_ns", _I64, "ns", "W"),
        _f("executions", _I64, "", "wholly inside"),
        _f("step", _I64, "", "at which it opened; -1 unknown"),
        _f("xspace_bytes", _I64, "byte", "size of the session's result"),
        _f("stop_ns", _I64, "ns", "time its own stop took"),
        _f("open_delay_ns", _I64, "ns", "random delay after the step's start"),
        _f("complete", pa.bool_(), "", "nothing was sampled away"),
    ]
)

HOSTS = pa.schema(
    [
        _f("host", _I64, "id", "key"),
        _f("cluster", _STR, "", ""),
        _f("name", _STR, "", ""),
        _f("boot_id", _STR, "", "newest seen"),
        _f("os", _STR, "", ""),
        _f("cpus", _I32, "", ""),
        _f("memory_bytes", _I64, "byte", ""),
        _f("agent_version", _STR, "", ""),
        _f("labels", _LABELS, "", ""),
        _f("seen_ns", _I64, "ns", "newest announcement; the newest row of a key wins"),
    ]
)
PROCESSES = pa.schema(
    [
        _f("process", _I64, "id", "key"),
        _f("host", _I64, "id", "hosts.host"),
        _f("pid", _I64, "", ""),
        _f("run", _I64, "id", "runs.run"),
        _f("attempt", _I64, "id", "runs.attempt"),
        _f("run_name", _STR, "", ""),
        _f("attempt_name", _STR, "", ""),
        _f("rank", _I32, "", ""),
        _f("world_size", _I32, "", ""),
        _f("command", _STR, "", ""),
        _f("python", _STR, "", ""),
        _f("jax", _STR, "", ""),
        _f("jaxlib", _STR, "", ""),
        _f("start_ns", _I64, "ns", ""),
        _f("end_ns", _I64, "ns", "0 while it runs"),
        _f("tenant", _STR, "", ""),
        _f("labels", _LABELS, "", ""),
        _f("seen_ns", _I64, "ns", ""),
    ]
)
DEVICES = pa.schema(
    [
        _f("device", _I64, "id", "key"),
        _f("host", _I64, "id", "hosts.host"),
        _f("key", _STR, "", "natural key"),
        _f("platform", _STR, "", ""),
        _f("sku", _STR, "", "key in hardware.json or the runtime's word"),
        _f("local_name", _STR, "", ""),
        _f("local_ordinal", _I32, "", ""),
        _f("partition", _STR, "", ""),
        _f("coords", _STR, "", ""),
        _f("seen_ns", _I64, "ns", ""),
    ]
)
RUNS = pa.schema(
    [
        _f("run", _I64, "id", "key with attempt"),
        _f("attempt", _I64, "id", ""),
        _f("cluster", _STR, "", ""),
        _f("name", _STR, "", ""),
        _f("attempt_name", _STR, "", ""),
        _f("start_ns", _I64, "ns", ""),
        _f("end_ns", _I64, "ns", "0 while one of its processes runs"),
        _f("tenant", _STR, "", ""),
        _f("labels", _LABELS, "", ""),
        _f("mesh", _STR, "", ""),
        _f("declared_flops_per_step", _F64, "FLOP", "0: not declared"),
        _f("seen_ns", _I64, "ns", ""),
    ]
)
SERIES = pa.schema(
    [
        _f("series", _I64, "id", "key"),
        _f("name", _STR, "", ""),
        _f("unit", _STR, "", ""),
        _f("monotonic", pa.bool_(), "", ""),
        _f("labels", _LABELS, "", ""),
        _f("seen_ns", _I64, "ns", ""),
    ]
)
LINES = pa.schema(
    [
        _f("host", _I64, "id", ""),
        _f("process", _I64, "id", "key"),
        _f("device", _I64, "id", "key; 0 a thread"),
        _f("line", _I32, "", "key"),
        _f("name", _STR, "", ""),
        _f("seen_ns", _I64, "ns", ""),
    ]
)
NAMES = pa.schema(
    [_f("program", _I64, "id", "key"), _f("name", _STR, "", "of a host annotation"), _f("seen_ns", _I64, "ns", "")]
)
PROGRAM_LOADS = pa.schema(
    [
        _f("process", _I64, "id", "key"),
        _f("program_id", _I64, "id", "key: the module's id in that process, or a provisional program"),
        _f("program", _I64, "id", "fingerprint"),
        _f("module", _STR, "", ""),
        _f("at_ns", _I64, "ns", "from when"),
        _f("seen_ns", _I64, "ns", ""),
    ]
)
PROGRAMS = pa.schema(
    [
        _f("program", _I64, "id", "key"),
        _f("module", _STR, "", "name, e.g. jit_train_step"),
        _f("ops", _I32, "", "rows in ops"),
        _f("source", _STR, "", "hlo | xplane_metadata | provisional"),
        _f("flops", _I64, "FLOP", "one execution; of known ops", null=True),
        _f("model_flops", _I64, "FLOP", "without recomputation", null=True),
        _f("flops_known", pa.bool_(), "", "every op's count is known"),
        _f("seen_ns", _I64, "ns", ""),
        _f("flops_min", _I64, "FLOP", "at least; what unknown ops do is not in it", null=True, since=2),
        _f("flops_max", _I64, "FLOP", "at most; null: no bound is known", null=True, since=2),
        _f("transcendentals", _I64, "", "exp, tanh and the like, one execution; no FLOPs", null=True, since=2),
        _f("wire_bytes", _I64, "byte", "sent by a device in collectives, one execution", null=True, since=2),
        _f("unknown", _STR, "", "opcodes whose FLOPs are not known, custom calls with target", since=2),
    ]
)

PROGRAM_OPS = pa.schema(
    [
        _f("op", _I32, "ordinal", "instruction's ordinal in the module's canonical order"),
        _f("name", _STR, "", "HLO instruction name, e.g. fusion.12"),
        _f("opcode", _STR, "", "HLO opcode"),
        _f("category", _STR, "", "HLO category as XProf names it"),
        _f("kind", _U8, "Kind", ""),
        _f("computation", _I32, "ordinal", "ordinal of its computation"),
        _f("entry", pa.bool_(), "", "its computation is the entry"),
        _f("shape", _STR, "", "result shape with element type"),
        _f("operands", pa.list_(_I32), "ordinal", "ops it reads"),
        _f("called", pa.list_(_I32), "ordinal", "computations it calls"),
        _f("trip_count", _I64, "", "of a while loop, where XLA knows it", null=True),
        _f("dims", _STR, "json", "dot / convolution dimension numbers, window, custom-call target and the like"),
        _f("op_name", _STR, "", "framework op, e.g. jit(train_step)/dot_general"),
        _f("source_file", _STR, "", ""),
        _f("source_line", _I32, "", "0 unknown"),
        _f(
            "declared_flops",
            _I64,
            "FLOP",
            "what the capture or the compiler claims, one execution of the op",
            null=True,
        ),
        _f("declared_model_flops", _I64, "FLOP", "", null=True),
        _f("declared_bytes", _I64, "byte", "bytes accessed, all memory spaces", null=True),
        _f("declared_bytes_hbm", _I64, "byte", "memory space 1, read + write", null=True),
    ]
)
"""Rows of one program as agents ship them (ProgramChunk.ops): structure, never the raw HLO proto."""

OPS = pa.schema(
    [
        _f("program", _I64, "id", "key"),
        *[
            PROGRAM_OPS.field(name)
            for name in ("op", "name", "opcode", "category", "kind", "shape", "op_name", "source_file", "source_line")
        ],
        _f("flops", _I64, "FLOP", "one occurrence, by our cost pass, else declared", null=True),
        _f("model_flops", _I64, "FLOP", "without recomputation", null=True),
        _f("flops_source", _STR, "", "dot | convolution | fusion | elementwise | declared | unknown"),
        _f("bytes_accessed", _I64, "byte", "", null=True),
        _f("bytes_hbm", _I64, "byte", "", null=True),
        _f("dtype", _STR, "", "dtype whose peak applies"),
        _f("seen_ns", _I64, "ns", ""),
        _f("flops_min", _I64, "FLOP", "at least, where branches differ or a part is unknown", null=True, since=2),
        _f("flops_max", _I64, "FLOP", "at most; null: no bound is known", null=True, since=2),
        _f("transcendentals", _I64, "", "exp, tanh and the like, one occurrence; no FLOPs", null=True, since=2),
        _f("wire_bytes", _I64, "byte", "sent by a device in collectives, one occurrence", null=True, since=2),
        _f("bytes_by_space", _COUNTS, "byte", "hbm, alternate (VMEM), host: read + write", null=True, since=2),
        _f("unknown", _STR, "", "opcodes whose FLOPs are not known, custom calls with target", since=2),
        _f("entry", pa.bool_(), "", "of the entry computation: each execution of the program runs it", since=2),
    ]
)

CLOCK_MAPS = pa.schema(
    [
        _f("map", _I64, "id", "key: one segment"),
        _f("epoch", _I64, "id", "clock epoch it converts"),
        _f("host", _I64, "id", ""),
        _f("device", _I64, "id", "0 for a host clock"),
        _f("clock", _STR, "", "name of the clock"),
        _f("version", _I64, "", "a better map of the same range has a higher one"),
        _f("x0", _I64, "tick", "t = y0 + floor((x - x0) * n / d)"),
        _f("y0", _I64, "ns", ""),
        _f("n", _I64, "ns", "0 < n < 2^31"),
        _f("d", _I64, "tick", "0 < d < 2^31"),
        _f("valid_from", _I64, "tick", "half-open"),
        _f("valid_to", _I64, "tick", ""),
        _f("err_ns", _I64, "ns", "bound of |true - stated| against the reference named by quality; -1 unknown"),
        _f(
            "quality",
            _STR,
            "",
            "guaranteed | statistical | host-only | unsynced | extrapolated (if no wall clock was set meanwhile)",
        ),
        _f("period_num", _I64, "ns", "nominal period, for durations"),
        _f("period_den", _I64, "tick", ""),
        _f("seen_ns", _I64, "ns", ""),
        _f("ref", _I64, "id", "clock epoch it converts to; 0: fleet time", since=2),
        _f("lo_ns", _I64, "ns", "least of true - stated, proved; of quality guaranteed only", since=2),
        _f("hi_ns", _I64, "ns", "greatest of true - stated, proved", since=2),
        _f("sigma_ns", _I64, "ns", "one sigma of the stated value; 0 unknown", since=2),
        _f("method", _STR, "", "bracket | enqueue | filter | smoother | live | wall | reference | utc", since=2),
        _f("final", pa.bool_(), "", "no better one will come", since=2),
        _f("reference", _I64, "id", "clock epoch that lo_ns and hi_ns are relative to, where ref is 0", since=2),
    ]
)

CLOCK_VERDICTS = pa.schema(
    [
        _f("verdict", _I64, "id", "key"),
        _f("t_ns", _I64, "ns", "fleet time from which on it holds"),
        _f("end_ns", _I64, "ns", "fleet time until which it is proved or was seen"),
        _f("host", _I64, "id", "hosts.host; 0 where no host is named"),
        _f("epoch", _I64, "id", "clock epoch; 0 none"),
        _f(
            "kind",
            _STR,
            "",
            "step | contradiction, inconsistent (nothing of the host is proved) | collective (false ids)",
        ),
        _f("size_ns", _I64, "ns", "how far the clock went, or by how much a cycle of constraints is negative"),
        _f("hosts", pa.list_(pa.int64()), "", "the cycle that is the proof, where there is one"),
        _f("version", _I64, "", "hop in which it was found"),
        _f("seen_ns", _I64, "ns", ""),
    ]
)

CLOCK_EDGES = pa.schema(
    [
        _f("host", _I64, "id", "key: hosts.host"),
        _f("peer", _I64, "id", "key: hosts.host"),
        _f("asymmetry_ns", _I64, "ns", "delay from host to peer minus delay back, as far as clocks do not explain it"),
        _f("round_trip_ns", _I64, "ns", "quickest of late"),
        _f("hops", _I64, "", "hops of 10 s it was learned from"),
        _f("seen_ns", _I64, "ns", ""),
    ]
)


@dataclass(frozen=True, slots=True)
class TableSpec:
    """How a table is kept: its columns, partition columns (UTC), and the key of a dimension or rollup row."""

    name: str
    schema: pa.Schema
    partitions: tuple[str, ...]
    key: tuple[str, ...] = ()
    kind: str = "raw"
    """raw: appended. rollup: rows of a key are merged. dimension: the row with the highest seen_ns wins. log: small."""
    time: str = "t_ns"
    """Column that decides the partition date and hour."""


_DATED = ("date", "retention_class")

TABLES: dict[str, TableSpec] = {
    spec.name: spec
    for spec in (
        TableSpec("spans", SPANS, ("date", "hour", "retention_class")),
        TableSpec("samples", SAMPLES, ("date", "hour", "retention_class")),
        TableSpec("span_args", SPAN_ARGS, ("date", "hour", "retention_class")),
        TableSpec("links", LINKS, ("date", "hour", "retention_class")),
        TableSpec("op_10s", OP_10S, _DATED, OP_10S_KEY, "rollup"),
        TableSpec("device_10s", DEVICE_10S, _DATED, DEVICE_10S_KEY, "rollup"),
        TableSpec("step", STEP, _DATED, STEP_KEY, "rollup"),
        TableSpec("step_program", STEP_PROGRAM, _DATED, STEP_PROGRAM_KEY, "rollup"),
        TableSpec("completeness", COMPLETENESS, _DATED, COMPLETENESS_KEY, "rollup"),
        TableSpec("ledger", LEDGER, _DATED, kind="log", time="now_ns"),
        TableSpec("dead_letter", DEAD_LETTER, _DATED, kind="log", time="now_ns"),
        TableSpec("windows", WINDOWS, _DATED, ("window", "process", "device"), "dimension"),
        TableSpec("clock_maps", CLOCK_MAPS, (), ("map",), "dimension", "seen_ns"),
        TableSpec("clock_verdicts", CLOCK_VERDICTS, (), ("verdict",), "dimension"),
        TableSpec("clock_edges", CLOCK_EDGES, (), ("host", "peer"), "dimension", "seen_ns"),
        TableSpec("hosts", HOSTS, (), ("host",), "dimension", "seen_ns"),
        TableSpec("processes", PROCESSES, (), ("process",), "dimension", "seen_ns"),
        TableSpec("devices", DEVICES, (), ("device",), "dimension", "seen_ns"),
        TableSpec("runs", RUNS, (), ("run", "attempt"), "dimension", "seen_ns"),
        TableSpec("series", SERIES, (), ("series",), "dimension", "seen_ns"),
        TableSpec("lines", LINES, (), ("process", "device", "line"), "dimension", "seen_ns"),
        TableSpec("names", NAMES, (), ("program",), "dimension", "seen_ns"),
        TableSpec("program_loads", PROGRAM_LOADS, (), ("process", "program_id"), "dimension", "seen_ns"),
        TableSpec("programs", PROGRAMS, (), ("program",), "dimension", "seen_ns"),
        TableSpec("ops", OPS, (), ("program", "op"), "dimension", "seen_ns"),
    )
}
RETENTION_CLASS = "standard"
"""Value of the retention_class partition until a policy says otherwise; the column exists from the first version."""
