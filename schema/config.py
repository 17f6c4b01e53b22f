"""Configuration: one YAML file, environment variables (FLEETSCOPE_WORKER__EPOCH_S=3) and flags.

An unknown key is an error that names the nearest known one. A section belongs to a room; defaults suit one machine.
"""

import difflib
import os
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)

from fleetscope.schema import secrets
from fleetscope.schema.errors import ConfigInvalid


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def default_state_dir() -> Path:
    """$FLEETSCOPE_HOME, else $XDG_STATE_HOME/fleetscope, else ~/.local/state/fleetscope."""
    home = os.environ.get("FLEETSCOPE_HOME")
    if home:
        return Path(home)
    return Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local" / "state")) / "fleetscope"


class LogConfig(_Section):
    """The log that carries batches: a folder or Kafka, and how long it keeps them."""

    url: str = Field("", description="file:///folder or kafka://host:port,host:port; empty: <state_dir>/log")
    partitions: int = Field(8, ge=1, le=1024, description="of fleetscope.telemetry when it is created")
    topic_prefix: str = Field("fleetscope", pattern=r"^[A-Za-z0-9._-]+$")
    retention_hours: float = Field(24, gt=0)
    retention_bytes: int = Field(8 << 30, gt=0, description="per partition")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="of Kafka's listener: SSL is TLS, SASL a user"
    )
    sasl_mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = "SCRAM-SHA-512"
    sasl_user: str = ""
    sasl_password_file: Path | None = Field(
        None, description="one line; empty: the environment's FLEETSCOPE_LOG_PASSWORD"
    )
    ssl_ca_file: Path | None = Field(None, description="PEM, who signed the brokers' certificates; empty: the system's")
    ssl_cert_file: Path | None = Field(None, description="PEM, where brokers want a certificate of their clients")
    ssl_key_file: Path | None = Field(None, description="PEM, without a passphrase; empty: in ssl_cert_file")
    ssl_check_hostname: bool = True

    def __repr_args__(self) -> Any:
        """With the URL as it may be shown: somebody may have put a password in it."""
        for name, value in super().__repr_args__():
            yield name, secrets.shown(value) if name == "url" else value


_OF_KAFKA = (
    "security_protocol",
    "sasl_mechanism",
    "sasl_user",
    "sasl_password_file",
    "ssl_ca_file",
    "ssl_cert_file",
    "ssl_key_file",
    "ssl_check_hostname",
)
"""Keys of `log` that are settings of the Kafka log by the same names."""


class LakeConfig(_Section):
    """Where the lake is, and how its files are encoded and replaced."""

    url: str = Field(
        "", description="file:///folder or s3://bucket/prefix (gs://, az://); empty: lake.path, else <state_dir>/lake"
    )
    path: Path | None = Field(None, description="shorthand of lake.url for a folder")
    options: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="of the object store, named as its environment variables are, which hold for what is not given: "
        "endpoint, region, access_key_id, secret_access_key, ...",
    )
    encoding: Literal["compact", "portable"] = Field(
        "compact", description="portable: readable by engines without INT64 BYTE_STREAM_SPLIT"
    )
    small_files: int = Field(64, ge=2, description="files of a partition that trigger their replacement")
    replace_rows: int = Field(4 << 20, gt=0, description="rows of a replacement bin")

    @model_validator(mode="after")
    def _one_place(self) -> "LakeConfig":
        if self.url and self.path is not None:
            raise ValueError("lake.url and lake.path name a place each: give one")
        return self


RedactionMode = Literal["keep", "hash", "drop"]
Named = Literal["annotations", "programs", "ops", "sources", "commands", "runs"]
"""Kinds of names that processes give: docs/redaction.md says what is of which."""


class RedactionRule(_Section):
    """What becomes of names that begin with `prefix`, or in which `pattern` matches: one of the two."""

    of: list[Named] = Field(min_length=1)
    prefix: str = ""
    pattern: str = Field("", description="RE2 (no backtracking, so no name takes long), found anywhere in the name")
    mode: RedactionMode

    @model_validator(mode="after")
    def _sound(self) -> "RedactionRule":
        if bool(self.prefix) == bool(self.pattern):
            raise ValueError("a rule has either a prefix or a pattern")
        if self.mode == "drop" and "runs" in self.of:
            raise ValueError("runs are kept or hashed: they tell sources apart")
        if self.pattern:
            from fleetscope.schema.patterns import Pattern

            Pattern(self.pattern)
        return self


