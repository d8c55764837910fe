"""The Kubernetes provider keeps the port's promises, against a fake API server and the real client."""

import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.runtime.clock import SystemClock
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    Auth,
    Capacity,
    Invalid,
    LaunchSpec,
    Provider,
    ProviderError,
    Quota,
    Retired,
    Retry,
    State,
    Unknown,
)
from maintainer.fleet.providers.kubernetes import Kubernetes
from maintainer.fleet.providers.kubernetes_pod import label, pod_name
from tests.fakes.kubernetes_api import FakeCluster, Fault, Machine
from tests.suites.provider import CANARY, ProviderSuite, World, launch_id, launches, listed, retire, until

pytestmark = pytest.mark.anyio

SLEEPER = (sys.executable, "-S", "-E", str(Path(__file__).parents[2] / "fakes" / "sleeper.py"))

FAULTS = {
    Capacity: None,
    Quota: Fault(method="POST", resource="pods", status=403, reason="Forbidden", message="exceeded quota: gpus"),
    Auth: Fault(method="POST", resource="pods", status=403, reason="Forbidden", message="User cannot create pods"),
    Invalid: Fault(method="POST", resource="pods", status=422, reason="Invalid", message="spec.x: Invalid value"),
    Retry: Fault(method="POST", resource="pods", status=504, reason="Timeout", message="etcd is slow", is_after=True),
    Unknown: Fault(method="POST", resource="pods", status=500, reason="InternalError", message="oh", is_after=True),
}


class ClusterWorld(World):
    """A namespace of the fake cluster."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.fake = cluster
        self.providers: list[Provider] = []

    async def provider(self, **options: Any) -> Kubernetes:
        given = {
            "image": "registry.example/node",
            "command": SLEEPER,
            "kubeconfig": str(self.fake.kubeconfig),
            "types": {"small": {"usd_per_hour": 1.0}, "large": {"usd_per_hour": 4.0}},
            "spot": {"node_selector": {"life": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]},
        } | options
        built = providers.build({"kind": "kubernetes", **given}, clock=SystemClock(), directory=self.fake.directory)
        assert isinstance(built, Kubernetes)
        self.providers.append(built)
        return built

    async def lose(self, launch_id: str) -> None:
        for pod in self.fake.pods(astraflow_launch=launch_id):
            self.fake.lose(pod)

    async def failing(self, error: type[ProviderError]) -> Provider | None:
        if error is Capacity:
            return await self.provider(place_wait_s=0.1, types={"small": {"node_selector": {"no": "such"}}})
        fault = FAULTS[error]
        assert fault is not None
        self.fake.faults.append(replace(fault))
        return await self.provider()

    async def duplicate(self, launch_id: str) -> bool:
        (pod,) = self.fake.pods(astraflow_launch=launch_id)
        copy = json.loads(json.dumps(pod))
        copy["metadata"]["name"] += "-copy"
        copy["spec"].pop("nodeName", None)
        copy["status"] = {"phase": "Pending", "conditions": []}
        with self.fake.lock:
            self.fake.put("pods", "default", copy)
        return True

    def wrong_spec(self) -> LaunchSpec | None:
        return self.spec(type="enormous")

    def spoken(self) -> str:
        bodies = [body for method, path, body in self.fake.seen if "/secrets" not in path]
        logs = [path.read_text() for path in self.fake.directory.glob("*.log")]
        return "".join([*bodies, *(path for _, path, _ in self.fake.seen), json.dumps(self.fake.pods()), *logs])


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ClusterWorld]:
    with FakeCluster(tmp_path / "cluster") as cluster:
        world = ClusterWorld(cluster)
        try:
            yield world
        finally:
            for provider in world.providers:
                await provider.close()


class TestKubernetes(ProviderSuite):
    """The suite, on pods that sleep."""
