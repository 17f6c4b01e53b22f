"""The chart rendered, linted and held against the schemas of Kubernetes, without a cluster.

    .components/helm/bin/python deploy/helm/render.py < requests.json    # `make components-helm` makes that Python
    .components/helm/bin/python deploy/helm/render.py --write FOLDER      # a manifest for each file of fleetscope/ci

A request is {"name", "values"}; the answer, a JSON list on stdout, adds "files" (path -> text), or "error" where Helm
refuses, "lint" (what `helm lint --strict` finds) and "invalid" (what an API server of KUBERNETES would refuse).
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import yaml

CHART = Path(__file__).resolve().parent / "fleetscope"
KUBERNETES = ("1.28", "1.34")
"""The oldest that Chart.yaml takes, and that of `make e2e-k8s`."""
SHIPPED = re.compile(r"^(  [\w-]+\.json): \|\n(?:    .*(?:\n|\Z))+", re.MULTILINE)
"""A dashboard in its ConfigMap."""
RELEASE = {"name": "fleetscope", "namespace": "fleetscope"}


def scenarios() -> list[dict[str, Any]]:
    """Requests for the files of ci/, by their names, and one for the defaults."""
    found = [
        {"name": path.name.removesuffix("-values.yaml"), "values": yaml.safe_load(path.read_text())}
        for path in sorted(CHART.glob("ci/*-values.yaml"))
    ]
    return [{"name": "default", "values": {}}, *found]


def answer(chart: helm_python.Chart, request: dict[str, Any]) -> dict[str, Any]:
    """The request with what Helm and the validator say."""
    values = request["values"]
    try:
        files = {path: text for path, text in chart.render(values, **RELEASE).items() if text.strip()}
    except helm_python.HelmError as error:
        return {**request, "error": str(error)}
    report = helm_python.lint(str(CHART), values, strict=True, kube_version=f"v{KUBERNETES[-1]}.0")
    lint = [message for message in report["messages"] if message["severity"] > 1] + report["errors"]
    return {**request, "files": files, "manifest": manifest(files), "lint": lint, "invalid": refused(files)}


def manifest(files: dict[str, str]) -> str:
    """What tests/deploy/golden holds: everything but rules and dashboards, which are in deploy/ already."""
    parts = []
    for path, text in sorted(files.items()):
        if path.endswith(".yaml"):
            objects = [part.strip() for part in re.split(r"^---$", text, flags=re.MULTILINE)]
            shown = [SHIPPED.sub(r"\1: (deploy/grafana/dashboards)", part) for part in objects
                     if part and "kind: PrometheusRule" not in part]  # fmt: skip
            parts.append(f"# {Path(path).name}\n" + "\n---\n".join(shown) + "\n")
    return "---\n".join(parts)


def documents(files: dict[str, str]) -> list[dict[str, Any]]:
    """Every object, in the order of its file's name."""
    manifests = [text for path, text in sorted(files.items()) if path.endswith(".yaml")]
    return [document for text in manifests for document in yaml.safe_load_all(text) if document]


def refused(files: dict[str, str]) -> list[str]:
    """Objects of Kubernetes itself that its schema does not take, unknown fields among them."""
    found = []
    for document in documents(files):
        if document["apiVersion"].startswith("monitoring.coreos.com/"):
            continue
        for version in KUBERNETES:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                found.append(f"{version}: {document['kind']} {document['metadata']['name']}: {error.message}")
    return found


def main() -> None:
    """Answer what stands on stdin, or write the scenarios."""
    with helm_python.Chart.load(CHART) as chart:
        if sys.argv[1:2] == ["--write"]:
            for request in scenarios():
                Path(sys.argv[2], f"{request['name']}.yaml").write_text(answer(chart, request)["manifest"])
        else:
            asked = json.load(sys.stdin)
            json.dump([answer(chart, request) for request in asked or scenarios()], sys.stdout)


if __name__ == "__main__":
    main()
