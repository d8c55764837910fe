"""The recording proxy changes nothing and reports every call."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from astraflow.access.authority import Authority, new_request
from astraflow.access.callers import Caller, Role
from astraflow.access.credentials import CredentialSigner, new_id
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.client.data_plane import NodeDataClient, TrainerDataClient
from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.batches import Batch, StepReport
from astraflow.contract.errors import DeadlineExceeded, NotAuthenticated, Unavailable, UnknownNode
from astraflow.contract.ids import NodeId, PolicyId, Version
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.contract.weights import Manifest
from astraflow.recipe.loading import load_recipe
from astraflow.weights.config import WeightsConfig
from astraflow.weights.publish.publisher import PublishConfig, Publisher
from astraflow.weights.service import running as store_running
from astraflow.wire.channel import ClientTls, ServiceChannel, authority_client_tls, dial
from astraflow.wire.pb import data_plane_pb2 as pb
from astraflow.wire.pb.data_plane_pb2_grpc import NodeDataStub
from astraflow.wire.server import ListenOptions, authority_tls
from soak.ledger import Ledger
from soak.recording_proxy import CallRecorder, recording
from soak.rules import Rules
from soak.scenario import RECIPE
from tests import make
from tests.dataflow.running import TOKEN, facts, running
from tests.weights.versions import POLICY, history

pytestmark = pytest.mark.anyio

SOLVER = PolicyId("solver")


class CallLog(Ledger):
    """Records the reported calls in order, and checks nothing."""

    def __init__(self) -> None:
        super().__init__(Rules(load_recipe(str(RECIPE))))
        self.told: list[tuple[object, ...]] = []
        self.has_heard_of_a_push = asyncio.Event()

    def leased(self, tasks: Iterable[Task]) -> None:
        self.told.append(("leased", *(task.id for task in tasks)))

    def pushed(self, episodes: Iterable[Episode]) -> None:
        self.told.append(("pushed", *(episode.task for episode in episodes)))
        self.has_heard_of_a_push.set()

    def push_answered(self, episodes: Sequence[Episode], outcomes: Sequence[str]) -> None:
        self.told.append(("answered", *outcomes))

    def delivered(self, batch: Batch) -> None:
        self.told.append(("delivered", batch.id, batch.is_redelivered, len(batch.rows)))

    def step_answered(self, report: StepReport, *, is_first: bool) -> None:
        self.told.append(("step", report.batch, is_first))

    def publish_asked(self, manifest: Manifest) -> None:
        self.told.append(("publish", manifest.version))

    def publish_answered(self, policy: PolicyId, version: Version, *, is_new: bool) -> None:
        self.told.append(("published", policy, version, is_new))


@asynccontextmanager
async def dataflow_behind_a_recorder(directory: Path) -> AsyncIterator[tuple[ServiceChannel, CallLog]]:
    calls = CallLog()
    async with (
        running(directory) as service,
        recording(service.link.address, CallRecorder(calls)) as address,
        dial(address, token=TOKEN) as link,
    ):
        yield link, calls


@pytest.mark.long
async def test_calls_are_recorded_from_lease_to_step(tmp_path: Path) -> None:
    async with dataflow_behind_a_recorder(tmp_path) as (link, calls):
        nodes, trainer = NodeDataClient(link), TrainerDataClient(link, SOLVER)
        node = (await nodes.join(facts())).node
        tasks = [task.id for task in (await nodes.lease(node, 4, wait_s=1)).tasks]
        episodes = [make.episode(task, node=node) for task in tasks]
        assert await nodes.push(node, episodes) == ("accepted",) * 4
        assert await nodes.push(node, episodes[:1]) == ("late",)
        assert await trainer.pull_batch(version=Version(0), wait_s=1) is not None
        batch = await trainer.pull_batch(version=Version(0), wait_s=1)
        assert batch is not None
        report = StepReport(batch=batch.id, policy=SOLVER, version=Version(1), wait_s=0, compute_s=0, publish_s=0)
        assert await trainer.report_step(report)
        assert not await trainer.report_step(report)
        assert await trainer.pull_batch(version=Version(1), wait_s=0) is None
        assert (await ControlPlaneClient(link).report()).streams[0].training.steps == 1
    assert calls.told == [
        ("leased", *tasks),
        ("pushed", *tasks),
        ("answered", *["accepted"] * 4),
        ("pushed", tasks[0]),
        ("answered", "late"),
        ("delivered", batch.id, False, 4),
        ("delivered", batch.id, True, 4),
        ("step", batch.id, True),
        ("step", batch.id, False),
    ]


async def test_publishes_and_notices_of_versions_are_recorded(tmp_path: Path) -> None:
    calls = CallLog()
    async with (
        store_running(WeightsConfig(), listen=ListenOptions(token=TOKEN), directory=tmp_path) as store,
        recording(store, CallRecorder(calls)) as address,
        dial(address, token=TOKEN) as link,
    ):
        client = WeightPlaneClient(link)
        async with Publisher(client, POLICY, config=PublishConfig(is_shared=False)) as publisher:
            for version, tensors in enumerate(history(2)):
                await publisher.publish(Version(version), tensors)
        async for notice in client.watch(POLICY, after=None):
            assert notice.version == 1
            break
        plan = await client.plan(POLICY, have=None)
        sizes = [[len(chunk.data) async for chunk in client.fetch(transfer)] for transfer in plan.transfers]
        assert sum(map(sum, sizes)) == plan.size_bytes
    assert calls.told == [
        step for version in range(2) for step in (("publish", version), ("published", POLICY, version, True))
    ]


async def test_a_caller_of_a_run_with_mutual_tls_is_authenticated_behind_the_recorder(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "authority", run="test")
    listen = ListenOptions(token=TOKEN, tls=authority_tls(authority, "127.0.0.1"), authority=authority)
    holder = Caller(id=new_id(), role=Role.NODE, expires_at=time.time() + 600, name="node-far-1", pool="far")
    key, request = new_request()
    own = ClientTls(ca=authority.pem, certificate=authority.for_caller(request, holder), key=key)
    credential, witness = CredentialSigner(TOKEN).sign(holder), CallRecorder(CallLog())
    async with (
        store_running(WeightsConfig(), listen=listen, directory=tmp_path / "store") as store,
        recording(store, witness, authority=authority) as address,
        dial(address, token=TOKEN, tls=authority_client_tls(authority)) as link,
        dial(address, token=credential, tls=own) as node_link,
    ):
        async with Publisher(WeightPlaneClient(link), POLICY, config=PublishConfig(is_shared=False)) as publisher:
            await publisher.publish(Version(0), history(1)[0])
        node = WeightPlaneClient(node_link)
        plan = await node.plan(POLICY, have=None)
        sizes = [[len(chunk.data) async for chunk in node.fetch(transfer)] for transfer in plan.transfers]
        async with dial(address, token=credential.swapcase(), tls=own) as stranger:
            with pytest.raises(NotAuthenticated):
                await WeightPlaneClient(stranger).versions(POLICY)
    assert witness.reply_bytes["node-far-1", "Fetch"] >= sum(map(sum, sizes)) > 0
    assert ("", "Fetch") not in witness.reply_bytes


@pytest.mark.flaky(reruns=1)  # gRPC reports an internal error after other tests of the same process; alone it passes
async def test_errors_and_deadlines_pass_unchanged(tmp_path: Path) -> None:
    async with dataflow_behind_a_recorder(tmp_path) as (link, calls):
        with pytest.raises(UnknownNode):
            await NodeDataClient(link).lease(NodeId("unknown.1"), 1, wait_s=0)
        nodes = NodeDataClient(link)
        node = (await nodes.join(facts())).node
        tasks = (await nodes.lease(node, 100, wait_s=0)).tasks
        request = pb.LeaseRequest(node=node, capacity=1, wait_s=10)
        with pytest.raises(DeadlineExceeded):
            await link.call(NodeDataStub(link.channel).Lease, request, timeout_s=0.2)
        async with dial(link.address, token="another") as stranger:
            with pytest.raises(NotAuthenticated):
                await NodeDataClient(stranger).join(facts())
    assert calls.told == [("leased", *(task.id for task in tasks))]


async def test_an_unreachable_service_is_unavailable() -> None:
    async with recording("127.0.0.1:1", CallRecorder(CallLog())) as address, dial(address, token=TOKEN) as link:
        with pytest.raises(Unavailable):
            await NodeDataClient(link).join(facts())


async def test_a_push_is_recorded_before_its_answer(tmp_path: Path) -> None:
    """The caller hangs up at once, so no answer shows whether the service accepted the push."""
    async with dataflow_behind_a_recorder(tmp_path) as (link, calls):
        nodes = NodeDataClient(link)
        node = (await nodes.join(facts())).node
        (task,) = (await nodes.lease(node, 1, wait_s=1)).tasks
        pushing = asyncio.create_task(nodes.push(node, [make.episode(task.id, node=node)]))
        await calls.has_heard_of_a_push.wait()
        pushing.cancel()
        await asyncio.gather(pushing, return_exceptions=True)
    assert calls.told[1] == ("pushed", task.id)
