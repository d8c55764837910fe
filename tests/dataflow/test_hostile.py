"""Malformed frames sent to a real service: it answers a typed error, stores nothing and keeps serving."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from astraflow.contract.errors import InvalidInput, NotAuthenticated, RateLimited
from astraflow.contract.ids import NodeId, TaskId, Version
from astraflow.contract.nodes import NodeStatus
from astraflow.contract.reports.report import NodeState, Report
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.trajectories import Episode, Trajectory
from astraflow.dataflow.storage.journal import Journal
from astraflow.wire.channel import PROTOCOL, PROTOCOL_KEY, dial
from astraflow.wire.codecs.data import encode_push
from astraflow.wire.errors import from_status
from astraflow.wire.pb import common_pb2 as common
from astraflow.wire.pb import control_plane_pb2 as control
from astraflow.wire.pb import data_plane_pb2 as pb
from tests import make
from tests.dataflow.running import TOKEN, Service, config, facts, running
from tests.dataflow.test_service import assert_balanced, episode, produce, step_of

pytestmark = pytest.mark.anyio

METHODS = {
    **dict.fromkeys(("Join", "Lease", "Push", "Heartbeat", "Leave"), "NodeData"),
    **dict.fromkeys(("Attach", "PullBatch", "ReportStep"), "TrainerData"),
    **dict.fromkeys(
        ("GetReport", "History", "Trajectories", "DrainNode", "PauseFlow", "ChangePlugins"), "ControlPlane"
    ),
}
"""Methods that answer at once, by service."""


class Stranger:
    """Sends arbitrary bytes, and returns the answer as the error that a client raises."""

    def __init__(self, channel: grpc.aio.Channel, token: str = TOKEN) -> None:
        self._channel = channel
        self._metadata = (("authorization", f"Bearer {token}"), (PROTOCOL_KEY, PROTOCOL))

    async def send(self, method: str, body: bytes) -> Exception | None:
        """Returns the error, or None when the service accepted the bytes."""
        path = f"/astraflow.v1.{METHODS[method]}/{method}"
        make_call: Any = self._channel.unary_stream if method == "PullBatch" else self._channel.unary_unary
        call = make_call(path)(body, timeout=30, metadata=self._metadata)
        try:
            if isinstance(call, AsyncIterator) or method == "PullBatch":
                async for _ in call:
                    pass
            else:
                await call
        except grpc.aio.AioRpcError as problem:
            assert problem.code() is not grpc.StatusCode.INTERNAL, f"{method} {body!r}: {problem.details()}"
            return from_status(problem, peer="dataflow")
        return None


async def unchanged(service: Service, before: Report) -> None:
    """Asserts that the service has the same groups and episodes as before."""
    after = await service.control.report()
    assert [(flow.issued, flow.admitted, flow.episodes) for flow in after.flows] == [
        (flow.issued, flow.admitted, flow.episodes) for flow in before.flows
    ]
    assert [(stream.groups.admitted, stream.version, stream.training.steps) for stream in after.streams] == [
        (stream.groups.admitted, stream.version, stream.training.steps) for stream in before.streams
    ]
    assert_balanced(after)


@pytest.mark.parametrize("seed", range(4))
async def test_mutated_requests_never_make_the_service_fail(tmp_path: Path, seed: int) -> None:
    """Changes, cuts, doubles and inserts bytes of valid requests; the service accepts a request whole or not at all."""
    chance = random.Random(f"hostile/{seed}")
    async with running(tmp_path) as service:
        node = (await service.nodes.join(facts())).node
        lease = await service.nodes.lease(node, 4, wait_s=2)
        stranger = Stranger(service.link.channel)
        good = valid_requests(node, [episode(task) for task in lease.tasks])
        refused = 0
        for _ in range(150):
            method = chance.choice(list(METHODS))
            refused += await stranger.send(method, damaged(chance, good, method)) is not None
        assert refused > 20
        report = await service.control.report()
        assert_balanced(report)
        assert not report.problems
    async with running(tmp_path) as service:
        assert_balanced(await service.control.report())
        await service.nodes.join(facts())


def valid_requests(node: NodeId, episodes: list[Episode]) -> dict[str, bytes]:
    return {
        "Join": pb.JoinReply(node="other").SerializeToString(),
        "Lease": pb.LeaseRequest(node=node, capacity=2, wait_s=0.0, versions={"solver": 0}).SerializeToString(),
        "Push": encode_push(node, episodes),
        "Heartbeat": pb.HeartbeatRequest(
            node=node, versions={"solver": 0}, running=["train-solver:0/0"]
        ).SerializeToString(),
        "Leave": pb.LeaveRequest(node=node, reason="bye").SerializeToString(),
        "Attach": pb.AttachRequest(policy="solver", version=0, backend="x").SerializeToString(),
        "PullBatch": pb.PullBatchRequest(policy="solver", version=0, wait_s=0.0).SerializeToString(),
        "ReportStep": pb.ReportStepRequest(batch="solver:0", policy="solver", version=1).SerializeToString(),
        "ChangePlugins": control.ChangePluginsRequest(
            flow="train-solver",
            selector='{"kind":"greso","step":0.02}',
            filters=control.FilterSpecs(specs=['{"kind":"length"}']),
            actor="a stranger",
            reason="damage",
        ).SerializeToString(),
        **dict.fromkeys(("GetReport", "History", "Trajectories", "DrainNode", "PauseFlow"), b"\x0a\x04node"),
    }


def damaged(chance: random.Random, good: dict[str, bytes], method: str) -> bytes:
    body = bytearray(good[method if chance.random() < 0.8 else chance.choice(list(good))])
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(body) + 1)
        match chance.randrange(5):
            case 0:
                del body[at:]
            case 1:
                body[at:at] = chance.randbytes(chance.randint(1, 12))
            case 2 if at < len(body):
                body[at] ^= 1 << chance.randrange(8)
            case 3:
                body[at:at] = b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f"
            case _:
                body += body[:at]
    return bytes(body)


async def works(service: Service) -> None:
    """Runs one group from lease to training."""
    await produce(service, 2)
    trainer = service.trainer()
    welcome = await trainer.attach(version=Version(0), backend="local", is_simulated=False)
    batch = await trainer.pull_batch(version=Version(welcome.acknowledged_steps), wait_s=5)
    assert batch is not None
    assert await trainer.report_step(step_of(batch))


def built(*, reward: float = 1.0, policy: str = "solver", version: int = 0) -> bytes:
    """Builds a push that no correct client can make: the dataclasses refuse parts of it."""
    trajectory = make.trajectory(policy="solver", version=0)
    raw = encode_push(
        NodeId("node.1"), [Episode(task=TaskId("train-solver:0/0"), node=NodeId("node.1"), trajectories=(trajectory,))]
    )
    message = pb.PushRequest.FromString(raw)
    message.trajectories.rewards[0] = reward
    message.trajectories.policies[0] = policy
    message.trajectories.span_versions[1] = version + 1
    return message.SerializeToString()


def with_arrays(tokens: list[int], logprobs: list[float]) -> bytes:
    message = pb.PushRequest.FromString(built())
    message.arrays = np.array(tokens, dtype="<i4").tobytes() + np.array(logprobs, dtype="<f4").tobytes()
    return message.SerializeToString()


def with_columns(*columns: tuple[str, int, np.ndarray[Any, Any]]) -> bytes:
    """Adds columns of these names and widths to a push with the sampled tokens 3 to 7."""
    message = pb.PushRequest.FromString(built())
    for name, width, array in columns:
        message.trajectories.token_columns.add(name=name, width=width)
        message.arrays += array.tobytes()
    return message.SerializeToString()


TOP = ("top_tokens", 1, np.ones(5, "<i4"))
BAD_COLUMNS = [
    ("unknown", with_columns(("routes", 1, np.ones(5, "<i4")))),
    ("unknown", with_columns(("support", 0, np.ones(0, "<i4")))),
    ("unknown", with_columns(*[("support", 1, np.arange(3, 8, dtype="<i4"))] * 2)),
    ("wrong_shape", with_columns(TOP)),
    ("invalid_id", with_columns(("support", 1, np.full(5, -2, "<i4")))),
    ("invalid_logprob", with_columns(TOP, ("top_logprobs", 1, np.full(5, np.nan, "<f2")))),
    ("invalid_logprob", with_columns(TOP, ("top_logprobs", 1, np.full(5, 0.1, "<f2")))),
    ("invalid_temperature", with_columns(("temperature", 1, np.full(5, np.inf, "<f4")))),
    ("lacks_sampled", with_columns(("support", 1, np.arange(4, 9, dtype="<i4")))),
]


async def test_a_push_with_columns_that_no_sampler_has_is_refused_completely(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        node = (await service.nodes.join(facts())).node
        await service.nodes.lease(node, 4, wait_s=2)
        before = await service.control.report()
        stranger = Stranger(service.link.channel)
        for code, body in BAD_COLUMNS:
            problem = await stranger.send("Push", body)
            assert isinstance(problem, InvalidInput)
            assert problem.code == f"token_column.{code}"
        cut = await stranger.send("Push", with_columns(("support", 2, np.arange(3, 8, dtype="<i4"))))
        assert isinstance(cut, InvalidInput)
        assert cut.code == "trajectory.invalid", "fewer bytes than the widths say"
        await unchanged(service, before)
        good = with_columns(("support", 1, np.arange(3, 8, dtype="<i4")))
        assert await stranger.send("Push", good) is None
        await works(service)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (built(reward=float("nan")), "'rewards': nan is not a finite number"),
        (built(reward=float("inf")), "'rewards': inf is not a finite number"),
        (built(reward=1.7e308), "'rewards': 1.7e+308 is not a finite number up to 1e+09"),
        (built(policy="someone-else"), "no policy 'someone-else'; use one of solver"),
        (built(version=2**64 - 2), "a version is above"),
        (built(version=2**53), "no trainer has made the version of 'solver' that wrote it (the trainer is at 0)"),
        (with_arrays([1] * 8, [0.0] * 4), "48 bytes, but the spans count 8 tokens and 5 logprobs"),
        (with_arrays([1] * 8, [float("nan")] * 5), "a logprob is not a finite number"),
        (with_arrays([-5] * 8, [0.0] * 5), "a token id is negative"),
        (b"\x72\0\x7a\xff\xff\xff\xff\x7f", "bytes of arrays"),
        (b"\x7a\xff\xff\xff\xff\x0f", "as PushRequest"),
        (b"\0" * 1000, "as PushRequest"),
    ],
)
async def test_an_invalid_push_is_refused_completely(tmp_path: Path, body: bytes, says: str) -> None:
    async with running(tmp_path) as service:
        node = (await service.nodes.join(facts())).node
        await service.nodes.lease(node, 4, wait_s=2)
        before = await service.control.report()
        problem = await Stranger(service.link.channel).send("Push", body)
        assert isinstance(problem, InvalidInput)
        assert says in str(problem)
        await unchanged(service, before)
        await works(service)
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        assert not list(journal.payloads()), "valid results were trained and invalid ones never stored"


async def test_a_version_beyond_the_trainers_next_one_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        node = (await service.nodes.join(facts())).node
        (task, *_) = (await service.nodes.lease(node, 4, wait_s=2)).tasks
        await service.trainer().attach(version=Version(3), backend="local", is_simulated=False)
        with pytest.raises(InvalidInput) as caught:
            await service.nodes.push(node, [episode(task, version=5)])
        assert caught.value.code == "episode.unknown_version"
        assert await service.nodes.push(node, [episode(task, version=4)]) == ("accepted",)


async def test_the_token_of_another_run_is_refused_by_every_method(tmp_path: Path) -> None:
    async with running(tmp_path) as service, dial(service.link.address, token="other") as link:
        await service.nodes.join(facts())
        before = await service.control.report()
        for method in METHODS:
            refused = await Stranger(link.channel, "other").send(method, b"")
            assert isinstance(refused, NotAuthenticated | RateLimited)  # rate-limited after ten wrong tokens
        await unchanged(service, before)


@pytest.mark.parametrize("wait_s", [float("nan"), float("inf"), float("-inf")])
async def test_waits_that_are_not_finite_are_refused(tmp_path: Path, wait_s: float) -> None:
    async with running(tmp_path) as service:
        node = (await service.nodes.join(facts())).node
        stranger = Stranger(service.link.channel)
        for method, body in {
            "Lease": pb.LeaseRequest(node=node, capacity=1, wait_s=wait_s),
            "PullBatch": pb.PullBatchRequest(policy="solver", wait_s=wait_s),
        }.items():
            problem = await stranger.send(method, body.SerializeToString())
            assert isinstance(problem, InvalidInput)
            assert "wait_s" in str(problem)


NAN, INF = float("nan"), float("inf")


def invalid_heartbeats(node: NodeId) -> Iterator[pb.HeartbeatRequest]:
    for value in (NAN, INF, -INF, 1.7e308):
        yield pb.HeartbeatRequest(node=node, counters={"busy_s": value})
        yield pb.HeartbeatRequest(node=node, gauges={"tokens_per_s": value})
        yield pb.HeartbeatRequest(node=node, links=[common.LinkReport(source="127.0.0.1:1", fetch_s=value)])
    yield pb.HeartbeatRequest(node=node, counters={f"counter-{index}": 1.0 for index in range(65)})
    yield pb.HeartbeatRequest(node=node, gauges={"x" * 129: 1.0})
    yield pb.HeartbeatRequest(node=node, errors=["x"] * 9)
    yield pb.HeartbeatRequest(node=node, errors=["x" * 4096])
    yield pb.HeartbeatRequest(node=node, running=["x"] * 4097)
    yield pb.HeartbeatRequest(node=node, running=["x" * 129])
    yield pb.HeartbeatRequest(node=node, leave_reason="x" * 4096)
    yield pb.HeartbeatRequest(node=node, links=[common.LinkReport(source="127.0.0.1:1")] * 65)
    yield pb.HeartbeatRequest(node=node, links=[common.LinkReport(source="127.0.0.1:1", versions=2**64 - 1)])
    for source in ("javascript:alert(1)", "ftp://h/x", "data:text/html,x", "127.0.0.1", "h\n:1", "x" * 600 + ":1"):
        yield pb.HeartbeatRequest(node=node, links=[common.LinkReport(source=source)])


async def test_an_invalid_heartbeat_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        node = (await service.nodes.join(facts())).node
        stranger = Stranger(service.link.channel)
        for heartbeat in invalid_heartbeats(node):
            assert isinstance(await stranger.send("Heartbeat", heartbeat.SerializeToString()), InvalidInput), heartbeat
        (shown,) = (await service.control.report()).nodes
        assert (shown.counters, shown.gauges, shown.errors, shown.links) == ({}, {}, (), ())


async def test_unknown_counters_and_gauges_are_ignored(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        node = (await service.nodes.join(facts())).node
        heartbeat = pb.HeartbeatRequest(node=node, counters={"busy_s": 2.0, "invented": 3.0}, gauges={"invented": 1.0})
        assert await Stranger(service.link.channel).send("Heartbeat", heartbeat.SerializeToString()) is None
        (shown,) = (await service.control.report()).nodes
        assert (shown.counters, shown.gauges) == ({"busy_s": 2.0}, {})


def labels(field: str, text: str) -> dict[str, Any]:
    return {field: text}


def invalid_facts() -> Iterator[common.NodeFacts]:
    for value in (NAN, INF, 1.7e308):
        yield common.NodeFacts(name="node", pool="local", price_per_hour=value)
    yield common.NodeFacts(name="node", pool="local", capacity=4097)
    for field in ("region", "engine", "hardware", "software"):
        for text in ("x" * 257, "two\nlines", "\x1b[2J", "\u202e"):
            yield common.NodeFacts(name="node", pool="local", **labels(field, text))
    yield common.NodeFacts(name="x" * 129, pool="local")
    yield common.NodeFacts(name="node", pool="local", running=["train:0/0"] * 4097)


async def test_a_join_with_invalid_facts_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        stranger = Stranger(service.link.channel)
        for node_facts in invalid_facts():
            assert isinstance(await stranger.send("Join", node_facts.SerializeToString()), InvalidInput), node_facts
        assert (await service.control.report()).nodes == ()


async def test_an_invalid_step_report_is_refused_completely(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.trainer().attach(version=Version(0), backend="local", is_simulated=False)
        before = await service.control.report()
        stranger = Stranger(service.link.channel)
        step: dict[str, Any] = {"batch": "solver:0", "policy": "solver", "version": 1}
        broken = [
            *(pb.ReportStepRequest(**step, metrics={"loss": value}) for value in (NAN, INF, 1.7e308)),
            pb.ReportStepRequest(**step, compute_s=NAN),
            pb.ReportStepRequest(**step, metrics={f"m{index}": 0.0 for index in range(1025)}),
        ]
        for report in broken:
            assert isinstance(await stranger.send("ReportStep", report.SerializeToString()), InvalidInput)
        await unchanged(service, before)


@pytest.mark.long
async def test_too_large_heartbeats_of_one_node_do_not_delay_other_nodes(tmp_path: Path) -> None:
    """Refuses large heartbeats by their size alone, without decoding them."""
    large = pb.HeartbeatRequest(counters={f"counter-{index:07}": 1.0 for index in range(2**20)}).SerializeToString()
    async with running(tmp_path, config(lease_s=2.0)) as service, dial(service.link.address, token=TOKEN) as hostile:
        node = (await service.nodes.join(facts())).node
        attacks = [asyncio.create_task(Stranger(hostile.channel).send("Heartbeat", large)) for _ in range(6)]
        while not all(attack.done() for attack in attacks):
            assert (
                await service.nodes.heartbeat(NodeStatus(node=node, running=(), versions={}))
            ).action == "continue_running"
        assert all(isinstance(attack.result(), InvalidInput) for attack in attacks)
        (shown,) = (await service.control.report()).nodes
        assert shown.state in (NodeState.JOINING, NodeState.READY)


async def test_a_replayed_push_counts_once(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        node = (await service.nodes.join(facts())).node
        lease = await service.nodes.lease(node, 4, wait_s=2)
        raw = encode_push(node, [episode(task) for task in lease.tasks])
        stranger = Stranger(service.link.channel)
        for _ in range(20):
            assert await stranger.send("Push", raw) is None
        (flow,) = (await service.control.report()).flows
        assert flow.episodes["accepted"] == 4
        assert sum(count for outcome, count in flow.episodes.items() if outcome != "accepted") == 76


async def test_a_trajectory_without_a_model_span_is_left_out(tmp_path: Path) -> None:
    """Leaves out the member: without tokens of the model there is nothing to train on."""
    silent = Trajectory(
        policy=make.trajectory().policy,
        tokens=np.zeros(4, dtype=np.int32),
        logprobs=np.zeros(0, dtype=np.float32),
        spans=(Span(author=Author.CONTEXT, length=4),),
        reward=0.0,
    )
    async with running(tmp_path) as service:
        node = (await service.nodes.join(facts())).node
        lease = await service.nodes.lease(node, 2, wait_s=2)
        pushed = [Episode(task=task.id, node=node, trajectories=(silent,)) for task in lease.tasks]
        await service.nodes.push(node, pushed)
        (flow,) = (await service.control.report()).flows
        assert flow.dropped == {"failed": 1}