class RedactionConfig(_Section):
    """Names of processes before anything leaves the host: kept, replaced by a keyed digest, or dropped."""

    annotations: RedactionMode = Field("keep", description="regions, counters, threads, arguments' keys and texts")
    programs: RedactionMode = Field("keep", description="modules")
    ops: RedactionMode = Field("keep", description="instructions, their scopes, kernels, custom calls")
    sources: RedactionMode = Field("keep", description="files of ops; dropped: lines too")
    commands: RedactionMode = Field("keep", description="command lines")
    runs: Literal["keep", "hash"] = Field("keep", description="run, attempt, tenant, values of labels")
    rules: list[RedactionRule] = Field(default_factory=list, description="the first that fits decides")
    key_file: Path | None = Field(
        None, description="of 16 bytes at least, the same on every host: one name has one digest in a fleet"
    )

    @model_validator(mode="after")
    def _keyed(self) -> "RedactionConfig":
        modes = {self.annotations, self.programs, self.ops, self.sources, self.commands, self.runs}
        if self.key_file is None and "hash" in modes | {rule.mode for rule in self.rules}:
            raise ValueError("agent.redaction.key_file names no file, and names are to be hashed")
        return self


class ProbeConfig(_Section):
    """Probes between hosts, which bound how far their clocks are apart. Off until a key is there."""

    enabled: bool = False
    address: str = Field(
        "127.0.0.1:9466", description="UDP, IPv4 or [IPv6]; [::] takes both families, port 0 a free one"
    )
    announce: str = Field("", description="where other hosts reach it; empty: `address`, where that is no wildcard")
    key_file: Path | None = Field(
        None, description="one or two keys in hex, a line each, of 16 to 64 bytes: the first signs, both are accepted"
    )
    known: dict[str, str] = Field(
        default_factory=dict, description="hosts and their addresses, beside those that announce themselves"
    )
    group: str = Field("", max_length=256, description="rack or slice; every second peer is of the same")
    peers: int = Field(5, ge=1, le=16, description="hosts it probes at a time")
    rate_hz: float = Field(1.0, gt=0, le=2, description="of probes to each")

    @model_validator(mode="after")
    def _keyed(self) -> "ProbeConfig":
        if self.enabled and self.key_file is None:
            raise ValueError("probes are authenticated: key_file must name a file with their key")
        return self


class AgentConfig(_Section):
    """The node agent: its socket, spool (bytes) and periods (s)."""

    socket: Path | None = Field(None, description="unix socket profilers connect to; empty: <state_dir>/agent.sock")
    shm_dir: Path = Field(Path("/dev/shm"), description="where processes put their recorder segments")  # noqa: S108
    host: str = Field("", description="empty: the machine's host name")
    spool_dir: Path | None = Field(None, description="empty: <state_dir>/spool")
    spool_bytes: int = Field(512 << 20, gt=0, description="cap; beyond it the oldest batches are dropped and counted")
    batch_s: float = Field(1.0, gt=0, le=60)
    batch_bytes: int = Field(1 << 20, gt=0, le=8 << 20, description="of a payload; beyond it batches are cut")
    sample_s: float = Field(1.0, gt=0, description="period of host and device counters")
    snapshot_s: float = Field(1.0, gt=0, description="period of clock snapshots")
    pod_resources: Path = Field(
        Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        description="the kubelet's socket, which tells the pods that have a device; where it is not, there are none",
    )
    tpu_runtime: str = Field("127.0.0.1:8431", description="libtpu's metric server, asked where there are TPU chips")
    tpu_plugin: str = Field(
        "http://127.0.0.1:2112/metrics",
        description="page of the GKE TPU device plugin, asked where there are TPU chips",
    )
    metrics_address: str = Field(
        "127.0.0.1:9465",
        description="of the agent's own /metrics; port 0 takes a free one, as the default does where 9465 is taken",
    )
    redaction: RedactionConfig = RedactionConfig()
    probes: ProbeConfig = ProbeConfig()


class ProfilerConfig(_Section):
    """Device windows inside training processes. The agent passes it on to them."""

    enabled: bool = True
    window_s: float = Field(60.0, gt=0, description="least mean period of device windows")
    window_max_bytes: int = Field(4 << 20, gt=0)
    window_budget: float = Field(0.005, gt=0, le=1, description="share of step time windows may cost, on any rank")
    steps_between_windows: int = Field(
        0,
        ge=0,
        description="K, a power of two, the same for every rank of a run; 0: from window_s and window_budget, for "
        "several ranks by the coordinator",
    )
    level: int = Field(1, ge=1, le=3, description="sites above it record nothing: 1 user, 2 framework, 3 verbose")
    categories_off: list[str] = Field(default_factory=list, description="categories of sites that record nothing")
    allow: list[Annotated[str, Field(pattern=r"^[^/\s]+/[^/\s]+/[^/\s]+$")]] = Field(
        default_factory=list,
        description="chip-or-platform/driver/jaxlib on which device windows may open, like NVIDIA-H200/570.86/0.10.2; "
        "* matches all. CPU needs no entry; `fleetscope soak-windows` prints the entry of a machine and its evidence",
    )


