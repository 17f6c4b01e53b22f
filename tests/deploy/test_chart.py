"""The Helm chart: what it renders is valid, as agreed, confined, and configures roles that take the configuration."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleetscope.schema.config import load
from fleetscope.sinks.prometheus.shard import Shard
from fleetscope.transport.kafka.settings import cluster_of

ROOT = Path(__file__).resolve().parents[2]
HELM = ROOT / "deploy" / "helm"
CHART = HELM / "fleetscope"
GOLDEN = Path(__file__).with_name("golden")
RULES = ROOT / "deploy" / "prometheus"
DASHBOARDS = ROOT / "deploy" / "grafana" / "dashboards"
SCENARIOS = ["default", *sorted(path.name.removesuffix("-values.yaml") for path in CHART.glob("ci/*-values.yaml"))]

SERVER: dict[str, Any] = {
    "mode": "server",
    "config": {"log": {"url": "kafka://k:9092"}, "lake": {"url": "s3://b/lake"}},
}

WITHOUT_KUBELET = ("restricted", "nvidia")
"""Scenarios whose agent shares nothing with its node, or is not the user that can read the kubelet's folder."""

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown value": ({"replicas": 3}, "additional properties 'replicas' not allowed"),
    "an unknown key of a section": ({"agent": {"hostPid": True}}, "additional properties 'hostPid' not allowed"),
    "an unknown key of the configuration": ({"config": {"worker": {"epoch": 2}}}, "'epoch' not allowed"),
    "an unknown section of the configuration": ({"config": {"workers": {}}}, "'workers' not allowed"),
    "a value out of range": ({"config": {"profiler": {"level": 4}}}, "maximum: got 4, want 3"),
    "a value of another type": ({"config": {"log": {"partitions": "many"}}}, "got string, want integer"),
    "no entry of an allow-list": ({"config": {"profiler": {"allow": ["H200"]}}}, "does not match pattern"),
    "what the chart decides": ({"config": {"worker": {"chain_count": 2}}}, "'chain_count' not allowed"),
    "a key of the lake in a ConfigMap": ({"config": {"lake": {"options": {"secret_access_key": "x"}}}}, "propert"),
    "a password in a ConfigMap": (
        {**SERVER, "config": {"log": {"url": "kafka://k:9092?sasl_plain_password=x"}}}, "'not' failed",
    ),
    "dashboards as in another chart": ({"monitoring": {"dashboards": {"folder": "x"}}}, "'folder' not allowed"),
    "a scrape interval the rules cannot use": ({"monitoring": {"interval": "60s"}}, "does not match pattern"),
    "a policy that lets everybody in": ({"networkPolicy": {"scrapeFrom": []}}, "minItems"),
    "a server without a log": ({"mode": "server"}, "must name the Kafka log"),
    "a server with a log on disk": (
        {**SERVER, "config": {"log": {"url": "file:///log"}}}, "must begin with kafka://",
    ),
    "a server without a lake": ({**SERVER, "config": {"log": {"url": "kafka://k:9092"}}}, "must name the lake"),
    "two lakes": ({**SERVER, "lake": {"existingClaim": "c"}}, "name a lake each"),
    "a role without a user": (
        {**SERVER, "config": {**SERVER["config"], "log": {"url": "kafka://k:9092", "security_protocol": "SASL_SSL"}}},
        "SASL_SSL: log.users.agent needs name and passwordSecret",
    ),
    "a user who would not log in": (
        {**SERVER, "log": {"users": {"agent": {"name": "a", "passwordSecret": "s"}}}},
        "log.users.agent would not log in",
    ),
    "a CA without TLS": ({**SERVER, "log": {"tlsSecret": "s"}}, "security_protocol is PLAINTEXT"),
    "a password's file, which the chart decides": (
        {**SERVER, "config": {"log": {"url": "kafka://k:9092", "sasl_password_file": "/p"}}},
        "'sasl_password_file' not allowed",
    ),
    "a port that the policy shuts": (
        {**SERVER, "config": {**SERVER["config"], "log": {"url": "kafka://k:9092,l:9095"}}}, "lacks port 9095",
    ),
    "an embedded pipeline with a bucket": ({"config": {"lake": {"url": "s3://b"}}}, "belong to mode server"),
    "an embedded log with users": (
        {"log": {"users": {"worker": {"name": "w", "passwordSecret": "s"}}}},
        "would not log in",
    ),
    "an embedded agent that shares no folder": ({"agent": {"storage": "pod"}}, "must be hostPath"),
    "probes without a key": ({"agent": {"probes": {"enabled": True}}}, "keySecret must name the Secret"),
    "a key in a ConfigMap": ({"config": {"agent": {"probes": {"key_file": "/k"}}}}, "'key_file' not allowed"),
    "a token in a ConfigMap": ({"config": {"otlp": {"headers": {"authorization": "x"}}}}, "'headers' not allowed"),
    "a password in an endpoint": ({"config": {"otlp": {"endpoint": "http://u:p@c:4318/v1/metrics"}}}, "'not' failed"),
    "a receiver that the policy shuts": (
        {"config": {"otlp": {"endpoint": "https://c/v1/metrics"}}}, "otlpPorts lacks port 443",
    ),
    "shards of one process": ({"exporter": {"shards": 2}}, "exporter.shards is of mode server"),
    "host processes without the host": ({**SERVER, "agent": {"storage": "pod", "hostPID": True}}, "hostPID"),
}  # fmt: skip


