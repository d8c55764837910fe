"""Changes of data algorithms while a run is running."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.batches import StepReport
from astraflow.contract.errors import AstraFlowError, InternalError, InvalidInput, NotPermitted, UnknownPolicy
from astraflow.contract.ids import FlowId, PolicyId, Version
from astraflow.contract.plugins import PluginChange, PluginSlot, PluginSpec
from astraflow.contract.records import render
from astraflow.contract.reports.report import FlowReport, Report, StreamReport
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.contract.values import Json
from astraflow.dataflow.admission.filters import filters
from astraflow.dataflow.admission.filters.keep_all import KeepAll, KeepAllOptions
from astraflow.dataflow.admission.routing import RoutedGroup
from astraflow.dataflow.config import DataflowConfig
from astraflow.dataflow.issuing.selectors import Rewards, selectors
from astraflow.dataflow.operations.nodes import NodeOperations
from astraflow.dataflow.operations.trainers import TrainerOperations
from astraflow.dataflow.plugin_changes import MAX_PLUGINS, MAX_TEXT_LENGTH
from astraflow.dataflow.reporting.report import build_report
from astraflow.dataflow.run import Run
from astraflow.dataflow.serving.buffer import BufferedGroup
from astraflow.dataflow.serving.samplers import samplers
from astraflow.recipe.loading import load_recipe
from astraflow.runtime.config.base import Config
from tests import make
from tests.dataflow.running import config, facts, opened, running
from tests.dataflow.test_service import assert_balanced, produce, step_of
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

FLOW, SOLVER, VERIFIER = FlowId("train-solver"), PolicyId("solver"), PolicyId("verifier")
UNIFORM, GRESO, SEQUENTIAL = {"kind": "uniform"}, {"kind": "greso"}, {"kind": "sequential"}
KEEP_ALL, INFORMATIVE = {"kind": "keep_all"}, {"kind": "informative"}
FRESH: dict[str, Any] = {"kind": "fresh"}
REPLAY: dict[str, Any] = {"kind": "replay", "ratio": 0.5}


def of_flow(**specs: Any) -> PluginChange:
    return PluginChange(flow=FLOW, actor="ada", reason="a try", **specs)


def of_policy(sampler: PluginSpec) -> PluginChange:
    return PluginChange(policy=SOLVER, sampler=sampler, actor="ada", reason="a try")


def edited(**changes: Any) -> DataflowConfig:
    plain = config()
    flows = {name: flow.model_copy(update=changes) for name, flow in plain.flows.items()}
    return plain.model_copy(update={"flows": flows})


def reported(run: Run) -> Report:
    return build_report(run, name="test", sequence=1, now=0, wall=0, uptime_s=0)


def flow_of(run: Run) -> FlowReport:
    return reported(run).flows[0]


def stream_of(run: Run) -> StreamReport:
    return reported(run).streams[0]


def happened(run: Run) -> list[str]:
    return [
        f"{event.kind.value} {event.subject} {render(event)}"
        for event in run.events.latest(50)
        if "plugins" in event.kind.value
    ]


def attach(run: Run, version: int, policy: PolicyId = SOLVER) -> None:
    TrainerOperations(run).attach(policy, Version(version), backend="fake", is_simulated=True)


async def lease(run: Run, count: int, *, version: int = 0) -> tuple[Task, ...]:
    nodes = NodeOperations(run)
    node = nodes.membership.join(facts()).id
    return (await nodes.leasing.lease(node, count, versions={SOLVER: Version(version)}, wait_s=0)).tasks


async def push(run: Run, tasks: tuple[Task, ...], *, spread: bool, version: int = 0) -> None:
    nodes = NodeOperations(run)
    node = nodes.membership.join(facts()).id
    for task in tasks:
        reward = float(task.member % 2) if spread else 1.0
        trajectory = make.trajectory(version=version, reward=reward)
        await nodes.results.push(node, [Episode(task=task.id, node=node, trajectories=(trajectory,))])


async def step(run: Run, version: int) -> None:
    """Trains one batch as the trainer of a run at `version`."""
    trainers = TrainerOperations(run)
    batch = await trainers.pull(SOLVER, Version(version), wait_s=0)
    assert batch is not None
    report = StepReport(batch=batch.id, policy=SOLVER, version=Version(version + 1), wait_s=0, compute_s=1, publish_s=0)
    await trainers.report_step(report)


@pytest.mark.long
async def test_a_plugin_change_states_when_it_takes_effect(tmp_path: Path) -> None:
    """Changes plugins over real gRPC, also across a restart whose recipe has the original plugins."""
    async with running(tmp_path) as service:
        trainer = service.trainer()
        await trainer.attach(version=Version(0), backend="local", is_simulated=False)
        answer = await service.control.change_plugins(of_flow(selector=GRESO, filters=(INFORMATIVE,)))
        assert [part.split()[0] for part in answer.split("; ")] == ["selector", "filters"]
        assert answer.count("flows.train-solver") == answer.count("next version") == 2
        await service.control.change_plugins(of_policy(REPLAY))
        report = await service.control.report()
        assert (report.flows[0].selector, report.flows[0].filters) == (UNIFORM, (KEEP_ALL,))
        assert [
            (planned_change.slot, planned_change.specs, planned_change.actor)
            for planned_change in report.flows[0].planned
        ] == [
            (PluginSlot.SELECTOR, (GRESO,), "ada"),
            (PluginSlot.FILTERS, (INFORMATIVE,), "ada"),
        ]
        assert (report.streams[0].sampler, report.streams[0].planned[0].specs) == (FRESH, (REPLAY,))
        await produce(service, 2)
        batch = await trainer.pull_batch(version=Version(0), wait_s=2)
        assert batch is not None
        await trainer.report_step(step_of(batch))
        changed = await service.control.report()
    async with running(tmp_path) as service:
        for report in (changed, await service.control.report()):
            assert (report.flows[0].selector, report.flows[0].filters) == (GRESO, (INFORMATIVE,))
            assert report.streams[0].sampler == REPLAY
            assert report.flows[0].planned == report.streams[0].planned == ()
            assert_balanced(report)
            messages = [render(event) for event in report.events if event.kind.value == "plugins_changed"]
            assert len(messages) == 3
            assert all("ada: a try" in message for message in messages)


@pytest.mark.parametrize(
    ("key", "wanted", "spec"),
    [
        ("filters.0", of_flow(filters=({"kind": "infomative"},)), "flows.train.filters=[{kind='infomative'}]"),
        ("selector", of_flow(selector={"kind": "greso", "stp": 1}), "flows.train.selector={kind='greso', stp=1}"),
        ("selector", of_flow(selector={"kind": "greso", "step": 2}), "flows.train.selector={kind='greso', step=2}"),
        ("selector", of_flow(selector={}), "flows.train.selector={}"),
        (
            "filters.1",
            of_flow(filters=(KEEP_ALL, {"kind": "length", "min_tokens": 9, "max_tokens": 8})),
            "flows.train.filters=[{kind='keep_all'}, {kind='length', min_tokens=9, max_tokens=8}]",
        ),
    ],
)  # fmt: skip
async def test_an_invalid_spec_has_the_error_of_the_recipe(
    tmp_path: Path, key: str, wanted: PluginChange, spec: str
) -> None:
    pytest.importorskip("torch", reason="a recipe with a trainer is checked with torch")
    with pytest.raises(InvalidInput) as in_recipe:
        load_recipe("smoke", [spec])
    async with running(tmp_path) as service:
        with pytest.raises(InvalidInput) as refused:
            await service.control.change_plugins(wanted)
        assert str(in_recipe.value) == f"--set: {str(refused.value).replace('train-solver', 'train')}"
        assert f"flows.train-solver.{key}" in str(refused.value)
        assert (await service.control.report()).flows[0].planned == ()


@pytest.mark.parametrize(
    ("change", "error", "code"),
    [
        (replace(of_flow(selector=GRESO), flow=FlowId("train-solvr")), InvalidInput, "plugins.unknown_flow"),
        (replace(of_policy(FRESH), policy=PolicyId("solvr")), UnknownPolicy, "plugins.unknown_policy"),
        (replace(of_flow(selector=GRESO), flow=None), InvalidInput, "plugins.no_owner"),
        (replace(of_flow(selector=GRESO), policy=SOLVER), InvalidInput, "plugins.no_owner"),
        (of_flow(), InvalidInput, "plugins.empty_change"),
        (of_flow(sampler=FRESH), InvalidInput, "plugins.unknown_slot"),
        (replace(of_policy(FRESH), filters=()), InvalidInput, "plugins.unknown_slot"),
        (of_flow(filters=(KEEP_ALL,) * (MAX_PLUGINS + 1)), InvalidInput, "plugins.too_many"),
        (replace(of_flow(selector=GRESO), actor=" "), InvalidInput, "plugins.invalid_text"),
        (replace(of_flow(selector=GRESO), reason="r" * (MAX_TEXT_LENGTH + 1)), InvalidInput, "plugins.invalid_text"),
    ],
)
async def test_an_invalid_plugin_change_is_refused_and_changes_nothing(
    tmp_path: Path, change: PluginChange, error: type[AstraFlowError], code: str
) -> None:
    async with opened(tmp_path, config()) as (run, _):
        before = reported(run)
        with pytest.raises(error) as caught:
            run.change_plugins(change)
        assert caught.value.code == code
        assert reported(run) == before


async def test_one_invalid_plugin_prevents_the_whole_change(tmp_path: Path) -> None:
    async with opened(tmp_path, config()) as (run, _):
        attach(run, 0)
        with raises_code(InvalidInput, "plugin.unknown_kind", "filters.1"):
            run.change_plugins(of_flow(selector=GRESO, filters=(INFORMATIVE, {"kind": "nothing"})))
        assert flow_of(run).planned == ()


async def test_a_group_is_filtered_by_the_filters_at_its_completion(tmp_path: Path) -> None:
    async with opened(tmp_path, config(max_staleness=4)) as (run, _):
        attach(run, 0)
        tasks = await lease(run, 8)
        run.change_plugins(of_flow(filters=(INFORMATIVE,)))
        await push(run, tasks[:4], spread=False)
        assert (flow_of(run).admitted, flow_of(run).dropped) == (2, {})
        await step(run, 0)
        await push(run, tasks[4:], spread=False)
        assert (flow_of(run).admitted, flow_of(run).dropped) == (2, {"informative": 2})
        assert flow_of(run).plugins["informative.dropped_easy"] == 2
        assert_balanced(reported(run))


async def test_a_flow_of_two_policies_changes_after_both_reach_the_next_version(tmp_path: Path) -> None:
    plain = config(policies=("solver", "verifier"))
    both = {"kind": "solve_and_verify", "solver": "solver", "verifier": "verifier"}
    flow = plain.flows["train-solver"].model_copy(update={"workflow": both})
    async with opened(tmp_path, plain.model_copy(update={"flows": {"train-solver": flow}})) as (run, _):
        attach(run, 0)
        attach(run, 0, VERIFIER)
        run.change_plugins(of_flow(selector=GRESO))
        for policy, version, kind in [(SOLVER, 1, "uniform"), (SOLVER, 2, "uniform"), (VERIFIER, 1, "greso")]:
            attach(run, version, policy)
            assert flow_of(run).selector == {"kind": kind}


async def test_without_a_next_version_a_change_takes_effect_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path, config()) as (run, _):
        for change, slot, owner in (
            (of_flow(selector=GRESO), "selector", "flows.train-solver"),
            (of_policy(REPLAY), "sampler", "policies.solver"),
        ):
            answer = run.change_plugins(change)
            assert answer.startswith(slot)
            assert owner in answer
            assert answer.endswith("active")
        attach(run, 0)
        run.pause_flow(FLOW, is_paused=True, actor="ada", reason="thinking")
        run.change_plugins(of_flow(selector=SEQUENTIAL))
        run.change_plugins(of_policy(FRESH))
        assert (flow_of(run).selector, stream_of(run).sampler) == (SEQUENTIAL, FRESH)


async def test_pausing_a_flow_applies_its_planned_changes(tmp_path: Path) -> None:
    async with opened(tmp_path, config()) as (run, _):
        attach(run, 0)
        run.change_plugins(of_flow(selector=GRESO))
        run.change_plugins(of_policy(REPLAY))
        assert (flow_of(run).selector, stream_of(run).sampler) == (UNIFORM, FRESH)
        run.pause_flow(FLOW, is_paused=True, actor="ada", reason="thinking")
        assert (flow_of(run).selector, stream_of(run).sampler) == (GRESO, REPLAY)


async def test_a_pause_lets_a_run_recover_from_filters_that_drop_everything(tmp_path: Path) -> None:
    async with opened(tmp_path, edited(filters=({"kind": "length", "min_tokens": 99},))) as (run, _):
        attach(run, 0)
        await push(run, await lease(run, 8), spread=True)
        assert (flow_of(run).admitted, flow_of(run).dropped) == (0, {"length": 4})
        run.change_plugins(of_flow(filters=(KEEP_ALL,)))
        run.pause_flow(FLOW, is_paused=True, actor="ada", reason="no version comes any more")
        run.pause_flow(FLOW, is_paused=False, actor="ada", reason="put right")
        await push(run, await lease(run, 8), spread=True)
        await step(run, 0)
        assert_balanced(reported(run))


async def test_the_latest_change_applies_and_the_current_plugin_cancels_a_plan(tmp_path: Path) -> None:
    async with opened(tmp_path, config()) as (run, _):
        attach(run, 0)
        run.change_plugins(of_flow(selector=GRESO))
        run.change_plugins(of_flow(filters=(INFORMATIVE,)))
        run.change_plugins(of_flow(selector=SEQUENTIAL))
        run.change_plugins(of_flow(filters=(KEEP_ALL,)))
        attach(run, 1)
        assert (flow_of(run).selector, flow_of(run).filters, flow_of(run).planned) == (SEQUENTIAL, (KEEP_ALL,), ())
        assert [line.split()[0] for line in happened(run)] == [
            "plugins_planned",
            "plugins_planned",
            "plugins_planned",
            "plugins_unchanged",
            "plugins_changed",
        ]


@pytest.mark.parametrize("is_carried_out", [False, True])
async def test_planned_and_applied_changes_survive_a_restart(tmp_path: Path, is_carried_out: bool) -> None:
    async with opened(tmp_path, config()) as (run, journal):
        attach(run, 0)
        run.change_plugins(of_flow(selector=GRESO, filters=()))
        run.change_plugins(of_policy(REPLAY))
        attach(run, int(is_carried_out))
        await journal.wait_durable()
        before = reported(run)
    async with opened(tmp_path, config()) as (run, _):
        after = reported(run)
        assert (after.flows[0].planned, after.streams[0].planned) == (
            before.flows[0].planned,
            before.streams[0].planned,
        )
        assert bool(after.flows[0].planned) is not is_carried_out
        attach(run, 2)
        assert (flow_of(run).selector, flow_of(run).filters, stream_of(run).sampler) == (GRESO, (), REPLAY)


async def test_an_edited_recipe_overrides_earlier_changes_of_the_same_plugin(tmp_path: Path) -> None:
    async with opened(tmp_path, config()) as (run, journal):
        run.change_plugins(of_flow(selector=GRESO, filters=(INFORMATIVE,)))
        await journal.wait_durable()
    async with opened(tmp_path, edited(selector=SEQUENTIAL)) as (run, _):
        assert (flow_of(run).selector, flow_of(run).filters) == (SEQUENTIAL, (INFORMATIVE,))
    async with opened(tmp_path, edited(selector=SEQUENTIAL)) as (run, _):
        assert (flow_of(run).selector, flow_of(run).filters) == (SEQUENTIAL, (INFORMATIVE,))


async def test_a_plugin_with_changed_options_keeps_its_state(tmp_path: Path) -> None:
    async with opened(tmp_path, edited(selector=GRESO)) as (run, journal):
        attach(run, 0)
        await push(run, await lease(run, 4), spread=False)
        run.change_plugins(of_flow(selector={**GRESO, "step": 0.2}))
        await push(run, await lease(run, 4), spread=False)
        attach(run, 1)
        assert flow_of(run).plugins["greso.streaks"] == 4
        await journal.wait_durable()
        assert len(journal.saved_rows("flow train-solver greso")) == 4
    async with opened(tmp_path, edited(selector=GRESO)) as (run, _):
        assert flow_of(run).selector == {**GRESO, "step": 0.2}
        assert flow_of(run).plugins["greso.streaks"] == 4


async def test_another_kind_starts_empty_and_removes_old_rows_in_the_same_commit(tmp_path: Path) -> None:
    async with opened(tmp_path, edited(selector=GRESO)) as (run, journal):
        attach(run, 0)
        await push(run, await lease(run, 4), spread=False)
        await journal.wait_durable()
        assert journal.rows("select count(*) from rows") == [(2,)]
        run.change_plugins(of_flow(selector={"kind": "curriculum"}))
        attach(run, 1)
        await journal.wait_durable()
        assert journal.rows("select count(*) from rows") == [(0,)]
        await push(run, await lease(run, 4, version=1), spread=False, version=1)
        assert set(journal.rows("select owner from rows")) == {("flow train-solver curriculum",)}
        assert not any(name.startswith("greso") for name in flow_of(run).plugins)


class PickyOptions(Config):
    level: int = 0


class Picky:
    """Selector with rows that accepts only state of its own level."""

    def __init__(self, options: PickyOptions, size: int, seed: int) -> None:
        self.level = options.level
        self.scored: dict[int, Json] = {}
        self.new: dict[int, Json] = {}

    def select(self) -> int:
        return 3

    def observe(self, index: int, rewards: Rewards) -> None:
        self.scored[index] = self.new[index] = 1

    def advance(self, version: Version) -> None:
        pass

    def state_dict(self) -> dict[str, Json]:
        return {"level": self.level}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["level"] != self.level:
            raise ValueError("of another level")

    def changed_rows(self) -> dict[int, Json]:
        new, self.new = self.new, {}
        return new

    def all_rows(self) -> dict[int, Json]:
        return self.scored

    def load_rows(self, rows: Mapping[int, Json]) -> None:
        self.scored = dict(rows)

    def metrics(self) -> dict[str, float]:
        return {"rows": float(len(self.scored))}


async def test_a_refused_plugin_state_is_reported_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(selectors._registered, "picky", (Picky, PickyOptions))
    async with opened(tmp_path, edited(selector={"kind": "picky"})) as (run, journal):
        attach(run, 0)
        await push(run, await lease(run, 2), spread=False)
        await journal.wait_durable()
        assert journal.rows("select count(*) from rows") == [(1,)]
        run.change_plugins(of_flow(selector={"kind": "picky", "level": 1}))
        attach(run, 1)
        await journal.wait_durable()
        assert journal.rows("select count(*) from rows") == [(0,)]
        assert flow_of(run).plugins == {"picky.rows": 0.0}
        assert "picky" in happened(run)[-1]


async def test_a_changed_plugin_missing_after_a_restart_is_reported(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as installed:
        installed.setitem(selectors._registered, "picky", (Picky, PickyOptions))
        async with opened(tmp_path, config()) as (run, journal):
            run.change_plugins(of_flow(selector={"kind": "picky"}))
            await journal.wait_durable()
    with pytest.raises(InvalidInput) as caught:
        async with opened(tmp_path, config()):
            pass
    assert caught.value.code == "plugins.cannot_restore"
    async with opened(tmp_path, edited(selector=SEQUENTIAL)) as (run, _):
        assert flow_of(run).selector == SEQUENTIAL


async def test_a_sampler_that_stops_replaying_removes_its_groups(tmp_path: Path) -> None:
    async with opened(tmp_path, config(max_staleness=4, sampler=REPLAY)) as (run, journal):
        attach(run, 0)
        await push(run, await lease(run, 8), spread=True)
        await step(run, 0)
        assert stream_of(run).groups.replayable == 2
        run.change_plugins(of_policy(FRESH))
        await step(run, 1)
        assert (stream_of(run).groups.replayable, stream_of(run).sampler) == (0, FRESH)
        assert_balanced(reported(run))
        await journal.wait_durable()
        buffered = stream_of(run).groups.buffered
        assert journal.rows("select count(*), sum(is_trained) from admissions") == [(buffered, 0)]
        assert journal.rows("select count(*) from groups") == [(buffered + flow_of(run).open,)]


async def test_a_sampler_that_starts_to_replay_has_groups_trained_from_then_on(tmp_path: Path) -> None:
    async with opened(tmp_path, config(max_staleness=8)) as (run, _):
        attach(run, 0)
        await push(run, await lease(run, 16), spread=True)
        await step(run, 0)
        run.change_plugins(of_policy(REPLAY))
        await step(run, 1)
        assert (stream_of(run).groups.replayable, stream_of(run).groups.replayed) == (0, 0)
        await step(run, 2)
        assert (stream_of(run).groups.replayable, stream_of(run).groups.replayed) == (2, 0)
        await step(run, 3)
        assert stream_of(run).groups.replayed == 1
        assert stream_of(run).groups.trained + stream_of(run).groups.replayed == 8
        assert_balanced(reported(run))


async def test_a_served_batch_is_not_changed(tmp_path: Path) -> None:
    async with opened(tmp_path, config(max_staleness=8, sampler=REPLAY)) as (run, _):
        attach(run, 0)
        await push(run, await lease(run, 16), spread=True)
        await step(run, 0)
        trainers = TrainerOperations(run)
        out = await trainers.pull(SOLVER, Version(1), wait_s=0)
        run.change_plugins(of_policy(FRESH))
        attach(run, 2)  # a trainer that is ahead of its acknowledgements
        again = await trainers.pull(SOLVER, Version(2), wait_s=0)
        assert out is not None and again is not None
        assert [row.task for row in out.rows] == [row.task for row in again.rows]
        report = StepReport(batch=out.id, policy=SOLVER, version=Version(2), wait_s=0, compute_s=1, publish_s=0)
        assert await trainers.report_step(report)
        assert (stream_of(run).groups.replayed, stream_of(run).groups.replayable) == (1, 0)
        assert_balanced(reported(run))


class Breaking:
    """Plugin for every slot that fails at every call, or chooses one group again and again."""

    def __init__(self, options: PickyOptions, *context: object) -> None:
        pass

    def select(self) -> int:
        return 3

    def observe(self, index: int, rewards: Rewards) -> None:
        raise ZeroDivisionError

    def keep(self, group: RoutedGroup, version: Version) -> bool:
        raise ZeroDivisionError

    def fresh_count(self, count: int, trained: int) -> int:
        return count

    def sample(
        self, fresh: Sequence[BufferedGroup], trained: Sequence[BufferedGroup], count: int, version: Version
    ) -> list[BufferedGroup]:
        return [fresh[0]] * count

    def advance(self, version: Version) -> None:
        pass

    def state_dict(self) -> dict[str, Json]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass

    def metrics(self) -> dict[str, float]:
        return {}


async def test_a_failing_plugin_loses_no_push_and_no_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (selectors, filters, samplers):
        monkeypatch.setitem(registry._registered, "breaking", (Breaking, PickyOptions))
    breaking = {"kind": "breaking"}
    async with opened(tmp_path, edited(selector=breaking, filters=(breaking,))) as (run, _):
        attach(run, 0)
        await push(run, await lease(run, 4), spread=True)
        assert flow_of(run).dropped == {"breaking failed": 2}
        run.pause_flow(FLOW, is_paused=True, actor="ada", reason="it is broken")
        run.change_plugins(of_flow(filters=()))
        run.change_plugins(of_policy(breaking))
        run.pause_flow(FLOW, is_paused=False, actor="ada", reason="it is put right")
        await push(run, await lease(run, 8), spread=True)
        with pytest.raises(InternalError) as caught:
            await step(run, 0)
        assert caught.value.code == "sampler.invalid_choice"
        assert stream_of(run).groups.buffered == 4
        run.pause_flow(FLOW, is_paused=True, actor="ada", reason="it is broken")
        run.change_plugins(of_policy(FRESH))
        await step(run, 0)
        assert_balanced(reported(run))


class PathOptions(Config):
    """Options of a third-party filter: text without a trust class, and a number."""

    path: str = ""
    limit: int = 1


async def test_a_change_cannot_set_options_reserved_to_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    class PathFilter(KeepAll):
        def __init__(self, options: PathOptions) -> None:
            super().__init__(KeepAllOptions())
            built.append(options.path)

    monkeypatch.setitem(filters._registered, "paths", (PathFilter, PathOptions))
    in_recipe = {"kind": "paths", "path": "/data/words"}
    async with opened(tmp_path, edited(filters=[in_recipe])) as (run, _):
        with pytest.raises(NotPermitted) as refused:
            run.change_plugins(of_flow(filters=({"kind": "paths", "path": "/etc/passwd"},)))
        assert refused.value.code == "plugins.recipe_only_option"
        run.change_plugins(of_flow(filters=({**in_recipe, "limit": 2},)))
        assert set(built) == {"/data/words"}
        assert {"kind": "paths", "path": "/data/words", "limit": 2} in [
            dict(spec) for planned in flow_of(run).planned for spec in planned.specs
        ] + [dict(spec) for spec in run.flows[FLOW].plugin_slots[PluginSlot.FILTERS].specs]