class GovernorConfig(_Section):
    """What recording may cost a host. The agent measures it and thins sites and windows that cost more."""

    enabled: bool = True
    step_budget: float = Field(
        0.005,
        gt=0,
        le=1,
        description="share of a process' time that regions and windows may take (windows alone: "
        "profiler.window_budget where that is more)",
    )
    core_budget: float = Field(
        0.005, gt=0, description="share of a core the agent may take to drain, decode and ship what processes record"
    )


class WorkerConfig(_Section):
    """Which chains a worker owns, how long its epochs are (s) and what runs them."""

    chains: list[int] = Field(default_factory=list, description="chains this worker owns; empty: all")
    chain_count: int = Field(1, ge=1, description="fixed sets the partitions are divided into")
    epoch_s: float = Field(2.0, gt=0)
    epoch_max_s: float = Field(5.0, gt=0)
    epoch_max_bytes: int = Field(64 << 20, gt=0)
    clock_wait_s: float = Field(1.5, ge=0, description="how long rows wait for a bracket that follows them")
    runner: Literal["FnApiRunner", "PrismRunner", "FlinkRunner"] = "FnApiRunner"


class FleetClockConfig(_Section):
    """How the coordinator brings the clocks of all hosts onto one axis."""

    enabled: bool = True
    hop_s: int = Field(
        10,
        ge=1,
        le=60,
        description="a map of each host is published so often; later ones correct it. Versions of hosts' maps count "
        "these, of devices' maps 10 s: with another length --clock-version does not pin both to one time",
    )
    final_hops: int = Field(6, ge=1, le=10, description="hops after which a map is final")
    slew_ppb: int = Field(
        2_000, gt=0, description="how far the rate between two hosts may leave the stated one: bounds assume it"
    )
    step_us: float = Field(12.0, gt=0, description="a host further off than this, and than noise explains, has stepped")
    utc_slew_ppb: int = Field(1_000, ge=0, description="how fast fleet time is led to UTC")


class CoordinatorConfig(_Section):
    """When the coordinator makes a round, and the clock of the fleet."""

    round_s: float = Field(15.0, gt=0)
    round_rows: int = Field(200_000, gt=0)
    clocks: FleetClockConfig = FleetClockConfig()


class ExporterConfig(_Section):
    """The /metrics page of fleet and runs."""

    address: str = Field("127.0.0.1:9464", description="port 0 takes a free one")
    series_per_run: int = Field(10_000, gt=0, description="cardinality budget; the rest is 'other', counted")
    stale_s: float = Field(120.0, gt=0, description="older data does not move live series")
    linger_s: float = Field(300.0, gt=0, description="series leave this long after their run ended")
    shard: str = Field(
        "0/1",
        pattern=r"^[0-9]+/[1-9][0-9]*$",
        description="i/n: of n exporters that share the hosts by their hash, the i-th from 0; 0 has what is of no host",
    )


class OtlpConfig(_Section):
    """Metrics of agent and exporter pushed by OTLP over HTTP (extra `otlp`), beside their pages."""

    endpoint: str = Field("", description="the receiver's, as in http://collector:4318/v1/metrics; empty: no push")
    interval_s: float = Field(60.0, ge=1)
    timeout_s: float = Field(10.0, gt=0, description="of a request, repeats included")
    headers: dict[str, SecretStr] = Field(default_factory=dict, description="of each request")
    headers_file: Path | None = Field(
        None, description="a file of more of them, `name: value` a line, read anew for each push: for tokens"
    )
    certificate_file: Path | None = Field(None, description="PEM, of who signed the receiver's certificate")
    client_certificate_file: Path | None = None
    client_key_file: Path | None = None
    attributes: dict[str, str] = Field(
        default_factory=dict, description="of the resource, beside those of OTEL_RESOURCE_ATTRIBUTES"
    )


