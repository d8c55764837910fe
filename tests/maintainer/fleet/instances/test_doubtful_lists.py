"""A fresh heartbeat outranks a provider's list, and an instance that runs is counted or reported, never forgotten."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.fleet.instances import InstanceState
from astraflow.contract.reports.report import Report
from maintainer.fleet.ledger.lifecycle import InstanceEvent
from maintainer.fleet.ledger.records import LaunchRecord
from maintainer.fleet.providers.base import Handle, Instance, RetireResult, State
from tests.fakes.clock import ManualClock
from tests.fakes.cloud import Cloud, CloudProvider, Machine
from tests.maintainer.fleet.instances.test_reconciler import running, stray
from tests.maintainer.fleet.parts import POOL, START, Parts, Run, build, spec

pytestmark = pytest.mark.anyio

View = Callable[[tuple[Instance, ...]], tuple[Instance, ...]]


class EditedList(CloudProvider):
    """Provider whose lists a test changes."""

    edit: View | None = None

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        listed = await super().list(cluster)
        return self.edit(listed) if self.edit is not None else listed


class OwnRun(Run):
    """Dataflow of one of several fleets: it has only nodes to which it gave tokens."""

    def report(self) -> Report:
        report = super().report()
        return replace(report, nodes=tuple(node for node in report.nodes if node.facts.name in self.minted))


async def edited(tmp_path: Path, nodes: int = 4, **changes: Any) -> tuple[Parts, EditedList]:
    """Returns a full pool with this number of ordered nodes, and its provider."""
    parts = await build(tmp_path, pool=spec(max_nodes=nodes, usd_per_hour_max=float(nodes)), provider=EditedList)
    provider = parts.fleet.providers["cloud"]
    assert isinstance(provider, EditedList)
    for name, value in changes.items():
        setattr(parts.cloud, name, value)
    await parts.want(nodes)
    await parts.pass_time(60.0)
    return parts, provider


def as_state(state: State) -> View:
    return lambda listed: tuple(replace(instance, state=state) for instance in listed)


def first(parts: Parts) -> LaunchRecord:
    return min(parts.ledger.alive(), key=lambda record: record.id)


def change_tags(machine: Machine, **tags: Any) -> None:
    assert machine.instance.tags is not None
    machine.instance = replace(machine.instance, tags=replace(machine.instance.tags, **tags))


LISTS: dict[str, View] = {
    "empty": lambda listed: (),
    "one": lambda listed: listed[:1],
    "all but one": lambda listed: listed[1:],
    **{state.value: as_state(state) for state in (State.PENDING, State.STUCK, State.RUNNING, State.GONE)},
}


@pytest.mark.parametrize("is_away", [False, True])
@pytest.mark.parametrize("name", LISTS)
async def test_no_list_ends_or_doubles_a_working_node(tmp_path: Path, name: str, is_away: bool) -> None:
    parts, provider = await edited(tmp_path)
    assert parts.states() == {"ready": 4}
    parts.run.is_away = is_away
    await parts.pass_time(10.0)
    provider.edit = LISTS[name]
    await parts.pass_time(610.0)
    provider.edit = None
    assert len(parts.cloud.alive()) == 4
    parts.run.is_away = False
    await parts.pass_time(600.0)
    assert parts.states() == {"ready": 4}
    assert (parts.cloud.starts, len(parts.cloud.alive())) == (4, 4)
    assert parts.reconciler.problems() == {}


async def test_many_absent_instances_are_an_unreadable_provider(tmp_path: Path) -> None:
    parts, provider = await edited(tmp_path, boot_s=100.0)
    provider.edit = LISTS["one"]
    await parts.pass_time(30.0, sweep_s=10.0)
    assert parts.states() == {"pending": 4}
    assert "3 of 4" in str(parts.reconciler.problems()["provider cloud"].values["error"])
    provider.edit = None
    await parts.pass_time(200.0)
    assert (parts.states(), parts.cloud.starts) == ({"ready": 4}, 4)
    assert parts.reconciler.problems() == {}


async def test_a_booting_instance_that_is_not_listed_is_asked_for_by_its_own_id(tmp_path: Path) -> None:
    parts, _ = await edited(tmp_path, 1, boot_s=600.0)
    machine = parts.cloud.machines[first(parts).instance.handle]
    change_tags(machine, cluster="changed")
    await parts.pass_time(40.0, sweep_s=10.0)
    assert parts.states() == {"pending": 1}
    assert f"instance_not_listed of {first(parts).id}" in parts.reconciler.problems()
    parts.cloud.end(machine, after_s=0.0)
    await parts.pass_time(20.0, sweep_s=10.0)
    assert parts.cloud.starts == 2


async def test_an_instance_with_changed_tags_is_counted_and_reported(tmp_path: Path) -> None:
    parts = await running(tmp_path, 3)
    changed = first(parts)
    change_tags(parts.cloud.machines[changed.instance.handle], cluster="changed")
    await parts.pass_time(600.0)
    assert (parts.states(), parts.cloud.starts) == ({"ready": 3}, 3)
    assert list(parts.reconciler.problems()) == [f"instance_not_listed of {changed.id}"]


async def test_an_instance_recorded_as_gone_is_adopted_when_its_node_works(tmp_path: Path) -> None:
    parts = await running(tmp_path, 3)
    wrong = first(parts)
    await parts.records.record_event(wrong.id, InstanceEvent.GONE)
    assert parts.states() == {"ready": 2}
    parts.clock.advance(30.0)
    parts.fleet.observation.update(parts.run.report())
    assert parts.fleet.size(POOL) == 3
    assert f"instance_returned of {wrong.id}" in parts.reconciler.problems()
    await parts.pass_time(65.0)
    adopted = parts.ledger.records[wrong.id].instance
    assert (adopted.state, adopted.cause, adopted.gone_at) == (InstanceState.READY, None, None)
    assert (parts.states(), parts.cloud.starts) == ({"ready": 3}, 3)
    kinds = [entry.kind.value for entry in (await parts.ledger.decisions(pool="", before=None, limit=100))[0]]
    assert kinds.count("orphan") == 1


async def test_an_adopted_instance_beyond_the_bounds_is_drained(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(max_nodes=3))
    await parts.want(3)
    await parts.pass_time(60.0)
    wrong = first(parts)
    parts.run.lost[wrong.id] = 100.0
    await parts.records.record_event(wrong.id, InstanceEvent.GONE)
    await parts.pass_time(60.0)
    parts.run.lost.clear()
    await parts.pass_time(200.0)
    assert parts.states() == {"ready": 3}
    assert len(parts.cloud.alive()) == 3


async def test_a_machine_counts_towards_the_bound_until_it_has_ended(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(max_nodes=3))
    parts.cloud.end_s = 200.0
    await parts.want(3)
    await parts.pass_time(60.0)
    await parts.want(1)
    await parts.pass_time(60.0)
    await parts.want(3)
    for _ in range(60):
        await parts.pass_time(5.0)
        assert len(parts.cloud.alive()) <= 3
    assert parts.states() == {"ready": 3}


async def test_an_orphan_counts_towards_bound_and_budget(tmp_path: Path) -> None:
    parts = await running(tmp_path, 3)
    wrong = first(parts)
    parts.run.lost[wrong.id] = 100.0
    await parts.records.record_event(wrong.id, InstanceEvent.GONE)
    await parts.reconciler.sweep()
    assert (len(parts.ledger.alive()), parts.fleet.machines(POOL)) == (2, 3)
    assert parts.fleet.view(parts.fleet.pool(POOL)).usd_per_hour == 3.0


class BlindProvider(CloudProvider):
    """Provider that cannot find its instances by their tags any more."""

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> RetireResult:
        return RetireResult.GONE


async def test_a_termination_has_ended_when_the_instance_itself_has(tmp_path: Path) -> None:
    parts = await build(tmp_path, provider=BlindProvider)
    await parts.want(2)
    await parts.pass_time(60.0)
    await parts.want(1)
    await parts.pass_time(600.0)
    assert parts.states() == {"ready": 1, "retiring": 1}
    assert [key.partition(" ")[0] for key in parts.reconciler.problems()] == ["instance_not_terminated"]
    for machine in parts.cloud.alive():
        if machine.instance.handle.launch_id in parts.run.drained:
            parts.cloud.end(machine, after_s=0.0)
    await parts.pass_time(70.0)
    assert parts.states() == {"ready": 1}


async def test_an_orphan_of_another_run_is_reported_and_not_ended(tmp_path: Path) -> None:
    parts = await running(tmp_path, 1)
    machine = parts.cloud.machines[stray(parts.cloud).id]
    change_tags(machine, run="run-2")
    await parts.pass_time(3600.0, tick_s=30.0)
    assert machine.gone_at is None
    assert [key for key in parts.reconciler.problems() if "run-2" in key]


async def test_an_orphan_is_not_ended_while_dataflow_does_not_answer(tmp_path: Path) -> None:
    parts = await running(tmp_path, 1)
    stray(parts.cloud)
    parts.run.is_away = True
    await parts.pass_time(1800.0, tick_s=30.0)
    assert len(parts.cloud.alive()) == 2
    parts.run.is_away = False
    await parts.pass_time(200.0)
    assert len(parts.cloud.alive()) == 1


@pytest.mark.parametrize("cluster", ["", "shared"])
async def test_two_fleets_of_one_account_leave_each_other_alone(tmp_path: Path, cluster: str) -> None:
    clock = ManualClock(START)
    cloud = Cloud(clock, boot_s=20.0, end_s=5.0)
    fleets = [
        await build(tmp_path, cloud=cloud, clock=clock, run=OwnRun(cloud), cluster=cluster, seed=seed)
        for seed in (1, 2)
    ]
    for parts, size in zip(fleets, (3, 2), strict=True):
        object.__setattr__(parts.fleet, "run", parts.ledger.tagged("run-1"))  # as the service does
        await parts.want(size)
    for _ in range(100):
        for parts in fleets:
            await parts.tick()
            await parts.reconciler.sweep()
        clock.advance(20.0)
    assert [parts.states() for parts in fleets] == [{"ready": 3}, {"ready": 2}]
    assert cloud.starts == 5
    assert [len(parts.ledger.orphans) for parts in fleets] == ([2, 3] if cluster else [0, 0])
    reports = [[key for key in parts.reconciler.problems() if "run-1" in key] for parts in fleets]
    assert [len(keys) for keys in reports] == ([1, 1] if cluster else [0, 0])


async def test_a_fleet_keeps_its_tags_over_restarts(tmp_path: Path) -> None:
    parts = await build(tmp_path, cluster="")
    again = await build(tmp_path, database=parts.database, cloud=parts.cloud, clock=parts.clock, cluster="")
    await again.ledger.take_ownership()
    third = await build(tmp_path, database=parts.database, cloud=parts.cloud, clock=parts.clock, cluster="")
    assert parts.fleet.cluster == again.fleet.cluster == third.fleet.cluster
    assert parts.fleet.cluster.startswith("astraflow-")


async def test_a_terminating_instance_ends_when_the_provider_says_so_by_its_own_id(tmp_path: Path) -> None:
    parts, provider = await edited(tmp_path, 3, end_s=300.0)
    await parts.want(2)
    provider.edit = LISTS["gone"]
    await parts.pass_time(200.0)
    assert parts.states() == {"ready": 2, "retiring": 1}
    await parts.pass_time(200.0)
    assert parts.states() == {"ready": 2}
