"""The Kubernetes provider keeps the port's promises, against a fake API server and the real client."""

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
from maintainer.fleet.providers import kubernetes_manifest, kubernetes_pod, providers
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
from maintainer.fleet.providers.kubernetes_api import refusal
from maintainer.fleet.providers.kubernetes_manifest import pod_name
from tests.fakes.kubernetes_api import FakeCluster, Fault, Machine
from tests.suites.provider import CANARY, ProviderSuite, World, launch_id, listed, retire, until

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


async def test_the_token_is_in_a_secret_that_belongs_to_the_pod_and_goes_with_it(world: ClusterWorld) -> None:
    provider, launch = await world.provider(), launch_id()
    await provider.launch(world.spec(), launch)
    (pod,) = world.fake.pods(astraflow_launch=launch)
    secret = world.fake.objects["secrets", "default", pod_name(launch)]
    assert b64decode(secret["data"]["token"]).decode() == CANARY
    assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [pod["metadata"]["uid"]]
    await retire(world, provider, launch)
    assert not [key for key in world.fake.objects if key[0] == "secrets"]


async def test_a_pod_whose_secret_was_never_made_gets_it_from_the_next_launch(world: ClusterWorld) -> None:
    world.fake.faults.append(Fault(method="POST", resource="secrets", status=503, reason="ServiceUnavailable"))
    provider, launch = await world.provider(), launch_id()
    with pytest.raises(Retry):
        await provider.launch(world.spec(), launch)  # as a crash would leave it: a pod, no secret
    (waiting,) = await listed(world, provider)
    assert waiting.state is State.PENDING
    handle = await (await world.provider()).launch(world.spec(), launch)
    await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)


async def test_where_secrets_may_not_be_made_no_pod_stays_that_waits_for_one(world: ClusterWorld) -> None:
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "delete"]}
    world.fake.roles["no-secrets"] = [rule]
    provider = await world.provider(kubeconfig=str(world.fake.write_kubeconfig("no-secrets")))
    with pytest.raises(Auth, match="secret"):
        await provider.launch(world.spec(), launch_id())
    assert world.fake.pods() == []


async def test_a_list_is_whole_over_many_pages_also_when_one_expires_in_between(world: ClusterWorld) -> None:
    provider, wanted = await world.provider(page_size=2), sorted(launch_id() for _ in range(5))
    for launch in wanted:
        await provider.launch(world.spec(), launch)
    assert sorted(one.handle.launch_id for one in await provider.list(world.cluster)) == wanted
    world.fake.expire_lists = 2
    assert sorted(one.handle.launch_id for one in await provider.list(world.cluster)) == wanted


async def test_half_a_list_is_no_list(world: ClusterWorld) -> None:
    provider = await world.provider(page_size=1)
    for _ in range(3):
        await provider.launch(world.spec(), launch_id())
    world.fake.expire_lists = 100
    with pytest.raises(Retry, match="expired"):
        await provider.list(world.cluster)


async def test_an_image_that_cannot_be_pulled_is_waited_for_and_then_a_failed_launch(world: ClusterWorld) -> None:
    world.fake.missing_images.add("registry.example/node")
    provider, launch = await world.provider(), launch_id()
    handle = await provider.launch(world.spec(), launch)
    seen = await until(world, provider, handle, lambda seen: "ImagePullBackOff" in seen.message)
    assert seen.state is State.PENDING
    impatient = await world.provider(boot_patience_s=0)
    assert (await impatient.describe(handle)).state is State.STUCK
    await retire(world, impatient, launch)


async def test_a_pod_without_a_machine_says_what_it_lacks_and_is_stuck_in_the_end(world: ClusterWorld) -> None:
    world.fake.machines = [Machine(name="small", allocatable={"nvidia.com/gpu": 1})]
    options = {"types": {"gpu": {"limits": {"nvidia.com/gpu": "1"}}}}
    provider = await world.provider(**options)
    first = await provider.launch(world.spec(), launch_id())
    await until(world, provider, first, lambda seen: seen.state is State.RUNNING)
    second = await provider.launch(world.spec(), launch_id())
    seen = await until(world, provider, second, lambda seen: "0/1 nodes are available" in seen.message)
    assert seen.state is State.PENDING
    assert seen.message.startswith("Capacity: ")
    impatient = await world.provider(place_patience_s=0, **options)
    assert (await impatient.describe(second)).state is State.STUCK


