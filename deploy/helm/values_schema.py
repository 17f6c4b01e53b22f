"""values.schema.json of the chart: values.schema.in.json with the roles' own configuration put in for `config`.

    python deploy/helm/values_schema.py          # to stdout; `make docs` writes it, `make check` compares

So `helm install` refuses a wrong value of the configuration as `fleetscope config check` would. What the chart decides
itself (addresses, folders, chains) is not accepted there, nor is a secret: a ConfigMap would hold it.
"""

import json
from pathlib import Path
from typing import Any

from fleetscope.schema.config import Config

HERE = Path(__file__).resolve().parent

OF_THE_CHART = {
    "Config": ("state_dir",),
    "LogConfig": ("sasl_user", "sasl_password_file", "ssl_ca_file", "ssl_cert_file", "ssl_key_file"),
    "LakeConfig": ("path",),
    "AgentConfig": ("socket", "shm_dir", "host", "spool_dir", "metrics_address", "pod_resources"),
    "RedactionConfig": ("key_file",),
    "ProbeConfig": ("enabled", "address", "announce", "key_file"),
    "WorkerConfig": ("chains", "chain_count"),
    "ExporterConfig": ("address", "shard"),
    "OtlpConfig": ("headers",),
}
SECRET = "([Ss][Ee][Cc][Rr][Ee][Tt]|[Pp][Aa][Ss][Ss][Ww]|[Tt][Oo][Kk][Ee][Nn]|[Aa][Cc][Cc][Ee][Ss][Ss]_?[Kk][Ee][Yy])"


def _untitled(node: Any) -> Any:
    """Without pydantic's titles, which repeat the names, and defaults, which values.yaml has no say in."""
    if isinstance(node, list):
        return [_untitled(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {key: value for key, value in node.items() if key not in ("default", "format", "writeOnly")}
    if isinstance(kept.get("title"), str):
        del kept["title"]
    return {key: _untitled(value) for key, value in kept.items()}


def values_schema() -> dict[str, Any]:
    """The whole schema, as JSON values."""
    whole: dict[str, Any] = json.loads((HERE / "values.schema.in.json").read_text())
    config = _untitled(Config.model_json_schema())
    sections = {**config.pop("$defs"), "Config": config}
    for section, keys in OF_THE_CHART.items():
        for key in keys:
            del sections[section]["properties"][key]
    sections["LogConfig"]["properties"]["url"]["not"] = {"pattern": SECRET}
    sections["OtlpConfig"]["properties"]["endpoint"]["not"] = {"pattern": "@"}
    sections["LakeConfig"]["properties"]["options"]["propertyNames"] = {"not": {"pattern": SECRET}}
    whole["$defs"] |= sections
    return whole


if __name__ == "__main__":
    print(json.dumps(values_schema(), indent=1))
