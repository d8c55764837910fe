"""The Kubernetes provider satisfies the provider interface, with the real client and a fake API server."""

import doctest
import json
import sys
import time
from base64 import b64decode
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.runtime.clock import SystemClock
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    AuthError,
    CapacityError,
    Handle,
    InvalidError,
    LaunchSpec,
    Provider,
    ProviderError,
    QuotaError,
    RetireResult,
    RetryError,
    State,
    UnknownError,
)
from maintainer.fleet.providers.kubernetes import manifest, pods
from maintainer.fleet.providers.kubernetes.api import refusal
from maintainer.fleet.providers.kubernetes.config import KubernetesOptions
from maintainer.fleet.providers.kubernetes.manifest import pod_name
from maintainer.fleet.providers.kubernetes.provider import Kubernetes
from maintainer.testing.provider_harness import CANARY, ProviderHarness, launch_id, listed, retire, until
from maintainer.testing.provider_suite import ProviderSuite
from tests.errors import raises_code
from tests.fakes.kubernetes_api import FakeCluster, Fault, Machine

pytestmark = pytest.mark.anyio

SLEEPER = (sys.executable, "-S", "-E", str(Path(__file__).parents[3] / "fakes" / "sleeping_node.py"))

FAULTS = {
    CapacityError: None,
    QuotaError: Fault(method="POST", resource="pods", status=403, reason="Forbidden", message="exceeded quota: gpus"),
    AuthError: Fault(method="POST", resource="pods", status=403, reason="Forbidden", message="User cannot create pods"),
    InvalidError: Fault(method="POST", resource="pods", status=422, reason="Invalid", message="spec.x: Invalid value"),
    RetryError: Fault(
        method="POST", resource="pods", status=504, reason="Timeout", message="etcd is slow", is_after=True
    ),
    UnknownError: Fault(
        method="POST", resource="pods", status=500, reason="InternalError", message="oh", is_after=True
    ),
}