@pytest.fixture(scope="module")
def ask(require: Callable[[str], Path]) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    python = require("helm")

    def answer(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        command = [str(python), "-W", "error", str(HELM / "render.py")]
        done = subprocess.run(command, input=json.dumps(requests), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-4000:]
        said: list[dict[str, Any]] = json.loads(done.stdout)
        return said

    return answer


@pytest.fixture(scope="module")
def rendered(ask: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Every scenario, once."""
    return {said["name"]: said for said in ask([])}


def _objects(said: dict[str, Any]) -> list[dict[str, Any]]:
    manifests = [text for path, text in sorted(said["files"].items()) if path.endswith(".yaml")]
    return [document for text in manifests for document in yaml.safe_load_all(text) if document]


def _pods(said: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Pod specs by the name of what makes them."""
    makers = ("DaemonSet", "Deployment", "StatefulSet")
    return {o["metadata"]["name"]: o["spec"]["template"]["spec"] for o in _objects(said) if o["kind"] in makers}


each_scenario = pytest.mark.parametrize("scenario", SCENARIOS)


@pytest.mark.golden
@each_scenario
def test_a_scenario_renders_what_was_agreed_and_kubernetes_takes(
    scenario: str, rendered: dict[str, dict[str, Any]]
) -> None:
    said = rendered[scenario]
    assert said.get("error") is None
    assert said["lint"] == []
    assert said["invalid"] == []
    golden = GOLDEN / f"{scenario}.yaml"
    assert said["manifest"] == golden.read_text(), "`make chart` writes what is rendered now: look at the difference"


@pytest.mark.unit
@each_scenario
def test_a_pod_may_do_nothing_that_was_not_asked_for(scenario: str, rendered: dict[str, dict[str, Any]]) -> None:
    said = rendered[scenario]
    asked = {"hostPID": False, "hostNetwork": False, "privileged": False, "prepareFolders": False}
    asked |= {key: value for key, value in said["values"].get("agent", {}).items() if key in asked}
    objects = _objects(said)
    assert not [o for o in objects if o["kind"] in ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")]
    accounts = {o["metadata"]["name"]: o for o in objects if o["kind"] == "ServiceAccount"}
    for name, pod in _pods(said).items():
        of_agent = name.startswith("fleetscope-agent-")
        assert pod["automountServiceAccountToken"] is False
        assert accounts[pod["serviceAccountName"]]["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert pod.get("hostPID", False) is (of_agent and asked["hostPID"])
        assert pod.get("hostNetwork", False) is (of_agent and asked["hostNetwork"])
        assert bool(pod.get("initContainers")) is (of_agent and asked["prepareFolders"])
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context.get("privileged", False) is (of_agent and asked["privileged"])
            if not context.get("privileged"):
                assert context["allowPrivilegeEscalation"] is False
                assert context["capabilities"] == {"drop": ["ALL"]}
            assert {"requests", "limits"} == set(container["resources"])
        outside = {v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
        assert outside <= {"/var/lib/fleetscope", "/run/fleetscope", "/var/lib/kubelet/pod-resources"}
        assert not outside or of_agent or said["values"].get("mode", "embedded") == "embedded"


@pytest.mark.unit
@each_scenario
def test_a_role_takes_the_configuration_it_gets(
    scenario: str, rendered: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File and variables of each container through the roles' own loader, as in the pod."""
    said = rendered[scenario]
    configs = [o["data"] for o in _objects(said) if o["kind"] == "ConfigMap"]
    (text,) = [data["fleetscope.yaml"] for data in configs if "fleetscope.yaml" in data]
    file = tmp_path / "fleetscope.yaml"
    file.write_text(text)
    workers = said["values"].get("worker", {}).get("replicas", 1)
    for name, pod in _pods(said).items():
        (container,) = pod["containers"]
        for index in range(workers if name.endswith("-worker") else 1):
            fields = {
                "spec.nodeName": "node-7",
                "status.hostIP": "10.0.0.7",
                "status.podIP": "10.1.0.7",
                "metadata.name": name,
                "metadata.namespace": "fleetscope",
                "metadata.labels['apps.kubernetes.io/pod-index']": str(index),
            }
            with monkeypatch.context() as patch:
                known = {}
                for item in container["env"]:
                    source = item.get("valueFrom", {})
                    value = item.get("value") or fields.get(source.get("fieldRef", {}).get("fieldPath"))
                    value = re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], value)  # noqa: B023
                    known[item["name"]] = value
                    patch.setenv(item["name"], value)
                config = load(file)
            mounted = [Path(mount["mountPath"]) for mount in container["volumeMounts"]]
            written = [config.state_dir]
            if container["args"] == ["agent"]:
                assert config.agent.host == "node-7"
                assert ("10.0.0.7:2112" in config.agent.tpu_plugin) is (name == "fleetscope-agent-tpu")
                assert config.agent.metrics_address.endswith(f":{container['ports'][0]['containerPort']}")
                written += [config.agent_socket.parent, config.agent.shm_dir, config.spool_dir.parent]
                outside = {mount["mountPath"] for mount in container["volumeMounts"]}
                assert (str(config.agent.pod_resources.parent) in outside) is (scenario not in WITHOUT_KUBELET)
            if container["args"] == ["worker"]:
                assert (config.worker.chains, config.worker.chain_count) == ([index], workers)
            if container["args"] in (["exporter"], ["up"]):
                assert config.exporter.address.endswith(f":{container['ports'][0]['containerPort']}")
                shards = said["values"].get("exporter", {}).get("shards", 1)
                number = int(name.rsplit("-", 1)[1]) if shards > 1 else 0
                assert Shard.parse(config.exporter.shard) == Shard(number, shards)
            pushes = config.otlp.headers_file is not None and container["args"] in (["agent"], ["exporter"], ["up"])
            assert (Path("/etc/fleetscope-otlp") in mounted) is pushes, "a token is of those who use it"
            assert set(written) <= set(mounted)
            if said["values"].get("mode") == "server":
                cluster = cluster_of(config.log_url, {}).settings
                files = {Path(file).parent for file in (cluster.sasl_password_file, cluster.ssl_ca_file) if file}
                assert files <= set(mounted)
                secured = scenario == "external-kafka"
                assert (cluster.security_protocol == "SASL_SSL", len(files) == 2) == (secured, secured)
                assert cluster.sasl_user == (f"fleetscope-{container['args'][0]}" if secured else "")
                if container["args"] in (["worker"], ["coordinator"]):
                    assert config.lake_url.startswith(("s3://", "gs://", "file:///var/lib/fleetscope/lake"))


@pytest.mark.unit
def test_every_selector_finds_its_pods_and_no_others(rendered: dict[str, dict[str, Any]]) -> None:
    for said in rendered.values():
        objects = _objects(said)
        pods = {
            o["metadata"]["name"]: o["spec"]["template"]["metadata"]["labels"]
            for o in objects if o["kind"] in ("DaemonSet", "Deployment", "StatefulSet")
        }  # fmt: skip
        for o in objects:
            if o["kind"] == "Service":
                wanted = o["spec"]["selector"]
            elif o["kind"] == "NetworkPolicy":
                wanted = o["spec"]["podSelector"]["matchLabels"]
            elif "selector" in o.get("spec", {}) and o["kind"] != "ServiceMonitor":  # which selects Services
                wanted = o["spec"]["selector"]["matchLabels"]
            else:
                continue
            found = {name for name, labels in pods.items() if wanted.items() <= labels.items()}
            if o["kind"] in ("DaemonSet", "Deployment", "StatefulSet"):
                assert found == {o["metadata"]["name"]}
            elif o["kind"] == "Service" and "fleetscope-embedded" in pods:
                assert found == {"fleetscope-embedded"}
            else:
                assert found
                assert all(name.startswith(o["metadata"]["name"]) for name in found)


@pytest.mark.unit
def test_rules_in_the_chart_are_those_of_deploy_prometheus_to_the_byte(rendered: dict[str, dict[str, Any]]) -> None:
    text = rendered["nvidia"]["files"]["fleetscope/templates/monitoring.yaml"]
    for name in ("fleetscope.rules.yml", "fleetscope.alerts.yml"):
        whole = (RULES / name).read_text()
        assert (CHART / "rules" / name).read_text() == whole
        indented = "".join(f"  {line}" if line.strip() else line for line in whole.splitlines(keepends=True))
        assert f"spec:\n{indented}" in text
    groups = [o["spec"]["groups"] for o in yaml.safe_load_all(text) if o and o["kind"] == "PrometheusRule"]
    shipped = [yaml.safe_load((RULES / f"fleetscope.{name}.yml").read_text())["groups"] for name in ("alerts", "rules")]
    assert groups == shipped
    assert not [o for o in _objects(rendered["default"]) if o["apiVersion"].startswith("monitoring.")]


@pytest.mark.unit
def test_dashboards_in_the_chart_are_those_of_deploy_grafana_to_the_byte(rendered: dict[str, dict[str, Any]]) -> None:
    def maps(scenario: str) -> list[dict[str, Any]]:
        configs = [o for o in _objects(rendered[scenario]) if o["kind"] == "ConfigMap"]
        return [o for o in configs if "grafana_dashboard" in o["metadata"]["labels"]]

    held = {name: text for o in maps("nvidia") for name, text in o["data"].items()}
    assert held == {path.name: path.read_text() for path in DASHBOARDS.glob("*.json")}
    assert len(maps("nvidia")) == len(held) > 0, "one each: a ConfigMap takes a megabyte"
    assert {o["metadata"]["annotations"]["grafana_folder"] for o in maps("nvidia")} == {"fleetscope"}
    assert not maps("default")


@pytest.fixture(scope="module")
def refusals(ask: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> dict[str, str]:
    asked = [{"name": name, "values": values} for name, (values, _) in REFUSED.items()]
    return {said["name"]: said.get("error", "taken") for said in ask(asked)}


@pytest.mark.unit
@pytest.mark.parametrize("what", list(REFUSED))
def test_a_wrong_value_is_refused_and_named(what: str, refusals: dict[str, str]) -> None:
    assert REFUSED[what][1] in refusals[what]


@pytest.mark.unit
def test_lint_and_template_take_less_than_two_seconds(require: Callable[[str], Path]) -> None:
    """CPU time of one scenario in a process of its own, without the validator."""
    code = (
        "import sys, helm_python as helm; path = sys.argv[1]\n"
        "report = helm.lint(path, {}, strict=True); assert not report['errors']\n"
        "with helm.Chart.load(path) as chart: assert chart.render({}, name='fleetscope')\n"
        "import time; print(time.process_time())"
    )
    done = subprocess.run([require("helm"), "-c", code, str(CHART)], capture_output=True, text=True, timeout=60)
    assert float(done.stdout) < 2, done.stderr


@pytest.mark.unit
def test_the_key_of_redaction_is_a_file_of_a_secret(ask: Callable[..., list[dict[str, Any]]]) -> None:
    values = {"agent": {"redactionKeySecret": "names"}, "config": {"agent": {"redaction": {"ops": "hash"}}}}
    (said,) = ask([{"name": "redaction", "values": values}])
    pods = {name: pod for name, pod in _pods(said).items() if name.startswith("fleetscope-agent-")}
    assert pods
    for pod in pods.values():
        (container,) = pod["containers"]
        variables = {variable["name"]: variable.get("value") for variable in container["env"]}
        mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
        assert variables["FLEETSCOPE_AGENT__REDACTION__KEY_FILE"] == f"{mounts['redaction']['mountPath']}/key"
        assert mounts["redaction"]["readOnly"]
        assert {"name": "redaction", "secret": {"secretName": "names", "defaultMode": 0o440}} in pod["volumes"]