async def test_kueue_admits_as_its_quota_allows(world: ClusterWorld) -> None:
    world.fake.queues["team"] = 1
    provider, launch = await world.provider(queue="team"), launch_id()
    first = await provider.launch(world.spec(), launch)
    await until(world, provider, first, lambda seen: seen.state is State.RUNNING)
    second = await provider.launch(world.spec(), launch_id())
    seen = await provider.describe(second)
    assert (seen.state, seen.message.partition(":")[0]) == (State.PENDING, "Quota")
    with pytest.raises(Quota):
        await (await world.provider(queue="team", place_wait_s=0.05)).launch(world.spec(), launch_id())
    await retire(world, provider, launch)
    await until(world, provider, second, lambda seen: seen.state is State.RUNNING)


async def test_a_node_that_fails_is_gone_says_why_and_is_kept_for_its_log(world: ClusterWorld) -> None:
    command = (sys.executable, "-S", "-c", "import sys; sys.exit(3)")
    provider = await world.provider(command=command)
    handle = await provider.launch(world.spec(), launch_id())
    seen = await until(world, provider, handle, lambda seen: seen.state is State.GONE)
    assert "code 3" in seen.message
    assert [one.state for one in await provider.list(world.cluster)] == [State.GONE]
    later = await world.provider(kept_s=0)
    deadline = time.monotonic() + 5.0
    while world.fake.pods() and time.monotonic() < deadline:
        await later.list(world.cluster)
        await world.pause()
    assert world.fake.pods() == []


async def test_an_image_without_the_program_is_a_launch_that_failed(world: ClusterWorld) -> None:
    provider = await world.provider(command=("/no/such/program",))
    handle = await provider.launch(world.spec(), launch_id())
    seen = await until(world, provider, handle, lambda seen: seen.state is State.GONE)
    assert "StartError" in seen.message


async def test_a_pod_whose_machine_is_taken_away_says_until_when(world: ClusterWorld, tmp_path: Path) -> None:
    is_up = tmp_path / "up"
    lines = (
        "import pathlib, signal, time",
        "signal.signal(15, signal.SIG_IGN)",
        f"pathlib.Path({str(is_up)!r}).touch()",
    )
    busy = "\n".join((*lines, "time.sleep(60)"))
    provider, launch = await world.provider(command=(sys.executable, "-S", "-c", busy)), launch_id()
    handle = await provider.launch(world.spec(is_spot=True), launch)
    await until(world, provider, handle, lambda _: is_up.exists())
    (pod,) = world.fake.pods(astraflow_launch=launch)
    world.fake.disrupt(pod, grace_s=25.0)
    seen = await provider.describe(handle)
    assert seen.state is State.GOING
    assert seen.notice_at == pytest.approx(time.time() + 25.0, abs=2.0)
    assert await provider.retire(launch) is Retired.GOING  # its grace is its own: nobody cuts it short
    await world.lose(launch)
    assert (await provider.describe(handle)).state is State.GONE