class ClusterHarness(ProviderHarness):
    """Namespace of the fake cluster."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.fake = cluster
        self.providers: list[Provider] = []

    async def provider(self, **options: Any) -> Kubernetes:
        defaults = {
            "image": "registry.example/node",
            "command": SLEEPER,
            "kubeconfig": str(self.fake.kubeconfig),
            "types": {"small": {"usd_per_hour": 1.0}, "large": {"usd_per_hour": 4.0}},
            "spot": {"node_selector": {"life": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]},
        } | options
        built = providers.build({"kind": "kubernetes", **defaults}, clock=SystemClock(), directory=self.fake.directory)
        assert isinstance(built, Kubernetes)
        self.providers.append(built)
        return built

    async def lose(self, launch_id: str) -> None:
        for pod in self.fake.pods(astraflow_launch=launch_id):
            self.fake.lose(pod)

    async def failing(self, error: type[ProviderError]) -> Provider | None:
        if error is CapacityError:
            return await self.provider(schedule_wait_s=0.1, types={"small": {"node_selector": {"no": "such"}}})
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

    async def at(self, address: str) -> Provider | None:
        config = json.loads(self.fake.kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = address
        path = self.fake.directory / "kubeconfig-elsewhere"
        path.write_text(json.dumps(config))
        return await self.provider(kubeconfig=str(path))

    async def renewable(self) -> Provider | None:
        self.fake.roles["old"] = self.fake.roles["admin"]
        self.own_kubeconfig.write_text(self.fake.write_kubeconfig("old").read_text())
        return await self.provider(kubeconfig=str(self.own_kubeconfig))

    async def expire(self) -> None:
        del self.fake.roles["old"]

    async def renew(self) -> None:
        self.fake.roles["new"] = self.fake.roles["admin"]
        self.own_kubeconfig.write_text(self.fake.write_kubeconfig("new").read_text())

    @property
    def own_kubeconfig(self) -> Path:
        return self.fake.directory / "kubeconfig-renewed"

    async def removed_place(self) -> tuple[Provider, Provider, LaunchSpec] | None:
        self.fake.put("namespaces", "", {"metadata": {"name": "runs"}})
        return await self.provider(), await self.provider(namespace="runs"), self.spec()

    async def preempted(self) -> tuple[Provider, Handle] | None:
        provider, launch = await self.provider(), launch_id()
        handle = await provider.launch(self.spec(is_spot=True), launch)
        await until(self, provider, handle, lambda instance: instance.state is State.RUNNING)
        (pod,) = self.fake.pods(astraflow_launch=launch)
        self.fake.disrupt(pod, grace_s=0.1)
        return provider, handle

    def wrong_spec(self) -> LaunchSpec | None:
        return self.spec(type="enormous")

    def captured_output(self) -> str:
        bodies = [body for method, path, body in self.fake.seen if "/secrets" not in path]
        logs = [path.read_text() for path in self.fake.directory.glob("*.log")]
        return "".join([*bodies, *(path for _, path, _ in self.fake.seen), json.dumps(self.fake.pods()), *logs])


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ClusterHarness]:
    with FakeCluster(tmp_path / "cluster") as cluster:
        harness = ClusterHarness(cluster)
        try:
            yield harness
        finally:
            for provider in harness.providers:
                await provider.close()


class TestKubernetes(ProviderSuite):
    """Runs the provider suite with sleeping pods."""


async def test_the_token_is_in_a_secret_that_is_deleted_with_its_pod(harness: ClusterHarness) -> None:
    provider, launch = await harness.provider(), launch_id()
    await provider.launch(harness.spec(), launch)
    (pod,) = harness.fake.pods(astraflow_launch=launch)
    secret = harness.fake.objects["secrets", "default", pod_name(launch)]
    assert b64decode(secret["data"]["token"]).decode() == CANARY
    assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [pod["metadata"]["uid"]]
    await retire(harness, provider, launch)
    assert not [key for key in harness.fake.objects if key[0] == "secrets"]


async def test_a_missing_secret_is_created_by_the_repeated_launch(harness: ClusterHarness) -> None:
    harness.fake.faults.append(Fault(method="POST", resource="secrets", status=503, reason="ServiceUnavailable"))
    provider, launch = await harness.provider(), launch_id()
    with pytest.raises(RetryError):
        await provider.launch(harness.spec(), launch)  # state after a crash: a pod without its secret
    (waiting,) = await listed(harness, provider)
    assert waiting.state is State.PENDING
    handle = await (await harness.provider()).launch(harness.spec(), launch)
    await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)


@pytest.mark.long
async def test_a_pod_is_deleted_when_its_secret_cannot_be_created(harness: ClusterHarness) -> None:
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "delete"]}
    harness.fake.roles["no-secrets"] = [rule]
    provider = await harness.provider(kubeconfig=str(harness.fake.write_kubeconfig("no-secrets")))
    with raises_code(AuthError, "auth_error", "secret"):
        await provider.launch(harness.spec(), launch_id())
    assert harness.fake.pods() == []


@pytest.mark.long
async def test_a_list_of_many_pages_is_complete_also_when_one_expires(harness: ClusterHarness) -> None:
    provider, wanted = await harness.provider(page_size=2), sorted(launch_id() for _ in range(5))
    for launch in wanted:
        await provider.launch(harness.spec(), launch)
    assert sorted(instance.handle.launch_id for instance in await provider.list(harness.cluster)) == wanted
    harness.fake.expire_lists = 2
    assert sorted(instance.handle.launch_id for instance in await provider.list(harness.cluster)) == wanted


async def test_an_incomplete_list_is_an_error(harness: ClusterHarness) -> None:
    provider = await harness.provider(page_size=1)
    for _ in range(3):
        await provider.launch(harness.spec(), launch_id())
    harness.fake.expire_lists = 100
    with raises_code(RetryError, "provider.list_expired"):
        await provider.list(harness.cluster)


async def test_an_image_that_cannot_be_pulled_becomes_a_failed_launch(harness: ClusterHarness) -> None:
    harness.fake.missing_images.add("registry.example/node")
    provider, launch = await harness.provider(), launch_id()
    handle = await provider.launch(harness.spec(), launch)
    instance = await until(harness, provider, handle, lambda instance: "ImagePullBackOff" in instance.message)
    assert instance.state is State.PENDING
    impatient = await harness.provider(boot_timeout_s=0)
    assert (await impatient.describe(handle)).state is State.STUCK
    await retire(harness, impatient, launch)


async def test_an_unschedulable_pod_reports_the_cause_and_becomes_stuck(harness: ClusterHarness) -> None:
    harness.fake.machines = [Machine(name="small", allocatable={"nvidia.com/gpu": 1})]
    options = {"types": {"gpu": {"limits": {"nvidia.com/gpu": "1"}}}}
    provider = await harness.provider(**options)
    first = await provider.launch(harness.spec(), launch_id())
    await until(harness, provider, first, lambda instance: instance.state is State.RUNNING)
    second = await provider.launch(harness.spec(), launch_id())
    instance = await until(harness, provider, second, lambda instance: "0/1 nodes are available" in instance.message)
    assert instance.state is State.PENDING
    assert instance.message.startswith("CapacityError: ")
    impatient = await harness.provider(schedule_timeout_s=0, **options)
    assert (await impatient.describe(second)).state is State.STUCK


async def test_kueue_admits_as_its_quota_allows(harness: ClusterHarness) -> None:
    harness.fake.queues["team"] = 1
    provider, launch = await harness.provider(queue="team"), launch_id()
    first = await provider.launch(harness.spec(), launch)
    await until(harness, provider, first, lambda instance: instance.state is State.RUNNING)
    second = await provider.launch(harness.spec(), launch_id())
    instance = await provider.describe(second)
    assert (instance.state, instance.message.partition(":")[0]) == (State.PENDING, "QuotaError")
    with pytest.raises(QuotaError):
        await (await harness.provider(queue="team", schedule_wait_s=0.05)).launch(harness.spec(), launch_id())
    await retire(harness, provider, launch)
    await until(harness, provider, second, lambda instance: instance.state is State.RUNNING)


async def test_a_failed_node_is_gone_with_a_reason_and_its_pod_stays(harness: ClusterHarness) -> None:
    command = (sys.executable, "-S", "-c", "import sys; sys.exit(3)")
    provider = await harness.provider(command=command)
    handle = await provider.launch(harness.spec(), launch_id())
    failed = await until(harness, provider, handle, lambda instance: instance.state is State.GONE)
    assert "code 3" in failed.message
    assert [instance.state for instance in await provider.list(harness.cluster)] == [State.GONE]
    later = await harness.provider(retention_s=0)
    deadline = time.monotonic() + 5.0
    while harness.fake.pods() and time.monotonic() < deadline:
        await later.list(harness.cluster)
        await harness.pause()
    assert harness.fake.pods() == []


async def test_an_image_without_the_program_is_a_failed_launch(harness: ClusterHarness) -> None:
    provider = await harness.provider(command=("/no/such/program",))
    handle = await provider.launch(harness.spec(), launch_id())
    instance = await until(harness, provider, handle, lambda instance: instance.state is State.GONE)
    assert "StartError" in instance.message


async def test_a_preempted_pod_reports_its_deadline(harness: ClusterHarness, tmp_path: Path) -> None:
    is_up = tmp_path / "up"
    lines = (
        "import pathlib, signal, time",
        "signal.signal(15, signal.SIG_IGN)",
        f"pathlib.Path({str(is_up)!r}).touch()",
    )
    busy = "\n".join((*lines, "time.sleep(60)"))
    provider, launch = await harness.provider(command=(sys.executable, "-S", "-c", busy)), launch_id()
    handle = await provider.launch(harness.spec(is_spot=True), launch)
    await until(harness, provider, handle, lambda _: is_up.exists())
    (pod,) = harness.fake.pods(astraflow_launch=launch)
    harness.fake.disrupt(pod, grace_s=25.0)
    instance = await provider.describe(handle)
    assert instance.state is State.TERMINATING
    assert instance.notice_at == pytest.approx(time.time() + 25.0, abs=2.0)
    assert await provider.retire(launch) is RetireResult.TERMINATING  # keeps the grace period of the disruption
    await harness.lose(launch)
    assert (await provider.describe(handle)).state is State.GONE


async def test_a_pods_manifest_follows_from_type_region_spot_and_pool(harness: ClusterHarness) -> None:
    provider = await harness.provider(
        types={"gpu": {"limits": {"nvidia.com/gpu": "8"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}},
        regions={"eu": {"topology.kubernetes.io/region": "eu-west-1"}},
        user_id=1000,
        priority_class="low",
        environment={"HF_HOME": "/cache"},
    )
    spec = harness.spec(region="eu", is_spot=True, options={"image": "own/image", "node_selector": {"group": "a"}})
    await provider.launch(replace(spec, node=replace(spec.node, drain_s=61.5)), launch_id())
    (pod,) = harness.fake.pods()
    pod_spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert pod_spec["nodeSelector"] == {"topology.kubernetes.io/region": "eu-west-1", "life": "spot", "group": "a"}
    assert [toleration["key"] for toleration in pod_spec["tolerations"]] == ["spot", "gpu"]
    assert (pod_spec["restartPolicy"], pod_spec["terminationGracePeriodSeconds"]) == ("Never", 77)
    assert pod_spec["securityContext"]["runAsNonRoot"]
    assert container["image"] == "own/image"
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert container["env"][0] == {"name": "HF_HOME", "value": "/cache"}
    assert pod_spec["activeDeadlineSeconds"] > 0


@pytest.mark.parametrize(
    "options", [{"images": "x"}, {"node_selector": {"bad key!": "x"}}, {"limits": {"cpu": "lots"}}, {"queue": "a b"}]
)
async def test_invalid_options_of_a_pool_are_refused(harness: ClusterHarness, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, check=lambda problem: problem.code == "provider.invalid_pool_options"):
        await (await harness.provider()).launch(harness.spec(options=options), launch_id())
    assert harness.fake.seen == []


@pytest.mark.parametrize("wrong", ["", "../up", "a_b", "-a", "x" * 51])
async def test_an_invalid_launch_id_is_refused(harness: ClusterHarness, wrong: str) -> None:
    with pytest.raises(InvalidError, check=lambda problem: problem.code == "provider.invalid_launch_id"):
        await (await harness.provider()).launch(harness.spec(), wrong)


async def test_names_that_are_invalid_as_labels_still_become_tags(harness: ClusterHarness) -> None:
    provider, spec = await harness.provider(), harness.spec()
    named = replace(spec, tags=replace(spec.tags, pool="eu:gpu/" + "x" * 100, run="run:1/2"))
    await provider.launch(named, launch_id())
    (instance,) = await provider.list(harness.cluster)
    assert instance.tags == named.tags


async def test_pods_of_others_are_not_listed(harness: ClusterHarness) -> None:
    launch = launch_id()
    with harness.fake.lock:
        stranger = {"metadata": {"name": pod_name(launch)}, "spec": {}, "status": {"phase": "Succeeded"}}
        harness.fake.put("pods", "default", stranger)
    provider = await harness.provider()
    with raises_code(InvalidError, "provider.name_in_use"):
        await provider.launch(harness.spec(), launch)
    assert await provider.list(harness.cluster) == ()
    assert await provider.retire(launch) is RetireResult.GONE
    assert stranger in harness.fake.pods()


async def test_an_unreachable_api_server_is_a_temporary_failure(harness: ClusterHarness, tmp_path: Path) -> None:
    config = json.loads(harness.fake.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    away = tmp_path / "away"
    away.write_text(json.dumps(config))
    with pytest.raises(RetryError, check=lambda problem: problem.code == "provider.unreachable"):
        await (await harness.provider(kubeconfig=str(away))).list(harness.cluster)


async def test_missing_credentials_are_an_auth_error(harness: ClusterHarness, tmp_path: Path) -> None:
    with pytest.raises(AuthError):
        await (await harness.provider(kubeconfig=str(tmp_path / "none"))).list(harness.cluster)
    with pytest.raises(AuthError):
        await (await harness.provider(kubeconfig=str(harness.fake.write_kubeconfig("stranger")))).list(harness.cluster)


@pytest.mark.parametrize(
    ("status", "reason", "message", "kind"),
    [
        (403, "Forbidden", 'pods "x" is forbidden: exceeded quota: gpu, requested: 8', QuotaError),
        (403, "Forbidden", "maximum cpu usage per Pod is 4, but limit is 8", QuotaError),
        (403, "Forbidden", "User cannot create resource pods", AuthError),
        (
            403,
            "Forbidden",
            'pods is forbidden: User "system:serviceaccount:a:b" cannot create resource "pods"',
            AuthError,
        ),
        (403, "", "", AuthError),
        (
            403,
            "Forbidden",
            'pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot',
            InvalidError,
        ),
        (403, "Forbidden", 'admission webhook "policy.example" denied the request: no owner label', InvalidError),
        (403, "Forbidden", 'pods "x" is forbidden: no PriorityClass with name low was found', InvalidError),
        (403, "Forbidden", "unable to create new content in namespace a because it is being terminated", InvalidError),
        (401, "Unauthorized", "", AuthError),
        (404, "NotFound", 'namespaces "runs" not found', InvalidError),
        (422, "Invalid", "spec.containers[0].image: Required value", InvalidError),
        (409, "Conflict", "Operation cannot be fulfilled on resourcequotas", RetryError),
        (429, "TooManyRequests", "", RetryError),
        (500, "ServerTimeout", "", RetryError),
        (500, "InternalError", "failed calling webhook", UnknownError),
    ],
)
def test_each_refusal_has_a_provider_error(status: int, reason: str, message: str, kind: type[ProviderError]) -> None:
    provider_error = refusal(status, {"reason": reason, "message": message}, what="creating a pod")
    assert type(provider_error) is kind
    assert reason in str(provider_error)


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
        {"phase": "Failed", "reason": "Terminated", "message": "Pod was terminated in response to node shutdown."},
        {
            "phase": "Failed",
            "conditions": [
                {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
                | {"lastTransitionTime": "2026-11-28T07:00:00Z"}
            ],
        },
    ],
)
def test_a_pod_that_its_kubernetes_node_ended_is_preempted(status: dict[str, Any]) -> None:
    options = KubernetesOptions(image="registry.example/node")
    metadata = {"name": "x", "creationTimestamp": "2026-11-28T06:00:00Z"}
    instance = pods.read_pod(options, {"metadata": metadata, "status": status}, now=0.0)
    assert instance.state is State.GONE
    assert instance.notice_at is not None
    ended = pods.read_pod(options, {"metadata": metadata, "status": {"phase": "Failed"}}, now=0.0)
    assert ended.notice_at is None


def test_a_servers_message_about_a_secret_is_not_repeated() -> None:
    status = {"reason": "Invalid", "message": f"data.token: Invalid value: {CANARY}"}
    problem = refusal(422, status, what="create the secret of a pod", is_secret=True)
    assert CANARY not in str(problem)


def test_doctests_hold() -> None:
    assert doctest.testmod(manifest).failed == doctest.testmod(pods).failed == 0