class Config(BaseSettings):
    """The whole configuration. Load with `load`."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, env_prefix="FLEETSCOPE_", env_nested_delimiter="__")

    cluster: str = "local"
    state_dir: Path = Field(default_factory=default_state_dir)
    log: LogConfig = LogConfig()
    lake: LakeConfig = LakeConfig()
    agent: AgentConfig = AgentConfig()
    profiler: ProfilerConfig = ProfilerConfig()
    governor: GovernorConfig = GovernorConfig()
    worker: WorkerConfig = WorkerConfig()
    coordinator: CoordinatorConfig = CoordinatorConfig()
    exporter: ExporterConfig = ExporterConfig()
    otlp: OtlpConfig = OtlpConfig()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags before environment before the file."""
        sources: list[PydanticBaseSettingsSource] = [init_settings, env_settings]
        if _yaml_file:
            sources.append(YamlConfigSettingsSource(settings_cls, yaml_file=_yaml_file[-1]))
        return tuple(sources)

    @property
    def log_url(self) -> str:
        """URL of the log, the folder of the state directory by default; of Kafka with how to get in. It names files
        and holds no secret: it may be printed and may travel in a pipeline's plan."""
        url = self.log.url or f"file://{(self.state_dir / 'log').absolute()}"
        given = self.log.model_dump(mode="json", include=set(_OF_KAFKA), exclude_defaults=True)
        if not given or not url.startswith("kafka://"):
            return url
        return f"{url}{'&' if '?' in url else '?'}{urlencode(given, safe='/')}"

    @property
    def lake_url(self) -> str:
        """Where the lake is: a URL or a path."""
        return self.lake.url or str(self.lake.path or self.state_dir / "lake")

    @property
    def lake_options(self) -> dict[str, str]:
        """Options of the object store in clear."""
        return {name: value.get_secret_value() for name, value in self.lake.options.items()}

    @property
    def agent_socket(self) -> Path:
        """Unix socket of the agent of this host."""
        return self.agent.socket or self.state_dir / "agent.sock"

    @property
    def spool_dir(self) -> Path:
        """Folder of the agent's spool."""
        return self.agent.spool_dir or self.state_dir / "spool"


_yaml_file: list[Path] = []
"""The file of the load in progress: pydantic-settings asks for sources through a class method without arguments."""


def _known_keys(model: type[BaseModel], path: tuple[str, ...]) -> list[str]:
    for part in path:
        field = model.model_fields.get(part)
        if field is None or not isinstance(field.annotation, type) or not issubclass(field.annotation, BaseModel):
            return []
        model = field.annotation
    return list(model.model_fields)


def _explain(error: ValidationError, source: str) -> str:
    lines = []
    for item in error.errors():
        path = tuple(str(part) for part in item["loc"])
        text = f"{source}: {'.'.join(path)}: {item['msg']}"
        if item["type"] == "extra_forbidden":
            known = _known_keys(Config, path[:-1])
            near = difflib.get_close_matches(path[-1], known, 1, 0.5)
            text = f"{source}: unknown key {'.'.join(path)!r}"
            if near:
                text += f", nearest is {'.'.join((*path[:-1], near[0]))!r}"
        lines.append(text)
    return "; ".join(lines)


def _refuse_unknown_sections() -> None:
    """pydantic-settings passes over variables of sections it does not know; a typo there must not go unseen. Names
    without `__` are left alone: not all that begin with FLEETSCOPE_ are configuration (FLEETSCOPE_RUN)."""
    prefix, delimiter = "FLEETSCOPE_", "__"
    for name in sorted(os.environ):
        section, found, _ = name.removeprefix(prefix).lower().partition(delimiter)
        if name.startswith(prefix) and found and section not in Config.model_fields:
            near = difflib.get_close_matches(section, list(Config.model_fields), 1, 0.5)
            hint = f", nearest is {near[0]!r}" if near else ""
            raise ConfigInvalid(f"environment: {name}: unknown section {section!r}{hint}")


def load(path: Path | None = None, **overrides: Any) -> Config:
    """Configuration from a YAML file (default: $FLEETSCOPE_CONFIG), environment and overrides, the last winning.

    `overrides` are nested dicts by section. Raises ConfigInvalid naming key, file and nearest known key.
    """
    _refuse_unknown_sections()
    if path is None and os.environ.get("FLEETSCOPE_CONFIG"):
        path = Path(os.environ["FLEETSCOPE_CONFIG"])
    if path is not None and not path.is_file():
        raise ConfigInvalid(f"no configuration file {path}")
    if path is not None:
        _yaml_file.append(path)
    secrets.remember_environment()
    try:
        config = Config(**overrides)
        secrets.remember([*secrets.of_url(config.log.url), *secrets.of_url(config.otlp.endpoint)])
        secrets.remember(value for name, value in config.lake_options.items() if secrets.is_secret(name))
        secrets.remember(value.get_secret_value() for value in config.otlp.headers.values())
        return config
    except ValidationError as error:
        raise ConfigInvalid(_explain(error, str(path) if path else "configuration")) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    except SettingsError as error:
        raise ConfigInvalid(f"environment: {error}") from error
    except (ValueError, TypeError) as error:
        # pydantic-settings updates a dict with whatever the document is
        raise ConfigInvalid(f"{path} is no mapping of sections to keys") from error
    finally:
        if path is not None:
            _yaml_file.pop()
