import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import InvalidInput, NotAuthenticated, Unavailable
from astraflow.contract.ids import PolicyId, PromptId, TaskId, Version
from astraflow.contract.nodes import Directive
from astraflow.contract.rollouts.agent_calls import AgentCall, LiveSession
from astraflow.contract.rollouts.tasks import Prompt, Task
from astraflow.contract.weights import Dtype
from astraflow.raas.config import RaasConfig
from astraflow.raas.engines.scripted import ScriptedEngine
from astraflow.raas.service import serve
from astraflow.weights.config import WeightsConfig
from astraflow.weights.publish.publisher import Publisher
from astraflow.weights.service import running
from astraflow.wire.channel import dial
from astraflow.wire.server import ListenOptions
from astraflow.workflows import workflows
from astraflow.workflows.single_turn import SingleTurn, SingleTurnOptions
from tests import make
from tests.errors import raises_code
from tests.fakes.agent_session import live_session
from tests.fakes.dataflow import TOKEN, FakeDataflow, flow

pytestmark = pytest.mark.anyio

QUICK: dict[str, Any] = {
    "kind": "scripted",
    "first_token_s": {"mean": 0.001},
    "tokens": {"mean": 8},
    "tokens_per_s": 0,
    "swap_s": 0,
    "accuracy_start": 1.0,
    "accuracy_ceiling": 1.0,
}
SLOW: dict[str, Any] = {**QUICK, "first_token_s": {"kind": "constant", "mean": 1.5}}
LONG: dict[str, Any] = {**QUICK, "tokens": {"kind": "constant", "mean": 100_000}, "tokens_per_s": 10_000}
ENDLESS: dict[str, Any] = {**QUICK, "first_token_s": {"kind": "constant", "mean": 3600}}


def tasks(count: int, *, begin: int = 0) -> list[Task]:
    """Returns tasks that the scripted engine can answer."""
    prompt = Prompt(id=PromptId("scripted:0"), fields={"question": "say right", "answer": "right"})
    return [make.task(group=group, prompt_given=prompt) for group in range(begin, begin + count)]


async def publish(address: str, version: int, policy: str = "solver") -> None:
    bits = np.random.default_rng(0).integers(0, 2**16, 4096).astype("<u2")
    bits[version] ^= 1
    async with dial(address, token=TOKEN) as link:
        publisher = Publisher(WeightPlaneClient(link), PolicyId(policy))
        await publisher.publish(Version(version), {"weight": (Dtype.BFLOAT16, (4096,), bits)})
        await publisher.wait()


@asynccontextmanager
async def weight_store(directory: Path, *, port: int = 0) -> AsyncIterator[str]:
    listen = ListenOptions(port=port, token=TOKEN, drain_s=0.0)
    async with running(WeightsConfig(), listen=listen, directory=directory / "weights") as address:
        yield address


@dataclass(slots=True, kw_only=True)
class Serving:
    stop: asyncio.Event
    task: asyncio.Task[None]

    async def until_ended(self) -> float:
        """Returns the seconds until the service ended."""
        began = time.monotonic()
        async with asyncio.timeout(30):
            await asyncio.wait({self.task})
        return time.monotonic() - began


@asynccontextmanager
async def node(address: str, *, token: str = TOKEN, **options: Any) -> AsyncIterator[Serving]:
    """Runs a node while the block runs."""
    config = RaasConfig.parse({"name": "node", "engine": QUICK, "capacity": 8, **options}, where="node")
    stop = asyncio.Event()
    serving = Serving(
        stop=stop, task=asyncio.create_task(serve(config, dataflow=address, token=token, tls=None, stop=stop))
    )
    try:
        yield serving
    finally:
        stop.set()
        await asyncio.wait({serving.task})
    serving.task.result()


@workflows.register("test_live_agent", options=SingleTurnOptions)
class LiveAgent(SingleTurn):
    """Answers like `single_turn`, and has a session that runs all the time."""

    def live_sessions(self) -> tuple[LiveSession, ...]:
        return (live_session("train:0/0", age_s=3.0),)

    def take_failed_calls(self, task: TaskId) -> tuple[AgentCall, ...]:
        return ()


