"""Which pod has which device, from the kubelet's pod-resources socket. No socket: no Kubernetes, and no error."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from fleetscope.agents.clocks import DeviceClock
from fleetscope.agents.collectors.collector import Claim, Reading
from fleetscope.schema import podresources_pb2 as pods
from fleetscope.schema import wire_pb2 as wire

if TYPE_CHECKING:
    import grpc

LIST = "/v1.PodResourcesLister/List"
LOCAL = (("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 5000))
"""Options of a channel to this machine. By default it waits up to two minutes before it looks again."""
PERIOD_S = 5.0
"""A third of a scrape: a chip that goes from pod to pod is shown so within two of them."""
ANSWER_BYTES = 16 << 20
"""The kubelet's own bound."""
CLAIMS = 4096
"""Devices of pods; a node has tens."""


class KubeletCollector:
    """Claims of pods on devices: by device plugins and by dynamic resource allocation."""

    name = "kubelet"
    period_s = PERIOD_S

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._channel: grpc.Channel | None = None
        self._list: Callable[..., Any] | None = None

    @property
    def in_kubernetes(self) -> bool:
        return self.socket.exists()

    def inventory(self) -> list[wire.Device]:
        return []

    def read(self, deadline_s: float) -> Reading:
        if not self.in_kubernetes:
            self.close()
            return Reading()
        try:
            import grpc
        except ImportError:
            return Reading(errors={"grpc_missing": 1})
        if self._list is None:
            options = [("grpc.max_receive_message_length", ANSWER_BYTES), *LOCAL]
            self._channel = grpc.insecure_channel(f"unix://{self.socket}", options)
            # Bytes: a name that is no text must not look like a kubelet that does not answer.
            self._list = self._channel.unary_unary(LIST, None, None)
        try:
            answer = self._list(pods.ListPodResourcesRequest().SerializeToString(), timeout=PERIOD_S)
            return Reading(claims=claims(pods.ListPodResourcesResponse.FromString(answer)))
        except grpc.RpcError as error:
            return Reading(errors=Counter([error.code().name.lower()]))
        except DecodeError:
            return Reading(errors={"undecodable": 1})

    def clocks(self) -> list[DeviceClock]:
        return []

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = self._list = None


def claims(answer: pods.ListPodResourcesResponse) -> tuple[Claim, ...]:
    """Each device of each container."""
    found: list[Claim] = []
    for pod in answer.pod_resources:
        for container in pod.containers:
            who = (pod.namespace, pod.name, container.name)
            found += [Claim(d.resource_name, key, *who) for d in container.devices for key in d.device_ids]
            for claim in container.dynamic_resources:
                found += [Claim(r.driver_name, r.device_name, *who) for r in claim.claim_resources]
    return tuple(found[:CLAIMS])
