"""The chart on a real API server (kube-apiserver and etcd, built from Go modules): `make e2e-k8s`.

Not collected by `make test`: the two take a quarter of an hour to build. There are no controllers and no kubelet, so
no pod ever runs; what is shown is what an API server with its admission takes and what Helm does with it.
"""

import json
import os
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "fleetscope"
GOLDEN = Path(__file__).with_name("golden")
SCENARIOS = ["default", *sorted(path.name.removesuffix("-values.yaml") for path in CHART.glob("ci/*-values.yaml"))]
each_scenario = pytest.mark.parametrize("scenario", SCENARIOS)


@dataclass(frozen=True, slots=True)
class Cluster:
    """An API server and a helm that speaks to it."""

    url: str
    helm_binary: Path
    kubeconfig: Path
    context: ssl.SSLContext

    def call(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
        """Status and answer of one request."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": "Bearer admin", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.context) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read()
            # A kind that is not served yet is told in plain text.
            return error.code, json.loads(text) if text.startswith(b"{") else {"message": text.decode()}

    def helm(self, *args: str, ok: bool = True) -> str:
        """What helm printed, or why it refused where it has to."""
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.kubeconfig.parent)}
        command = [str(self.helm_binary), *args]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        assert (done.returncode == 0) is ok, done.stdout + done.stderr
        return done.stdout if ok else done.stderr

    def namespace(self, name: str, level: str) -> None:
        """A namespace that enforces a level of PodSecurity."""
        labels = {"pod-security.kubernetes.io/enforce": level}
        status, said = self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        assert status in (201, 409), said

    def refusal(self, level: str, spec: dict[str, Any]) -> str:
        """Why a pod of this spec may not be in a namespace of that level; empty if it may."""
        self.namespace(level, level)
        # A runtime class is the cluster's own.
        pod = {"metadata": {"name": "p"}, "spec": {k: v for k, v in spec.items() if k != "runtimeClassName"}}
        status, said = self.call("POST", f"/api/v1/namespaces/{level}/pods?dryRun=All&fieldValidation=Strict", pod)
        assert status in (201, 403), said
        return "" if status == 201 else str(said["message"]).partition(f'PodSecurity "{level}:latest": ')[2]


@pytest.fixture(scope="module")
def cluster(
    require: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[Cluster]:
    tools, home = require("kubernetes"), tmp_path_factory.mktemp("kubernetes")
    store, peer, port = free_port(), free_port(), free_port()
    key = home / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    (home / "tokens.csv").write_text("admin,admin,1,system:masters\n")
    etcd_flags = {
        "data-dir": home / "etcd", "unsafe-no-fsync": "true", "listen-client-urls": f"http://127.0.0.1:{store}",
        "advertise-client-urls": f"http://127.0.0.1:{store}", "listen-peer-urls": f"http://127.0.0.1:{peer}",
        "initial-advertise-peer-urls": f"http://127.0.0.1:{peer}", "initial-cluster": f"default=http://127.0.0.1:{peer}",
    }  # fmt: skip
    server_flags = {
        "etcd-servers": f"http://127.0.0.1:{store}", "bind-address": "127.0.0.1", "secure-port": port,
        "cert-dir": home / "certificates", "token-auth-file": home / "tokens.csv", "authorization-mode": "RBAC",
        "service-account-issuer": "https://kubernetes.default.svc", "service-account-key-file": key,
        "service-account-signing-key-file": key, "service-cluster-ip-range": "10.96.0.0/16",
        "endpoint-reconciler-type": "none", "disable-admission-plugins": "ServiceAccount",
        "allow-privileged": "true",  # as every cluster that people run has it: amd asks for it
    }  # fmt: skip
    processes = []
    with (home / "log").open("wb") as log:
        try:
            for name, flags in (("etcd", etcd_flags), ("kube-apiserver", server_flags)):
                command = [str(tools / name), *(f"--{key}={value}" for key, value in flags.items())]
                processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=home))
            found = _await(home, port, tools)
            _monitoring_kinds(found)
            yield found
        finally:
            for process in reversed(processes):
                process.kill()
                process.wait()


def _await(home: Path, port: int, tools: Path) -> Cluster:
    deadline = time.monotonic() + 120
    certificate = home / "certificates" / "apiserver.crt"
    url = f"https://127.0.0.1:{port}"
    while time.monotonic() < deadline:
        if certificate.exists():
            cluster = {"server": url, "certificate-authority": str(certificate)}
            config = {
                "apiVersion": "v1", "kind": "Config", "current-context": "c",
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": "c", "user": {"token": "admin"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
            }  # fmt: skip
            (home / "kubeconfig").write_text(yaml.safe_dump(config))
            try:
                context = ssl.create_default_context(cafile=str(certificate))
                found = Cluster(url, tools / "helm", home / "kubeconfig", context)
                if found.call("GET", "/api/v1/namespaces/default")[0] == 200:
                    return found
            except (OSError, ssl.SSLError, ValueError):
                pass
        time.sleep(0.2)
    pytest.fail(f"no API server: {(home / 'log').read_text()[-3000:]}", pytrace=False)


def _monitoring_kinds(cluster: Cluster) -> None:
    """The Prometheus operator's kinds, without its schemas: Helm has to be able to make the objects."""
    group = "monitoring.coreos.com"
    anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"):
        plural = f"{kind.lower()}s"
        spec = {
            "group": group, "scope": "Namespaced", "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": anything}],
        }  # fmt: skip
        body = {"metadata": {"name": f"{plural}.{group}"}, "spec": spec}
        status, said = cluster.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
        assert status == 201, said
        deadline = time.monotonic() + 30
        while cluster.call("GET", f"/apis/{group}/v1/{plural}")[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def _values(scenario: str) -> list[str]:
    return [] if scenario == "default" else ["--values", str(CHART / "ci" / f"{scenario}-values.yaml")]


def _objects(text: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(o["kind"], o["metadata"]["name"]): o for o in yaml.safe_load_all(text) if o}


def _pods(scenario: str) -> dict[str, dict[str, Any]]:
    makers = ("DaemonSet", "Deployment", "StatefulSet")
    objects = _objects((GOLDEN / f"{scenario}.yaml").read_text())
    return {name: o["spec"]["template"]["spec"] for (kind, name), o in objects.items() if kind in makers}


def _left(cluster: Cluster, namespace: str) -> list[str]:
    """Names of what a release left."""
    found = []
    for path in (
        "api/v1/{}/configmaps", "api/v1/{}/services", "api/v1/{}/serviceaccounts", "apis/apps/v1/{}/daemonsets",
        "apis/apps/v1/{}/deployments", "apis/apps/v1/{}/statefulsets", "apis/policy/v1/{}/poddisruptionbudgets",
        "apis/networking.k8s.io/v1/{}/networkpolicies", "apis/monitoring.coreos.com/v1/{}/prometheusrules",
        "apis/monitoring.coreos.com/v1/{}/servicemonitors", "apis/monitoring.coreos.com/v1/{}/podmonitors",
    ):  # fmt: skip
        said = cluster.call("GET", "/" + path.format(f"namespaces/{namespace}"))[1]
        found += [item["metadata"]["name"] for item in said["items"]]
    return found


@each_scenario
def test_it_installs_and_leaves_nothing(cluster: Cluster, scenario: str) -> None:
    place = ["--namespace", f"ns-{scenario}"]
    cluster.helm("install", "fleetscope", str(CHART), *place, "--create-namespace", *_values(scenario))
    notes = cluster.helm("get", "notes", "fleetscope", *place)
    assert "fleetscope doctor" in notes
    names = {name for _, name in _objects((GOLDEN / f"{scenario}.yaml").read_text())}
    assert names <= set(_left(cluster, place[1]))
    cluster.helm("uninstall", "fleetscope", *place)
    assert _left(cluster, place[1]) == []


@each_scenario
def test_the_command_renders_what_the_library_does(cluster: Cluster, scenario: str) -> None:
    said = cluster.helm("template", "fleetscope", str(CHART), "--namespace", "fleetscope", *_values(scenario))
    rendered = {key: o for key, o in _objects(said).items() if key[0] != "PrometheusRule"}
    for o in rendered.values():
        for name in (name for name in o.get("data", {}) if name.endswith(".json")):
            assert o["data"][name] == (CHART / "dashboards" / name).read_text()
            o["data"][name] = "(deploy/grafana/dashboards)"  # as the golden manifests have it
    assert rendered == _objects((GOLDEN / f"{scenario}.yaml").read_text())
    cluster.helm("lint", "--strict", str(CHART), *_values(scenario))


def test_it_is_upgraded_rolled_back_and_refused(cluster: Cluster) -> None:
    place = ["--namespace", "life"]
    values = [*place, *_values("object-store")]
    cluster.helm("install", "fleetscope", str(CHART), "--create-namespace", *values)

    def state() -> tuple[int, int]:
        """Workers, and the chains their configuration speaks of."""
        worker = cluster.call("GET", "/apis/apps/v1/namespaces/life/statefulsets/fleetscope-worker")[1]
        config = cluster.call("GET", "/api/v1/namespaces/life/configmaps/fleetscope-config")[1]
        chains = yaml.safe_load(config["data"]["fleetscope.yaml"])["worker"]["chain_count"]
        return worker["spec"]["replicas"], chains

    assert state() == (1, 1)
    cluster.helm("upgrade", "fleetscope", str(CHART), *values, "--set", "worker.replicas=3")
    assert state() == (3, 3)
    cluster.helm("rollback", "fleetscope", "1", *place)
    assert state() == (1, 1)
    said = cluster.helm("upgrade", "fleetscope", str(CHART), *values, "--set", "worker.replica=3", ok=False)
    assert "'replica' not allowed" in said
    assert state() == (1, 1)
    # To the embedded shape: other objects, and those of the server are gone.
    cluster.helm("upgrade", "fleetscope", str(CHART), *place, "--reset-values")
    kinds = {name for name in _left(cluster, "life") if "worker" in name or "coordinator" in name}
    assert kinds == set()
    cluster.helm("uninstall", "fleetscope", *place)
    assert _left(cluster, "life") == []


def test_restricted_takes_every_pod_of_the_restricted_scenario(cluster: Cluster) -> None:
    pods = _pods("restricted")
    assert len(pods) == 4
    assert {name: cluster.refusal("restricted", pod) for name, pod in pods.items()} == dict.fromkeys(pods, "")


def test_what_pod_security_says_of_the_default_agent(cluster: Cluster) -> None:
    """A folder of the node, and its owner: nothing else keeps it from the stricter levels."""
    pod = _pods("default")["fleetscope-agent-tpu"]
    assert cluster.refusal("privileged", pod) == ""
    assert cluster.refusal("baseline", pod) == 'hostPath volumes (volumes "state", "socket", "pod-resources")'
    said = cluster.refusal("restricted", pod)
    reasons = [reason.partition(" (")[0] for reason in said.split("), ")]
    assert reasons == ["restricted volume types", "runAsNonRoot != true", "runAsUser=0"], said


@each_scenario
def test_the_other_roles_are_restricted_in_every_server(cluster: Cluster, scenario: str) -> None:
    pods = {name: pod for name, pod in _pods(scenario).items() if "-agent-" not in name and "-embedded" not in name}
    assert {name: cluster.refusal("restricted", pod) for name, pod in pods.items()} == dict.fromkeys(pods, "")


@pytest.mark.parametrize(
    ("file", "level", "reason"),
    [
        ("sidecar.yaml", "restricted", ""),
        ("training-pod.yaml", "privileged", ""),
        ("training-pod.yaml", "baseline", 'hostPath volumes (volume "fleetscope")'),
    ],
)
def test_example_pods(cluster: Cluster, file: str, level: str, reason: str) -> None:
    pod = yaml.safe_load((ROOT / "deploy" / "kubernetes" / file).read_text())
    assert cluster.refusal(level, pod["spec"]) == reason