async def test_a_node_reports_the_sessions_of_its_agents(tmp_path: Path) -> None:
    specs = (flow("plain"), flow("agents", workflow={**flow().workflow, "kind": "test_live_agent"}))
    async with weight_store(tmp_path) as weights:
        dataflow = FakeDataflow(weights_address=weights, flows=specs)
        async with dataflow.serving() as address, node(address):
            await dataflow.until(lambda: bool(dataflow.beats) and bool(dataflow.beats[-1].sessions))
    assert dataflow.beats[-1].sessions == (live_session("train:0/0", age_s=3.0),)
    assert dataflow.beats[-1].gauges["agent_sessions"] == 1.0


@pytest.mark.long
async def test_a_node_joins_loads_weights_and_runs_tasks(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as weights:
        dataflow = FakeDataflow(weights_address=weights)
        dataflow.add(tasks(20))
        options: dict[str, Any] = {"pool": "mine", "price_per_hour": 2.5, "pull": {"use_shared_memory": False}}
        async with dataflow.serving() as address, node(address, **options):
            await dataflow.until(lambda: len(dataflow.beats) > 3)
            assert not dataflow.asked, "nothing is leased before there is a version"
            assert dataflow.beats[-1].versions == {}
            await publish(weights, 0)
            await dataflow.until(lambda: len(dataflow.episodes) == 20)
            await publish(weights, 1)
            await dataflow.until(lambda: dataflow.beats[-1].versions == {"solver": 1})
            dataflow.add(tasks(20, begin=20))
            await dataflow.until(lambda: dataflow.beats[-1].counters["episodes_done"] == 40)

    versions = [episode.trajectories[0].oldest_version for episode in dataflow.episodes.values()]
    assert sorted(version for version in versions if version is not None) == [0] * 20 + [1] * 20
    assert {episode.trajectories[0].reward for episode in dataflow.episodes.values()} == {1.0}
    facts = dataflow.joins[-1]
    assert (facts.name, facts.pool, facts.engine, facts.capacity) == ("node", "mine", "scripted", 8)
    assert (facts.is_simulated, facts.price_per_hour) == (True, 2.5)
    counters = dataflow.beats[-1].counters
    assert (counters["weight_updates_full"], counters["weight_updates_delta"]) == (1, 1)
    assert 0 < counters["weight_bytes_delta"] < counters["weight_bytes_full"] == 8192
    assert counters["tokens_generated"] >= 40 * 6
    assert counters["busy_s"] > 0
    assert dataflow.left == ["stopped"]


async def test_a_node_is_registered_with_its_engine_during_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_up = asyncio.Event()

    async def start(_: ScriptedEngine) -> None:
        await is_up.wait()

    monkeypatch.setattr(ScriptedEngine, "start", start)
    async with weight_store(tmp_path) as weights:
        dataflow = FakeDataflow(weights_address=weights)
        dataflow.add(tasks(1))
        async with dataflow.serving() as address, node(address, engine=None):
            await dataflow.until(lambda: bool(dataflow.joins) and dataflow.joins[-1].engine == "scripted")
            joins, beats = len(dataflow.joins), len(dataflow.beats)
            await publish(weights, 0)
            await dataflow.until(lambda: len(dataflow.beats) > beats + 3)
            assert not dataflow.asked
            is_up.set()
            await dataflow.until(lambda: len(dataflow.episodes) == 1)

    assert len(dataflow.joins) == joins


@pytest.mark.long
async def test_a_node_evaluates_an_older_version_beside_the_newest(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as weights:
        for version in (0, 1):
            await publish(weights, version)
        flows = (flow(), flow("held-out", evaluation_share=0.5))
        dataflow = FakeDataflow(weights_address=weights, flows=flows)
        prompt = tasks(1)[0].prompt
        dataflow.add(make.task(flow="held-out", group=n, pinned=0, prompt_given=prompt) for n in range(3))
        dataflow.add([make.task(flow="held-out", group=3, pinned=2, prompt_given=prompt), *tasks(3)])
        async with dataflow.serving() as address, node(address):
            await dataflow.until(lambda: len(dataflow.episodes) == 6)
            await publish(weights, 2)
            await dataflow.until(lambda: len(dataflow.episodes) == 7)
            await dataflow.until(lambda: dataflow.beats[-1].versions == {"solver": 2})
            await dataflow.until(lambda: dataflow.beats[-1].counters["evaluation_episodes"] == 4)

    written = [(str(task), episode.trajectories[0].oldest_version) for task, episode in dataflow.episodes.items()]
    assert sorted(version for task, version in written if version is not None and "held-out" in task) == [0, 0, 0, 2]
    assert {version for task, version in written if "train" in task} == {1}
    assert set(dataflow.asked_for_evaluations) == {4}, "half of its capacity"
    counters = dataflow.beats[-1].counters
    assert (counters["evaluation_loads"], dataflow.beats[-1].gauges["evaluation_running"]) == (2, 0)
    updates = sum(counters[f"weight_updates_{way}"] for way in ("full", "delta", "shared"))
    assert updates == 2, "the same as without an evaluation"


async def test_a_node_without_evaluations_reports_it(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as weights:
        await publish(weights, 0)
        dataflow = FakeDataflow(weights_address=weights, flows=(flow(), flow("held-out", evaluation_share=0.5)))
        dataflow.add(tasks(1))
        async with dataflow.serving() as address, node(address, evaluates=False):
            await dataflow.until(lambda: len(dataflow.episodes) == 1)
    assert set(dataflow.asked_for_evaluations) == {0}


async def test_stopping_returns_leases_immediately(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as weights:
        await publish(weights, 0)
        dataflow = FakeDataflow(weights_address=weights)
        dataflow.add(tasks(5))
        async with dataflow.serving() as address, node(address, engine=ENDLESS) as serving:
            await dataflow.until(lambda: bool(dataflow.beats) and len(dataflow.beats[-1].running) == 5)
            serving.stop.set()
            took_s = await serving.until_ended()

    assert took_s < 2
    assert {partial.task for partial in dataflow.handed_back} == {task.id for task in tasks(5)}
    assert (dataflow.left, dataflow.returned, dataflow.episodes) == (["stopped"], [], {})


@pytest.mark.long
async def test_stopping_with_a_drain_finishes_running_tasks(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as weights:
        await publish(weights, 0)
        dataflow = FakeDataflow(weights_address=weights)
        dataflow.add(tasks(5))
        async with dataflow.serving() as address, node(address, engine=SLOW, drain_s=5.0) as serving:
            await dataflow.until(lambda: bool(dataflow.beats) and len(dataflow.beats[-1].running) == 5)
            serving.stop.set()
            await serving.until_ended()

    assert len(dataflow.episodes) == 5
    assert dataflow.returned == []


async def test_a_drained_node_finishes_its_tasks_and_leaves(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as weights:
        await publish(weights, 0)
        dataflow = FakeDataflow(weights_address=weights)
        dataflow.add(tasks(5))
        async with dataflow.serving() as address, node(address, engine=SLOW) as serving:
            await dataflow.until(lambda: bool(dataflow.beats) and len(dataflow.beats[-1].running) == 5)
            dataflow.directive = Directive(action="drain", reason="unneeded")
            await serving.until_ended()

    assert len(dataflow.episodes) == 5
    assert dataflow.left == ["unneeded"]


async def test_a_node_told_to_leave_returns_all_tasks(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as weights:
        await publish(weights, 0)
        dataflow = FakeDataflow(weights_address=weights)
        dataflow.add(tasks(5))
        async with dataflow.serving() as address, node(address, engine=ENDLESS) as serving:
            await dataflow.until(lambda: bool(dataflow.beats) and len(dataflow.beats[-1].running) == 5)
            dataflow.directive = Directive(action="drain", reason="unneeded")
            await asyncio.sleep(0.2)
            assert not serving.task.done()
            dataflow.directive = Directive(action="leave", reason="now")
            await serving.until_ended()

    assert len(dataflow.handed_back) == 5
    assert dataflow.left == ["unneeded"], "the first reason is reported"


@pytest.mark.long
async def test_a_drain_with_a_deadline_returns_partial_rollouts_that_another_node_continues(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as weights:
        await publish(weights, 0)
        long = flow(workflow={"kind": "single_turn", "max_new_tokens": 100_000})
        dataflow = FakeDataflow(flows=(long,), weights_address=weights)
        dataflow.add(tasks(5))
        options: dict[str, Any] = {"engine": LONG, "hand_back_s": 9.9}
        async with dataflow.serving() as address:
            async with node(address, **options) as first:
                await dataflow.until(lambda: bool(dataflow.beats) and len(dataflow.beats[-1].running) == 5)
                dataflow.directive = Directive(action="drain", reason="spot price", deadline_s=10.0)
                await first.until_ended()
            begun = {partial.task: partial.tokens for partial in dataflow.handed_back}
            dataflow.directive = Directive(action="continue_running")
            async with node(address, name="other", engine={**LONG, "tokens_per_s": 0}):
                await dataflow.until(lambda: len(dataflow.episodes) == 5)
                rest = 500_000 - sum(begun.values())
                await dataflow.until(lambda: dataflow.beats[-1].counters["tokens_generated"] >= rest)

    assert len(begun) == 5
    assert all(0 < written < 100_000 for written in begun.values())
    assert dataflow.left[0] == "spot price"
    assert not any(heartbeat.is_preempted for heartbeat in dataflow.beats), "it was asked to drain"
    assert {episode.task: episode.continued_tokens for episode in dataflow.episodes.values()} == begun
    for episode in dataflow.episodes.values():
        (trajectory,) = episode.trajectories
        assert (trajectory.model_tokens, trajectory.reward, episode.node[:6]) == (100_000, 1.0, "other.")
    assert dataflow.beats[-1].counters["tokens_continued"] == sum(begun.values())
    assert dataflow.beats[-1].counters["tokens_generated"] == rest


async def test_a_preemption_notice_drains_the_node_and_reaches_dataflow(tmp_path: Path) -> None:
    notice = tmp_path / "notice.json"
    async with weight_store(tmp_path) as weights:
        await publish(weights, 0)
        dataflow = FakeDataflow(weights_address=weights, heartbeat_s=3600)
        dataflow.add(tasks(5))
        watching = {"kind": "file", "path": str(notice), "poll_interval_s": 0.02}
        async with (
            dataflow.serving() as address,
            node(address, engine=ENDLESS, preemption=watching, hand_back_s=9.9) as serving,
        ):
            await dataflow.until(lambda: len(dataflow.leased) == 5)
            notice.write_text('{"deadline_s": 10}')
            await serving.until_ended()

    assert dataflow.beats[-1].leave_reason.startswith("preempted: ")
    assert dataflow.beats[-1].is_preempted
    assert dataflow.left == [dataflow.beats[-1].leave_reason]
    assert len(dataflow.handed_back) == 5


async def test_a_draining_node_ends_immediately_when_stopped(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as weights:
        await publish(weights, 0)
        dataflow = FakeDataflow(weights_address=weights)
        dataflow.add(tasks(5))
        async with dataflow.serving() as address, node(address, engine=ENDLESS) as serving:
            await dataflow.until(lambda: bool(dataflow.beats) and len(dataflow.beats[-1].running) == 5)
            dataflow.directive = Directive(action="drain", reason="unneeded")
            await dataflow.until(lambda: dataflow.beats[-1].leave_reason == "unneeded")
            serving.stop.set()
            took_s = await serving.until_ended()

    assert took_s < 2
    assert len(dataflow.handed_back) == 5
    assert dataflow.left == ["unneeded"], "it leaves once"


async def test_an_unknown_preemption_notice_is_refused(tmp_path: Path) -> None:
    async with FakeDataflow().serving() as address:
        with pytest.raises(ExceptionGroup) as unknown:
            async with node(address, preemption={"kind": "filed"}) as serving:
                await serving.until_ended()
    problem = _cause(unknown.value)
    assert isinstance(problem, InvalidInput)
    assert problem.code == "plugin.unknown_kind"
    assert "'file'" in str(problem)


@pytest.mark.long
async def test_a_node_survives_a_restart_of_dataflow(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as weights:
        await publish(weights, 0)
        dataflow = FakeDataflow(weights_address=weights)
        dataflow.add(tasks(4))
        async with dataflow.serving() as address:
            serving = asyncio.create_task(_run_until_stopped(address, stop := asyncio.Event()))
            await dataflow.until(lambda: bool(dataflow.beats) and len(dataflow.beats[-1].running) == 4)
        dataflow.forget()
        await asyncio.sleep(1.7)  # the episodes end while dataflow is away
        async with dataflow.serving(int(address.rpartition(":")[2])):
            dataflow.add(tasks(4, begin=4))
            await dataflow.until(lambda: len(dataflow.episodes) == 8)
            stop.set()
            await serving

    assert dataflow.outcomes.count("accepted") == 8
    assert len(dataflow.joins[-1].running) == 4
    assert dataflow.left == ["stopped"]


async def _run_until_stopped(address: str, stop: asyncio.Event) -> None:
    config = RaasConfig.parse({"name": "node", "engine": SLOW, "capacity": 4}, where="node")
    await serve(config, dataflow=address, token=TOKEN, tls=None, stop=stop)


@pytest.mark.long
async def test_without_the_weight_store_the_old_version_is_served(tmp_path: Path) -> None:
    dataflow = FakeDataflow()
    async with dataflow.serving() as address:
        async with weight_store(tmp_path) as weights:
            dataflow.weights_address = weights
            await publish(weights, 0)
            stop = asyncio.Event()
            config = RaasConfig.parse({"name": "node", "engine": QUICK, "capacity": 4}, where="node")
            serving = asyncio.create_task(serve(config, dataflow=address, token=TOKEN, tls=None, stop=stop))
            await dataflow.until(lambda: bool(dataflow.beats) and dataflow.beats[-1].versions == {"solver": 0})
        dataflow.add(tasks(4))
        await dataflow.until(lambda: len(dataflow.episodes) == 4)
        async with weight_store(tmp_path, port=int(weights.rpartition(":")[2])):
            await publish(weights, 1)
            await dataflow.until(lambda: dataflow.beats[-1].versions == {"solver": 1})
        stop.set()
        await serving
    written = [trajectory for episode in dataflow.episodes.values() for trajectory in episode.trajectories]
    assert {trajectory.oldest_version for trajectory in written} == {0}


async def test_a_node_rejoins_another_run_at_the_same_address(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as weights:
        await publish(weights, 0)
        dataflow = FakeDataflow(weights_address=weights)
        async with dataflow.serving() as address, node(address):
            await dataflow.until(lambda: bool(dataflow.asked))
            dataflow.run = "another"
            dataflow.flows = (flow("other"),)
            dataflow.forget()
            dataflow.notify()
            await dataflow.until(lambda: len(dataflow.joins) >= 4)
            dataflow.add([make.task(flow="other", prompt_given=tasks(1)[0].prompt)])
            await dataflow.until(lambda: len(dataflow.episodes) == 1)

    assert dataflow.episodes[make.task(flow="other").id].failure is None


@pytest.mark.long
async def test_two_policies_work_together_on_one_node(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as weights:
        dataflow = FakeDataflow(
            flows=(flow(workflow={"kind": "solve_and_verify"}),),
            policies=("solver", "verifier", "bystander"),
            weights_address=weights,
        )
        dataflow.add(tasks(200))
        engine = {**QUICK, "accuracy_start": 0.5, "accuracy_gain": 0}
        async with dataflow.serving() as address, node(address, engine=engine):
            await publish(weights, 0, "solver")
            await dataflow.until(lambda: len(dataflow.beats) > 10)
            assert not dataflow.asked, "the verifier has no version yet"
            await publish(weights, 0, "verifier")
            await dataflow.until(lambda: len(dataflow.episodes) == 200)

    assert dataflow.beats[-1].versions == {"solver": 0, "verifier": 0}
    trajectories = [trajectory for episode in dataflow.episodes.values() for trajectory in episode.trajectories]
    assert sum(episode.policy == "verifier" for episode in trajectories) == 200
    assert 200 < sum(episode.policy == "solver" for episode in trajectories) < 400
    assert 0.3 < np.mean([episode.reward for episode in trajectories]) < 0.7


async def test_a_wrong_token_and_an_unreachable_dataflow_are_errors(tmp_path: Path) -> None:
    async with FakeDataflow().serving() as address:
        with pytest.raises(ExceptionGroup) as refused:
            async with node(address, token="wrong") as serving:
                await serving.until_ended()
    assert isinstance(_cause(refused.value), NotAuthenticated)

    with pytest.raises(ExceptionGroup) as unreachable:
        async with node(address, join_timeout_s=0.3) as serving:
            await serving.until_ended()
    assert isinstance(_cause(unreachable.value), Unavailable)


async def test_a_workflow_that_cannot_be_built_ends_the_node(tmp_path: Path) -> None:
    dataflow = FakeDataflow(flows=(flow(workflow={"kind": "single_turn", "policy": "unknown"}),))
    async with dataflow.serving() as address:
        with pytest.raises(ExceptionGroup) as missing:
            async with node(address) as serving:
                await serving.until_ended()

    problem = _cause(missing.value)
    assert isinstance(problem, InvalidInput)
    assert "'unknown'" in str(problem)
    assert "solver" in str(problem)
    assert "unknown" in dataflow.left[0]


def _cause(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def test_an_invalid_name_is_refused() -> None:
    with raises_code(InvalidInput, "config.invalid", "node.name", "'my node!'"):
        RaasConfig.parse({"name": "my node!"}, where="node")
    assert "-" in RaasConfig().name