async def test_what_a_pod_is_made_of_follows_from_type_region_spot_and_pool(world: ClusterWorld) -> None:
    provider = await world.provider(
        types={"gpu": {"limits": {"nvidia.com/gpu": "8"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}},
        regions={"eu": {"topology.kubernetes.io/region": "eu-west-1"}},
        user_id=1000,
        priority_class="low",
        environment={"HF_HOME": "/cache"},
    )
    spec = world.spec(region="eu", is_spot=True, options={"image": "own/image", "node_selector": {"group": "a"}})
    await provider.launch(replace(spec, node=replace(spec.node, drain_s=61.5)), launch_id())
    (pod,) = world.fake.pods()
    said, (container,) = pod["spec"], pod["spec"]["containers"]
    assert said["nodeSelector"] == {"topology.kubernetes.io/region": "eu-west-1", "life": "spot", "group": "a"}
    assert [one["key"] for one in said["tolerations"]] == ["spot", "gpu"]
    assert (said["restartPolicy"], said["terminationGracePeriodSeconds"]) == ("Never", 77)
    assert said["securityContext"]["runAsNonRoot"]
    assert container["image"] == "own/image"
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert container["env"][0] == {"name": "HF_HOME", "value": "/cache"}
    assert said["activeDeadlineSeconds"] > 0


@pytest.mark.parametrize(
    "options", [{"images": "x"}, {"node_selector": {"bad key!": "x"}}, {"limits": {"cpu": "lots"}}, {"queue": "a b"}]
)
async def test_options_of_a_pool_that_cannot_be_are_refused(world: ClusterWorld, options: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="options of the pool"):
        await (await world.provider()).launch(world.spec(options=options), launch_id())
    assert world.fake.seen == []


@pytest.mark.parametrize("wrong", ["", "../up", "a_b", "-a", "x" * 51])
async def test_an_id_that_names_no_pod_is_refused(world: ClusterWorld, wrong: str) -> None:
    with pytest.raises(Invalid, match="no launch id"):
        await (await world.provider()).launch(world.spec(), wrong)


async def test_names_that_are_no_labels_are_tags_all_the_same(world: ClusterWorld) -> None:
    provider, spec = await world.provider(), world.spec()
    named = replace(spec, tags=replace(spec.tags, pool="eu:gpu/" + "x" * 100, run="run:1/2"))
    await provider.launch(named, launch_id())
    (instance,) = await provider.list(world.cluster)
    assert instance.tags == named.tags


async def test_a_pod_of_somebody_else_is_not_ours(world: ClusterWorld) -> None:
    launch = launch_id()
    with world.fake.lock:
        stranger = {"metadata": {"name": pod_name(launch)}, "spec": {}, "status": {"phase": "Succeeded"}}
        world.fake.put("pods", "default", stranger)
    provider = await world.provider()
    with pytest.raises(Invalid, match="another launch"):
        await provider.launch(world.spec(), launch)
    assert await provider.list(world.cluster) == ()
    assert await provider.retire(launch) is Retired.GONE
    assert stranger in world.fake.pods()


async def test_an_api_server_that_is_away_is_asked_again_later(world: ClusterWorld, tmp_path: Path) -> None:
    config = json.loads(world.fake.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    away = tmp_path / "away"
    away.write_text(json.dumps(config))
    with pytest.raises(Retry, match="listing pods"):
        await (await world.provider(kubeconfig=str(away))).list(world.cluster)


async def test_without_a_way_in_there_is_an_auth_error(world: ClusterWorld, tmp_path: Path) -> None:
    with pytest.raises(Auth):
        await (await world.provider(kubeconfig=str(tmp_path / "none"))).list(world.cluster)
    with pytest.raises(Auth):
        await (await world.provider(kubeconfig=str(world.fake.write_kubeconfig("stranger")))).list(world.cluster)


@pytest.mark.parametrize(
    ("status", "reason", "message", "kind"),
    [
        (403, "Forbidden", 'pods "x" is forbidden: exceeded quota: gpu, requested: 8', Quota),
        (403, "Forbidden", "maximum cpu usage per Pod is 4, but limit is 8", Quota),
        (403, "Forbidden", "User cannot create resource pods", Auth),
        (401, "Unauthorized", "", Auth),
        (404, "NotFound", 'namespaces "runs" not found', Invalid),
        (422, "Invalid", "spec.containers[0].image: Required value", Invalid),
        (409, "Conflict", "Operation cannot be fulfilled on resourcequotas", Retry),
        (429, "TooManyRequests", "", Retry),
        (500, "ServerTimeout", "", Retry),
        (500, "InternalError", "failed calling webhook", Unknown),
    ],
)
def test_each_refusal_leads_to_the_right_next_step(
    status: int, reason: str, message: str, kind: type[ProviderError]
) -> None:
    found = refusal(status, {"reason": reason, "message": message}, what="creating a pod")
    assert type(found) is kind
    assert reason in str(found)


def test_what_a_server_says_about_a_secret_is_not_repeated() -> None:
    said = {"reason": "Invalid", "message": f"data.token: Invalid value: {CANARY}"}
    assert CANARY not in str(refusal(422, said, what="creating the secret of a pod", is_secret=True))


def test_doctests_hold() -> None:
    assert doctest.testmod(kubernetes_manifest).failed == doctest.testmod(kubernetes_pod).failed == 0
