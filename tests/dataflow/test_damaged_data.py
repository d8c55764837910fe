"""Dataflow starts whatever stored record is damaged: it says what it set aside, and what is undamaged counts."""

import os
import random
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from astraflow.archive.set_aside import FOLDER, SetAsideFiles
from astraflow.contract.batches import Batch
from astraflow.contract.errors import AstraFlowError, CorruptData, InvalidInput
from astraflow.contract.ids import FlowId, NodeId, PolicyId, Version
from astraflow.contract.nodes import NodeStatus
from astraflow.contract.records import render
from astraflow.contract.reports.evaluations import EvaluationState
from astraflow.contract.reports.queries import EventQuery, TrajectoryQuery
from astraflow.contract.reports.report import Report
from astraflow.contract.rollouts.recording import Mixture
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.dataflow.config import DataflowConfig
from astraflow.wire.codecs import token_columns as codec_token_columns
from tests import make
from tests.dataflow.running import Service, config, evaluation, facts, running
from tests.dataflow.test_service import episode, step_of, with_text
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

SOLVER, FLOW = PolicyId("solver"), FlowId("train-solver")
Damage: TypeAlias = Callable[[Path], None]


def settings() -> DataflowConfig:
    run = config(max_staleness=3, evaluations={"held_out": evaluation()})
    flows = {name: flow.model_copy(update={"selector": {"kind": "greso"}}) for name, flow in run.flows.items()}
    return run.model_copy(update={"flows": flows})


