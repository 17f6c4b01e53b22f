from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Payload(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAYLOAD_NONE: _ClassVar[Payload]
    PAYLOAD_SPANS: _ClassVar[Payload]
    PAYLOAD_SAMPLES: _ClassVar[Payload]
PAYLOAD_NONE: Payload
PAYLOAD_SPANS: Payload
PAYLOAD_SAMPLES: Payload

class Source(_message.Message):
    __slots__ = ("cluster", "host", "boot_id", "pid", "start_ticks", "run", "attempt", "rank", "incarnation", "tenant")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    START_TICKS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    host: str
    boot_id: str
    pid: int
    start_ticks: int
    run: str
    attempt: str
    rank: int
    incarnation: int
    tenant: str
    def __init__(self, cluster: _Optional[str] = ..., host: _Optional[str] = ..., boot_id: _Optional[str] = ..., pid: _Optional[int] = ..., start_ticks: _Optional[int] = ..., run: _Optional[str] = ..., attempt: _Optional[str] = ..., rank: _Optional[int] = ..., incarnation: _Optional[int] = ..., tenant: _Optional[str] = ...) -> None: ...

class ClockEpoch(_message.Message):
    __slots__ = ("clock", "device", "resets", "period_num", "period_den", "width_bits", "fraction_bits")
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    RESETS_FIELD_NUMBER: _ClassVar[int]
    PERIOD_NUM_FIELD_NUMBER: _ClassVar[int]
    PERIOD_DEN_FIELD_NUMBER: _ClassVar[int]
    WIDTH_BITS_FIELD_NUMBER: _ClassVar[int]
    FRACTION_BITS_FIELD_NUMBER: _ClassVar[int]
    clock: str
    device: str
    resets: int
    period_num: int
    period_den: int
    width_bits: int
    fraction_bits: int
    def __init__(self, clock: _Optional[str] = ..., device: _Optional[str] = ..., resets: _Optional[int] = ..., period_num: _Optional[int] = ..., period_den: _Optional[int] = ..., width_bits: _Optional[int] = ..., fraction_bits: _Optional[int] = ...) -> None: ...

class ClockSnapshot(_message.Message):
    __slots__ = ("clock", "ref", "value", "ref_before", "ref_after", "flags")
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    REF_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    REF_BEFORE_FIELD_NUMBER: _ClassVar[int]
    REF_AFTER_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    clock: ClockEpoch
    ref: ClockEpoch
    value: int
    ref_before: int
    ref_after: int
    flags: int
    def __init__(self, clock: _Optional[_Union[ClockEpoch, _Mapping]] = ..., ref: _Optional[_Union[ClockEpoch, _Mapping]] = ..., value: _Optional[int] = ..., ref_before: _Optional[int] = ..., ref_after: _Optional[int] = ..., flags: _Optional[int] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("key", "platform", "sku", "local_name", "local_ordinal", "partition", "coords")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    SKU_FIELD_NUMBER: _ClassVar[int]
    LOCAL_NAME_FIELD_NUMBER: _ClassVar[int]
    LOCAL_ORDINAL_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    COORDS_FIELD_NUMBER: _ClassVar[int]
    key: str
    platform: str
    sku: str
    local_name: str
    local_ordinal: int
    partition: str
    coords: str
    def __init__(self, key: _Optional[str] = ..., platform: _Optional[str] = ..., sku: _Optional[str] = ..., local_name: _Optional[str] = ..., local_ordinal: _Optional[int] = ..., partition: _Optional[str] = ..., coords: _Optional[str] = ...) -> None: ...

class Window(_message.Message):
    __slots__ = ("id", "length_ticks", "executions", "step", "xspace_bytes", "stop_ns", "open_delay_ns", "complete", "program", "execution")
    ID_FIELD_NUMBER: _ClassVar[int]
    LENGTH_TICKS_FIELD_NUMBER: _ClassVar[int]
    EXECUTIONS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    XSPACE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STOP_NS_FIELD_NUMBER: _ClassVar[int]
    OPEN_DELAY_NS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    id: int
    length_ticks: int
    executions: int
    step: int
    xspace_bytes: int
    stop_ns: int
    open_delay_ns: int
    complete: bool
    program: str
    execution: int
    def __init__(self, id: _Optional[int] = ..., length_ticks: _Optional[int] = ..., executions: _Optional[int] = ..., step: _Optional[int] = ..., xspace_bytes: _Optional[int] = ..., stop_ns: _Optional[int] = ..., open_delay_ns: _Optional[int] = ..., complete: _Optional[bool] = ..., program: _Optional[str] = ..., execution: _Optional[int] = ...) -> None: ...

class Dropped(_message.Message):
    __slots__ = ("reason", "events")
    REASON_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    events: int
    def __init__(self, reason: _Optional[str] = ..., events: _Optional[int] = ...) -> None: ...

class HostInfo(_message.Message):
    __slots__ = ("cluster", "host", "boot_id", "os", "cpus", "memory_bytes", "agent_version", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    OS_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    host: str
    boot_id: str
    os: str
    cpus: int
    memory_bytes: int
    agent_version: str
    labels: _containers.ScalarMap[str, str]
    def __init__(self, cluster: _Optional[str] = ..., host: _Optional[str] = ..., boot_id: _Optional[str] = ..., os: _Optional[str] = ..., cpus: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., agent_version: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ProcessInfo(_message.Message):
    __slots__ = ("pid", "start_ticks", "run", "attempt", "rank", "command", "python", "jax", "jaxlib", "world_size", "start_ns", "tenant", "labels", "declared_flops_per_step", "mesh")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PID_FIELD_NUMBER: _ClassVar[int]
    START_TICKS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    JAX_FIELD_NUMBER: _ClassVar[int]
    JAXLIB_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FLOPS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    MESH_FIELD_NUMBER: _ClassVar[int]
    pid: int
    start_ticks: int
    run: str
    attempt: str
    rank: int
    command: str
    python: str
    jax: str
    jaxlib: str
    world_size: int
    start_ns: int
    tenant: str
    labels: _containers.ScalarMap[str, str]
    declared_flops_per_step: float
    mesh: str
    def __init__(self, pid: _Optional[int] = ..., start_ticks: _Optional[int] = ..., run: _Optional[str] = ..., attempt: _Optional[str] = ..., rank: _Optional[int] = ..., command: _Optional[str] = ..., python: _Optional[str] = ..., jax: _Optional[str] = ..., jaxlib: _Optional[str] = ..., world_size: _Optional[int] = ..., start_ns: _Optional[int] = ..., tenant: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., declared_flops_per_step: _Optional[float] = ..., mesh: _Optional[str] = ...) -> None: ...

class SeriesInfo(_message.Message):
    __slots__ = ("id", "name", "unit", "monotonic", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    MONOTONIC_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    unit: str
    monotonic: bool
    labels: _containers.ScalarMap[str, str]
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., unit: _Optional[str] = ..., monotonic: _Optional[bool] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class LineInfo(_message.Message):
    __slots__ = ("device", "line", "name")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    device: int
    line: int
    name: str
    def __init__(self, device: _Optional[int] = ..., line: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class NameInfo(_message.Message):
    __slots__ = ("program", "name")
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    program: int
    name: str
    def __init__(self, program: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class ProgramLoad(_message.Message):
    __slots__ = ("program_id", "program", "module", "at_ns")
    PROGRAM_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    MODULE_FIELD_NUMBER: _ClassVar[int]
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    program_id: int
    program: int
    module: str
    at_ns: int
    def __init__(self, program_id: _Optional[int] = ..., program: _Optional[int] = ..., module: _Optional[str] = ..., at_ns: _Optional[int] = ...) -> None: ...

class DeviceInfo(_message.Message):
    __slots__ = ("device",)
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    device: Device
    def __init__(self, device: _Optional[_Union[Device, _Mapping]] = ...) -> None: ...

class RunEvent(_message.Message):
    __slots__ = ("event", "at_ns")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    event: str
    at_ns: int
    def __init__(self, event: _Optional[str] = ..., at_ns: _Optional[int] = ...) -> None: ...

class Announcement(_message.Message):
    __slots__ = ("host", "process", "device", "series", "line", "name", "program_load", "run_event")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_LOAD_FIELD_NUMBER: _ClassVar[int]
    RUN_EVENT_FIELD_NUMBER: _ClassVar[int]
    host: HostInfo
    process: ProcessInfo
    device: DeviceInfo
    series: SeriesInfo
    line: LineInfo
    name: NameInfo
    program_load: ProgramLoad
    run_event: RunEvent
    def __init__(self, host: _Optional[_Union[HostInfo, _Mapping]] = ..., process: _Optional[_Union[ProcessInfo, _Mapping]] = ..., device: _Optional[_Union[DeviceInfo, _Mapping]] = ..., series: _Optional[_Union[SeriesInfo, _Mapping]] = ..., line: _Optional[_Union[LineInfo, _Mapping]] = ..., name: _Optional[_Union[NameInfo, _Mapping]] = ..., program_load: _Optional[_Union[ProgramLoad, _Mapping]] = ..., run_event: _Optional[_Union[RunEvent, _Mapping]] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("version", "source", "source_id", "payload_kind", "device", "clock", "tick_from", "tick_to", "batch_number", "first_event", "rows", "window", "dropped", "produced", "snapshots", "announcements", "sent_ns", "flags", "payload")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_KIND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    TICK_FROM_FIELD_NUMBER: _ClassVar[int]
    TICK_TO_FIELD_NUMBER: _ClassVar[int]
    BATCH_NUMBER_FIELD_NUMBER: _ClassVar[int]
    FIRST_EVENT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCEMENTS_FIELD_NUMBER: _ClassVar[int]
    SENT_NS_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    version: int
    source: Source
    source_id: int
    payload_kind: Payload
    device: Device
    clock: ClockEpoch
    tick_from: int
    tick_to: int
    batch_number: int
    first_event: int
    rows: int
    window: Window
    dropped: _containers.RepeatedCompositeFieldContainer[Dropped]
    produced: int
    snapshots: _containers.RepeatedCompositeFieldContainer[ClockSnapshot]
    announcements: _containers.RepeatedCompositeFieldContainer[Announcement]
    sent_ns: int
    flags: int
    payload: bytes
    def __init__(self, version: _Optional[int] = ..., source: _Optional[_Union[Source, _Mapping]] = ..., source_id: _Optional[int] = ..., payload_kind: _Optional[_Union[Payload, str]] = ..., device: _Optional[_Union[Device, _Mapping]] = ..., clock: _Optional[_Union[ClockEpoch, _Mapping]] = ..., tick_from: _Optional[int] = ..., tick_to: _Optional[int] = ..., batch_number: _Optional[int] = ..., first_event: _Optional[int] = ..., rows: _Optional[int] = ..., window: _Optional[_Union[Window, _Mapping]] = ..., dropped: _Optional[_Iterable[_Union[Dropped, _Mapping]]] = ..., produced: _Optional[int] = ..., snapshots: _Optional[_Iterable[_Union[ClockSnapshot, _Mapping]]] = ..., announcements: _Optional[_Iterable[_Union[Announcement, _Mapping]]] = ..., sent_ns: _Optional[int] = ..., flags: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class ClockRecord(_message.Message):
    __slots__ = ("source", "snapshots", "sequence", "resets", "at_ns", "state", "probes", "collectives", "reason")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RESETS_FIELD_NUMBER: _ClassVar[int]
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROBES_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    source: Source
    snapshots: _containers.RepeatedCompositeFieldContainer[ClockSnapshot]
    sequence: int
    resets: int
    at_ns: int
    state: ClockState
    probes: _containers.RepeatedCompositeFieldContainer[PeerProbes]
    collectives: _containers.RepeatedCompositeFieldContainer[CollectiveObservation]
    reason: str
    def __init__(self, source: _Optional[_Union[Source, _Mapping]] = ..., snapshots: _Optional[_Iterable[_Union[ClockSnapshot, _Mapping]]] = ..., sequence: _Optional[int] = ..., resets: _Optional[int] = ..., at_ns: _Optional[int] = ..., state: _Optional[_Union[ClockState, _Mapping]] = ..., probes: _Optional[_Iterable[_Union[PeerProbes, _Mapping]]] = ..., collectives: _Optional[_Iterable[_Union[CollectiveObservation, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class ClockState(_message.Message):
    __slots__ = ("clocksource", "synchronized", "adjtimex_status", "adjtimex_state", "max_error_ns", "est_error_ns", "frequency_ppb", "tai_s", "sync_source", "reference", "root_delay_ns", "root_dispersion_ns", "last_offset_ns", "suspended_ns", "vm_disruption", "vm_sequence")
    CLOCKSOURCE_FIELD_NUMBER: _ClassVar[int]
    SYNCHRONIZED_FIELD_NUMBER: _ClassVar[int]
    ADJTIMEX_STATUS_FIELD_NUMBER: _ClassVar[int]
    ADJTIMEX_STATE_FIELD_NUMBER: _ClassVar[int]
    MAX_ERROR_NS_FIELD_NUMBER: _ClassVar[int]
    EST_ERROR_NS_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PPB_FIELD_NUMBER: _ClassVar[int]
    TAI_S_FIELD_NUMBER: _ClassVar[int]
    SYNC_SOURCE_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    ROOT_DELAY_NS_FIELD_NUMBER: _ClassVar[int]
    ROOT_DISPERSION_NS_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_NS_FIELD_NUMBER: _ClassVar[int]
    SUSPENDED_NS_FIELD_NUMBER: _ClassVar[int]
    VM_DISRUPTION_FIELD_NUMBER: _ClassVar[int]
    VM_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    clocksource: str
    synchronized: bool
    adjtimex_status: int
    adjtimex_state: int
    max_error_ns: int
    est_error_ns: int
    frequency_ppb: int
    tai_s: int
    sync_source: str
    reference: str
    root_delay_ns: int
    root_dispersion_ns: int
    last_offset_ns: int
    suspended_ns: int
    vm_disruption: int
    vm_sequence: int
    def __init__(self, clocksource: _Optional[str] = ..., synchronized: _Optional[bool] = ..., adjtimex_status: _Optional[int] = ..., adjtimex_state: _Optional[int] = ..., max_error_ns: _Optional[int] = ..., est_error_ns: _Optional[int] = ..., frequency_ppb: _Optional[int] = ..., tai_s: _Optional[int] = ..., sync_source: _Optional[str] = ..., reference: _Optional[str] = ..., root_delay_ns: _Optional[int] = ..., root_dispersion_ns: _Optional[int] = ..., last_offset_ns: _Optional[int] = ..., suspended_ns: _Optional[int] = ..., vm_disruption: _Optional[int] = ..., vm_sequence: _Optional[int] = ...) -> None: ...

class PeerProbes(_message.Message):
    __slots__ = ("peer", "boot_id", "resets", "stamps", "flags", "sent")
    PEER_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    RESETS_FIELD_NUMBER: _ClassVar[int]
    STAMPS_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    peer: str
    boot_id: str
    resets: int
    stamps: _containers.RepeatedScalarFieldContainer[int]
    flags: int
    sent: int
    def __init__(self, peer: _Optional[str] = ..., boot_id: _Optional[str] = ..., resets: _Optional[int] = ..., stamps: _Optional[_Iterable[int]] = ..., flags: _Optional[int] = ..., sent: _Optional[int] = ...) -> None: ...

class CollectiveObservation(_message.Message):
    __slots__ = ("group", "sequence", "rank", "size", "start_ns", "end_ns", "err_ns", "flags", "device")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    END_NS_FIELD_NUMBER: _ClassVar[int]
    ERR_NS_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    group: int
    sequence: int
    rank: int
    size: int
    start_ns: int
    end_ns: int
    err_ns: int
    flags: int
    device: str
    def __init__(self, group: _Optional[int] = ..., sequence: _Optional[int] = ..., rank: _Optional[int] = ..., size: _Optional[int] = ..., start_ns: _Optional[int] = ..., end_ns: _Optional[int] = ..., err_ns: _Optional[int] = ..., flags: _Optional[int] = ..., device: _Optional[str] = ...) -> None: ...

class ClockMaps(_message.Message):
    __slots__ = ("epoch", "cluster", "host", "boot_id", "resets", "solved", "reference", "coordinator", "pieces", "utc", "term", "quarantined")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    RESETS_FIELD_NUMBER: _ClassVar[int]
    SOLVED_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    UTC_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    cluster: str
    host: str
    boot_id: str
    resets: int
    solved: int
    reference: int
    coordinator: str
    pieces: _containers.RepeatedCompositeFieldContainer[MapPiece]
    utc: UtcOffset
    term: int
    quarantined: str
    def __init__(self, epoch: _Optional[int] = ..., cluster: _Optional[str] = ..., host: _Optional[str] = ..., boot_id: _Optional[str] = ..., resets: _Optional[int] = ..., solved: _Optional[int] = ..., reference: _Optional[int] = ..., coordinator: _Optional[str] = ..., pieces: _Optional[_Iterable[_Union[MapPiece, _Mapping]]] = ..., utc: _Optional[_Union[UtcOffset, _Mapping]] = ..., term: _Optional[int] = ..., quarantined: _Optional[str] = ...) -> None: ...

class MapPiece(_message.Message):
    __slots__ = ("x0", "y0", "n", "d", "valid_from", "valid_to", "lo_ns", "hi_ns", "guaranteed", "sigma_ns", "version", "final", "quality", "method")
    X0_FIELD_NUMBER: _ClassVar[int]
    Y0_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    D_FIELD_NUMBER: _ClassVar[int]
    VALID_FROM_FIELD_NUMBER: _ClassVar[int]
    VALID_TO_FIELD_NUMBER: _ClassVar[int]
    LO_NS_FIELD_NUMBER: _ClassVar[int]
    HI_NS_FIELD_NUMBER: _ClassVar[int]
    GUARANTEED_FIELD_NUMBER: _ClassVar[int]
    SIGMA_NS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    x0: int
    y0: int
    n: int
    d: int
    valid_from: int
    valid_to: int
    lo_ns: int
    hi_ns: int
    guaranteed: bool
    sigma_ns: int
    version: int
    final: bool
    quality: str
    method: str
    def __init__(self, x0: _Optional[int] = ..., y0: _Optional[int] = ..., n: _Optional[int] = ..., d: _Optional[int] = ..., valid_from: _Optional[int] = ..., valid_to: _Optional[int] = ..., lo_ns: _Optional[int] = ..., hi_ns: _Optional[int] = ..., guaranteed: _Optional[bool] = ..., sigma_ns: _Optional[int] = ..., version: _Optional[int] = ..., final: _Optional[bool] = ..., quality: _Optional[str] = ..., method: _Optional[str] = ...) -> None: ...

class UtcOffset(_message.Message):
    __slots__ = ("at_ns", "lo_ns", "hi_ns", "hosts")
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    LO_NS_FIELD_NUMBER: _ClassVar[int]
    HI_NS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    at_ns: int
    lo_ns: int
    hi_ns: int
    hosts: int
    def __init__(self, at_ns: _Optional[int] = ..., lo_ns: _Optional[int] = ..., hi_ns: _Optional[int] = ..., hosts: _Optional[int] = ...) -> None: ...

class ProgramChunk(_message.Message):
    __slots__ = ("version", "program", "module", "chunk", "chunks", "rows", "first_op", "source", "ops")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    MODULE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FIRST_OP_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    version: int
    program: int
    module: str
    chunk: int
    chunks: int
    rows: int
    first_op: int
    source: str
    ops: bytes
    def __init__(self, version: _Optional[int] = ..., program: _Optional[int] = ..., module: _Optional[str] = ..., chunk: _Optional[int] = ..., chunks: _Optional[int] = ..., rows: _Optional[int] = ..., first_op: _Optional[int] = ..., source: _Optional[str] = ..., ops: _Optional[bytes] = ...) -> None: ...

class MetricsRecord(_message.Message):
    __slots__ = ("chain", "epoch", "now_ns", "event_ns", "run", "samples", "part", "generation", "chains", "committed", "blocks")
    class Position(_message.Message):
        __slots__ = ("partition", "offset")
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        partition: int
        offset: int
        def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...
    class Sample(_message.Message):
        __slots__ = ("name", "labels", "value", "int_value", "is_int", "durations")
        class LabelsEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: str
            def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
        NAME_FIELD_NUMBER: _ClassVar[int]
        LABELS_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        INT_VALUE_FIELD_NUMBER: _ClassVar[int]
        IS_INT_FIELD_NUMBER: _ClassVar[int]
        DURATIONS_FIELD_NUMBER: _ClassVar[int]
        name: str
        labels: _containers.ScalarMap[str, str]
        value: float
        int_value: int
        is_int: bool
        durations: MetricsRecord.Durations
        def __init__(self, name: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., value: _Optional[float] = ..., int_value: _Optional[int] = ..., is_int: _Optional[bool] = ..., durations: _Optional[_Union[MetricsRecord.Durations, _Mapping]] = ...) -> None: ...
    class Block(_message.Message):
        __slots__ = ("label_names", "labels", "columns")
        LABEL_NAMES_FIELD_NUMBER: _ClassVar[int]
        LABELS_FIELD_NUMBER: _ClassVar[int]
        COLUMNS_FIELD_NUMBER: _ClassVar[int]
        label_names: _containers.RepeatedScalarFieldContainer[str]
        labels: _containers.RepeatedScalarFieldContainer[str]
        columns: _containers.RepeatedCompositeFieldContainer[MetricsRecord.Column]
        def __init__(self, label_names: _Optional[_Iterable[str]] = ..., labels: _Optional[_Iterable[str]] = ..., columns: _Optional[_Iterable[_Union[MetricsRecord.Column, _Mapping]]] = ...) -> None: ...
    class Column(_message.Message):
        __slots__ = ("name", "values")
        NAME_FIELD_NUMBER: _ClassVar[int]
        VALUES_FIELD_NUMBER: _ClassVar[int]
        name: str
        values: _containers.RepeatedScalarFieldContainer[float]
        def __init__(self, name: _Optional[str] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...
    class Durations(_message.Message):
        __slots__ = ("schema", "bucket", "count", "zero", "sum_ns")
        SCHEMA_FIELD_NUMBER: _ClassVar[int]
        BUCKET_FIELD_NUMBER: _ClassVar[int]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        ZERO_FIELD_NUMBER: _ClassVar[int]
        SUM_NS_FIELD_NUMBER: _ClassVar[int]
        schema: int
        bucket: _containers.RepeatedScalarFieldContainer[int]
        count: _containers.RepeatedScalarFieldContainer[int]
        zero: int
        sum_ns: int
        def __init__(self, schema: _Optional[int] = ..., bucket: _Optional[_Iterable[int]] = ..., count: _Optional[_Iterable[int]] = ..., zero: _Optional[int] = ..., sum_ns: _Optional[int] = ...) -> None: ...
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NOW_NS_FIELD_NUMBER: _ClassVar[int]
    EVENT_NS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CHAINS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    chain: int
    epoch: int
    now_ns: int
    event_ns: int
    run: str
    samples: _containers.RepeatedCompositeFieldContainer[MetricsRecord.Sample]
    part: int
    generation: int
    chains: _containers.RepeatedScalarFieldContainer[int]
    committed: _containers.RepeatedCompositeFieldContainer[MetricsRecord.Position]
    blocks: _containers.RepeatedCompositeFieldContainer[MetricsRecord.Block]
    def __init__(self, chain: _Optional[int] = ..., epoch: _Optional[int] = ..., now_ns: _Optional[int] = ..., event_ns: _Optional[int] = ..., run: _Optional[str] = ..., samples: _Optional[_Iterable[_Union[MetricsRecord.Sample, _Mapping]]] = ..., part: _Optional[int] = ..., generation: _Optional[int] = ..., chains: _Optional[_Iterable[int]] = ..., committed: _Optional[_Iterable[_Union[MetricsRecord.Position, _Mapping]]] = ..., blocks: _Optional[_Iterable[_Union[MetricsRecord.Block, _Mapping]]] = ...) -> None: ...

class RankReport(_message.Message):
    __slots__ = ("source", "world_size", "at_ns", "step", "steps", "period_ns", "longest_ns", "settled_steps", "windows", "cost_ns", "stall_ns", "stalls", "configured_k", "schedule", "breaker", "ran", "followed")
    class Ran(_message.Message):
        __slots__ = ("program", "executions", "busy_ns")
        PROGRAM_FIELD_NUMBER: _ClassVar[int]
        EXECUTIONS_FIELD_NUMBER: _ClassVar[int]
        BUSY_NS_FIELD_NUMBER: _ClassVar[int]
        program: str
        executions: int
        busy_ns: int
        def __init__(self, program: _Optional[str] = ..., executions: _Optional[int] = ..., busy_ns: _Optional[int] = ...) -> None: ...
    class Followed(_message.Message):
        __slots__ = ("program", "execution", "period_ns", "longest_ns", "settled", "mark_ns", "marked", "after_ns")
        PROGRAM_FIELD_NUMBER: _ClassVar[int]
        EXECUTION_FIELD_NUMBER: _ClassVar[int]
        PERIOD_NS_FIELD_NUMBER: _ClassVar[int]
        LONGEST_NS_FIELD_NUMBER: _ClassVar[int]
        SETTLED_FIELD_NUMBER: _ClassVar[int]
        MARK_NS_FIELD_NUMBER: _ClassVar[int]
        MARKED_FIELD_NUMBER: _ClassVar[int]
        AFTER_NS_FIELD_NUMBER: _ClassVar[int]
        program: str
        execution: int
        period_ns: int
        longest_ns: int
        settled: int
        mark_ns: int
        marked: int
        after_ns: int
        def __init__(self, program: _Optional[str] = ..., execution: _Optional[int] = ..., period_ns: _Optional[int] = ..., longest_ns: _Optional[int] = ..., settled: _Optional[int] = ..., mark_ns: _Optional[int] = ..., marked: _Optional[int] = ..., after_ns: _Optional[int] = ...) -> None: ...
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PERIOD_NS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_NS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_STEPS_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    COST_NS_FIELD_NUMBER: _ClassVar[int]
    STALL_NS_FIELD_NUMBER: _ClassVar[int]
    STALLS_FIELD_NUMBER: _ClassVar[int]
    CONFIGURED_K_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    BREAKER_FIELD_NUMBER: _ClassVar[int]
    RAN_FIELD_NUMBER: _ClassVar[int]
    FOLLOWED_FIELD_NUMBER: _ClassVar[int]
    source: Source
    world_size: int
    at_ns: int
    step: int
    steps: int
    period_ns: int
    longest_ns: int
    settled_steps: int
    windows: int
    cost_ns: int
    stall_ns: int
    stalls: int
    configured_k: int
    schedule: int
    breaker: str
    ran: _containers.RepeatedCompositeFieldContainer[RankReport.Ran]
    followed: RankReport.Followed
    def __init__(self, source: _Optional[_Union[Source, _Mapping]] = ..., world_size: _Optional[int] = ..., at_ns: _Optional[int] = ..., step: _Optional[int] = ..., steps: _Optional[int] = ..., period_ns: _Optional[int] = ..., longest_ns: _Optional[int] = ..., settled_steps: _Optional[int] = ..., windows: _Optional[int] = ..., cost_ns: _Optional[int] = ..., stall_ns: _Optional[int] = ..., stalls: _Optional[int] = ..., configured_k: _Optional[int] = ..., schedule: _Optional[int] = ..., breaker: _Optional[str] = ..., ran: _Optional[_Iterable[_Union[RankReport.Ran, _Mapping]]] = ..., followed: _Optional[_Union[RankReport.Followed, _Mapping]] = ...) -> None: ...

class Cadence(_message.Message):
    __slots__ = ("run", "attempt", "number", "stretches", "reason", "issued_ns", "program", "members")
    class Stretch(_message.Message):
        __slots__ = ("from_step", "until_step", "k", "strata", "program")
        FROM_STEP_FIELD_NUMBER: _ClassVar[int]
        UNTIL_STEP_FIELD_NUMBER: _ClassVar[int]
        K_FIELD_NUMBER: _ClassVar[int]
        STRATA_FIELD_NUMBER: _ClassVar[int]
        PROGRAM_FIELD_NUMBER: _ClassVar[int]
        from_step: int
        until_step: int
        k: int
        strata: int
        program: str
        def __init__(self, from_step: _Optional[int] = ..., until_step: _Optional[int] = ..., k: _Optional[int] = ..., strata: _Optional[int] = ..., program: _Optional[str] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STRETCHES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ISSUED_NS_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    run: str
    attempt: str
    number: int
    stretches: _containers.RepeatedCompositeFieldContainer[Cadence.Stretch]
    reason: str
    issued_ns: int
    program: str
    members: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, run: _Optional[str] = ..., attempt: _Optional[str] = ..., number: _Optional[int] = ..., stretches: _Optional[_Iterable[_Union[Cadence.Stretch, _Mapping]]] = ..., reason: _Optional[str] = ..., issued_ns: _Optional[int] = ..., program: _Optional[str] = ..., members: _Optional[_Iterable[int]] = ...) -> None: ...

class WindowSwitch(_message.Message):
    __slots__ = ("run", "attempt", "off", "reason", "issued_ns")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OFF_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ISSUED_NS_FIELD_NUMBER: _ClassVar[int]
    run: str
    attempt: str
    off: bool
    reason: str
    issued_ns: int
    def __init__(self, run: _Optional[str] = ..., attempt: _Optional[str] = ..., off: _Optional[bool] = ..., reason: _Optional[str] = ..., issued_ns: _Optional[int] = ...) -> None: ...

class Control(_message.Message):
    __slots__ = ("cadence", "windows")
    CADENCE_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    cadence: Cadence
    windows: WindowSwitch
    def __init__(self, cadence: _Optional[_Union[Cadence, _Mapping]] = ..., windows: _Optional[_Union[WindowSwitch, _Mapping]] = ...) -> None: ...

class ProbeAddress(_message.Message):
    __slots__ = ("cluster", "host", "address", "group", "at_ns", "tag")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    host: str
    address: str
    group: str
    at_ns: int
    tag: bytes
    def __init__(self, cluster: _Optional[str] = ..., host: _Optional[str] = ..., address: _Optional[str] = ..., group: _Optional[str] = ..., at_ns: _Optional[int] = ..., tag: _Optional[bytes] = ...) -> None: ...