@pytest.fixture(scope="module")
async def stored_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped with one trained batch, two open ones, two buffered groups, and open groups with
    one of two results and a partial rollout."""
    folder = tmp_path_factory.mktemp("stored") / "dataflow"
    async with running(folder, settings()) as service:
        node = (await service.nodes.join(facts())).node
        tasks = (await service.nodes.lease(node, 8, wait_s=2)).tasks
        await service.nodes.push(node, [with_text(alike(task), "cba") for task in tasks[:4]])
        await service.nodes.push(node, [episode(task) for task in tasks[4:]])
        trainer = service.trainer()
        await trainer.attach(version=Version(0), backend="local", is_simulated=False)
        await trainer.report_step(step_of(await pulled(service, 0)))
        await pulled(service, 1)
        await more(service, 4)
        await pulled(service, 2, unacknowledged=1)
        tasks = (await service.nodes.lease(node, 4, wait_s=2, versions={SOLVER: Version(1)})).tasks
        await service.nodes.push(node, [episode(tasks[0], version=1)])
        await service.nodes.hand_back(node, [make.partial(tasks[1].id)])
        await service.control.pause_flow(FLOW, is_paused=True, actor="ada", reason="a look")
        await service.control.pause_flow(FLOW, is_paused=False, actor="ada", reason="done")
        await service.control.mint_join_token("node", pool="local", actor="ada", reason="a machine")
    return folder


async def pulled(service: Service, version: int, *, unacknowledged: int = 0) -> Batch:
    batch = await service.trainer().pull_batch(version=Version(version), wait_s=2, unacknowledged=unacknowledged)
    assert batch is not None
    return batch


def alike(task: Task) -> Episode:
    """Returns a result with the reward of all others of its group, which the selector remembers."""
    return Episode(task=task.id, node=NodeId("any"), trajectories=(make.trajectory(reward=1.0),))


async def more(service: Service, groups: int) -> None:
    """Pushes complete groups, each in a push of its own."""
    node = (await service.nodes.join(facts("more"))).node
    await service.nodes.heartbeat(NodeStatus(node=node, running=(), versions={SOLVER: Version(1)}))
    tasks = (await service.nodes.lease(node, 2 * groups, wait_s=2, versions={SOLVER: Version(1)})).tasks
    assert len(tasks) == 2 * groups
    for begin in range(0, 2 * groups, 2):
        await service.nodes.push(node, [episode(task, version=1) for task in tasks[begin : begin + 2]])


def execute(folder: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(folder / "journal.sqlite")) as database, database:
        assert database.execute(statement, values).rowcount, "the damage changes something"


def segment_file(folder: Path) -> Path:
    return next((folder / "payload").glob("*.segment"))


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x40
    path.write_bytes(content)


def flip_payload(number: int, *, into: int) -> Damage:
    """Flips a bit of a stored push: `into` bytes after its begin."""

    def damage(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "journal.sqlite")) as database:
            rows = database.execute("select offset from payloads order by number").fetchall()
        flip(segment_file(folder), rows[number % len(rows)][0] + into)

    return damage


def write_segment(content: bytes) -> Damage:
    def damage(folder: Path) -> None:
        segment_file(folder).write_bytes(content)

    return damage


def truncate_segment(folder: Path) -> None:
    os.truncate(segment_file(folder), 5000)


def remove_segment(folder: Path) -> None:
    segment_file(folder).unlink()


def statement(text: str, *values: object) -> Damage:
    return lambda folder: execute(folder, text, *values)


def group_body(body: str, where: str = "1") -> Damage:
    return statement(f"update groups set body = {body} where {where}")  # noqa: S608 (of this table)


def state_body(name: str, body: str) -> Damage:
    return statement("update states set body = ? where name = ?", body, name)


def plugin_state(state: str, path: str, body: str) -> Damage:
    text = "update states set body = json_set(body, ?, json(?)) where name = ?"
    return statement(text, f"$.{path}", body, state)


_ROUTED = "id in (select group_id from admissions where batch is {} limit 1)"

DAMAGES: dict[str, tuple[Damage, str]] = {
    "bits of a push's head": (flip_payload(1, into=3), "result"),
    "bits of a push's hash": (flip_payload(1, into=8), "result"),
    "bits of a push in a batch": (flip_payload(0, into=40), "result"),
    "bits of a push in the buffer": (flip_payload(3, into=40), "result"),
    "bits of a push in an open group": (flip_payload(-1, into=40), "result"),
    "a truncated segment": (truncate_segment, "result"),
    "an empty segment": (write_segment(b""), "result"),
    "a missing segment": (remove_segment, "result"),
    "a segment of zeros": (write_segment(bytes(65536)), "result"),
    "a location": (statement("update payloads set segment = 'x' where number > 3"), "location"),
    "a location beyond the file": (statement("update payloads set offset = 1 << 40"), "result"),
    "all groups": (group_body("'x'"), "group"),
    "a group's characters": (group_body("cast(x'7bff' as text)"), "group"),
    "a group of another shape": (group_body("'[]'"), "group"),
    "a group in a batch": (group_body("'{'", _ROUTED.format("not null")), "group"),
    "a buffered group": (group_body("'{'", _ROUTED.format("null")), "group"),
    "an open group": (group_body("'{'", "id not in (select group_id from admissions)"), "group"),
    "a share": (statement("update admissions set batch = cast(x'ff' as text) where batch is not null"), "share"),
    "a batch": (statement("update batches set version = 'x'"), "batch"),
    "a partial rollout": (statement("update unfinished set partial = x'ffff'"), "partial rollout"),
    "an action": (
        statement("update actions set body = x'ffff' where ordinal = (select max(ordinal) from actions)"),
        "action",
    ),
    "a credential": (statement("update credentials set role = 'king'"), "credential"),
    "a selector's row": (statement("update rows set body = '{' where owner like 'flow%'"), "row"),
    "a selector's row of another shape": (statement("update rows set body = '[1]' where owner like 'flow%'"), "rows"),
    "a selector's state": (plugin_state(f"flow {FLOW}", "issuer.selector.plugins.greso", '{"x": 1}'), "plugin state"),
    "a sampler's state": (plugin_state("stream solver", "sampler.plugins.fresh", "[1]"), ""),
    "the state of the steps": (state_body("steps solver", "{"), "state"),
    "the state of the nodes": (state_body("registry", "[]"), "state"),
    "the state of the trainers": (state_body("trainers", "7"), "state"),
    "the state of the events": (state_body("events", ""), "state"),
    "the state of the history": (state_body("history", "{}"), "state"),
    "the state of the advice": (state_body("advice", "x"), "state"),
}


@asynccontextmanager
async def damaged(stored_run: Path, folder: Path, damage: Damage) -> AsyncIterator[Service]:
    shutil.copytree(stored_run, folder)
    damage(folder)
    async with running(folder, settings()) as service:
        yield service


def assert_balanced(report: Report) -> None:
    for flow in report.flows:
        assert flow.issued == flow.open + flow.admitted + sum(flow.dropped.values())
    (stream,) = report.streams
    assert stream.groups.admitted == stream.groups.accounted


@pytest.mark.parametrize("name", DAMAGES)
async def test_a_run_continues_without_a_damaged_record(name: str, stored_run: Path, tmp_path: Path) -> None:
    damage, what = DAMAGES[name]
    async with damaged(stored_run, tmp_path / "dataflow", damage) as service:
        report = await service.control.report()
        assert report.streams[0].training.steps == 1
        assert_balanced(report)
        held = (
            report.streams[0].groups.buffered
            + report.streams[0].groups.in_batch
            + report.streams[0].groups.dropped.get("damaged", 0)
        )
        assert held == 6, "every untrained group is held or counted as lost"
        if what:
            (event,) = (event for event in report.events if event.kind.value == "records_set_aside")
            assert f" {what}" in render(event)
            assert [problem.cause for problem in report.problems] == ["records_set_aside"]
            (file,) = SetAsideFiles(tmp_path / "dataflow" / FOLDER).files()
            assert f" {what}" in file.summary
        await train_on(service)
    async with running(tmp_path / "dataflow", settings()) as service:
        report = await service.control.report()
        assert report.streams[0].training.steps == 3
        assert "records_set_aside" not in [problem.cause for problem in report.problems]
        assert_balanced(report)
    assert len(SetAsideFiles(tmp_path / "dataflow" / FOLDER).files()) == bool(what)


async def train_on(service: Service) -> None:
    """Trains the batches 1 and 2, with new results where stored ones were lost."""
    node = (await service.nodes.join(facts("later"))).node
    trainer = service.trainer()
    for version in (1, 2):
        while True:
            batch = await trainer.pull_batch(version=Version(version), wait_s=0)
            if batch is not None:
                break
            tasks = (await service.nodes.lease(node, 4, wait_s=0, versions={SOLVER: Version(version)})).tasks
            assert tasks
            await service.nodes.push(node, [episode(task, version=version) for task in tasks])
        assert batch.id == f"solver:{version}"
        assert len(batch.rows) == 4
        assert await trainer.report_step(step_of(batch))
        assert_balanced(await service.control.report())


@pytest.mark.parametrize("state", [f"flow {FLOW}", "stream solver", "evaluation held_out"])
@pytest.mark.parametrize("body", ["{", "[]", "{}"])
async def test_a_run_whose_counts_are_damaged_is_refused(
    state: str, body: str, stored_run: Path, tmp_path: Path
) -> None:
    damage = state_body(state, body)
    with raises_code(InvalidInput, "journal.state_damaged"):
        async with damaged(stored_run, tmp_path / "dataflow", damage):
            pass


@pytest.mark.parametrize("seed", range(6))
async def test_a_journal_with_damaged_pages_is_refused_or_its_counts_balance(
    seed: int, stored_run: Path, tmp_path: Path
) -> None:
    source = random.Random(seed)

    def damage(folder: Path) -> None:
        path = folder / "journal.sqlite"
        content = bytearray(path.read_bytes())
        begin = source.randrange(100, len(content) - 64)
        content[begin : begin + 64] = source.randbytes(64)
        path.write_bytes(content)

    try:
        async with damaged(stored_run, tmp_path / "dataflow", damage) as service:
            assert_balanced(await service.control.report())
    except InvalidInput as refusal:
        assert refusal.code in ("journal.damaged_file", "journal.unusable", "journal.state_damaged")


@pytest.mark.parametrize("seed", range(6))
async def test_a_damaged_archive_never_stops_a_run(seed: int, stored_run: Path, tmp_path: Path) -> None:
    source = random.Random(seed)

    def damage(folder: Path) -> None:
        path = folder / "history.sqlite"
        content = bytearray(path.read_bytes())
        for _ in range(20):
            content[source.randrange(len(content))] ^= 1 << source.randrange(8)
        path.write_bytes(content)

    async with damaged(stored_run, tmp_path / "dataflow", damage) as service:
        for _ in range(2):  # the first query may find the damage
            try:
                await service.control.trajectories(TrajectoryQuery(limit=100))
                await service.control.events(EventQuery())
            except AstraFlowError as problem:
                assert isinstance(problem, CorruptData)
        await service.control.events(EventQuery())
        await train_on(service)


async def test_experts_in_the_bytes_of_an_earlier_release_are_set_aside_although_they_are_as_wide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(TokenColumn.EXPERTS, "_value_", "experts")  # two bytes: the numbers of 2 of 256 experts
        earlier.setitem(codec_token_columns._COLUMNS, "experts", TokenColumn.EXPERTS)
        async with running(tmp_path, settings()) as service:
            node = (await service.nodes.join(facts())).node
            (task,) = (await service.nodes.lease(node, 1, wait_s=2)).tasks
            trajectory = make.trajectory()
            columns = {TokenColumn.EXPERTS: np.full((len(trajectory.logprobs), 2), 7, np.uint8)}
            recorded = (replace(trajectory, token_columns=columns),)
            await service.nodes.push(node, [replace(alike(task), trajectories=recorded)])
    assert Mixture(layers=1, chosen=2, experts=256).width == 2
    async with running(tmp_path, settings()) as service:
        events = (await service.control.report()).events
        (event,) = (event for event in events if event.kind.value == "records_set_aside")
        assert "(1 result)" in (text := render(event))
        assert "token column 'experts' of width 2" in text


async def test_a_round_that_lost_its_last_prompts_ends(tmp_path: Path) -> None:
    async with running(tmp_path, settings()) as service:
        await service.trainer().attach(version=Version(0), backend="local", is_simulated=False)
        await service.control.evaluate(FlowId("held_out"), actor="ada", reason="a look")
        node = (await service.nodes.join(facts())).node
        await service.nodes.heartbeat(NodeStatus(node=node, running=(), versions={SOLVER: Version(0)}))
        tasks = (await service.nodes.lease(node, 8, wait_s=2, evaluation_capacity=8)).tasks
        rounds = [task for task in tasks if task.flow == "held_out"]
        assert len(rounds) == 6
        await service.nodes.push(node, [episode(task) for task in rounds[:4]])
    execute(tmp_path, "update groups set body = '{' where flow = 'held_out'")
    async with running(tmp_path, settings()) as service:
        await service.trainer().attach(version=Version(0), backend="local", is_simulated=False)
        (round_,) = (await service.control.report()).evaluations
        assert (round_.state, round_.done) == (EvaluationState.DONE, 4)
