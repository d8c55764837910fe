"""What the ledger, the providers and dataflow say differently is mended, and nothing is concluded from silence."""

from pathlib import Path

import pytest

from astraflow.contract.advice import Mode
from astraflow.contract.causes import Cause
from astraflow.contract.fleet import Instance, InstanceState, LaunchId
from maintainer.fleet.lifecycle import Sight
from maintainer.fleet.providers.base import (
    Auth,
    Capacity,
    Handle,
    LaunchSpec,
    NodePlan,
    ProviderError,
    Retry,
    Tags,
    Unknown,
)
from tests.fakes.cloud import Cloud, CloudProvider, failing_once
from tests.maintainer.fleet.parts import POOL, START, Parts, Run, build, spec

pytestmark = pytest.mark.anyio


def stray(cloud: Cloud, launch_id: str = "01STRAY", cluster: str = "tests") -> Handle:
    tags = Tags(cluster=cluster, pool="eu", run="run-1", expires_at=START + 1e6)
    return cloud.start(LaunchSpec(tags=tags, node=NodePlan(dataflow="127.0.0.1:1")), launch_id)


async def running(tmp_path: Path, nodes: int = 3) -> Parts:
    """A pool whose nodes work."""
    parts = await build(tmp_path)
    await parts.want(nodes)
    await parts.pass_time(60.0)
    assert parts.states() == {"ready": nodes}
    return parts


async def launches(parts: Parts) -> list[Instance]:
    """All that there ever were."""
    records, _ = await parts.ledger.instances(pool=POOL, with_gone=True, before="", limit=10)
    return [record.instance for record in records]


async def test_what_was_launched_becomes_ready_and_its_delay_is_measured(tmp_path: Path) -> None:
    parts = await running(tmp_path)
    view = parts.fleet.view(parts.fleet.pool(POOL))
    assert 20.0 <= view.launch_delay_s <= 40.0
    assert view.usd_per_hour == 3.0
    assert 0 < view.usd_today <= 3.0 * 60 / 3600


async def test_each_node_gets_a_token_of_its_own_and_loses_what_it_let_in(tmp_path: Path) -> None:
    parts = await running(tmp_path, 2)
    names = {record.id for record in parts.ledger.alive()}
    assert set(parts.run.minted) == names
    assert set(parts.run.minted.values()) == {("node", "eu", 900.0)}
    await parts.want(1)
    await parts.pass_time(60.0)
    (left,) = parts.ledger.alive()
    assert set(parts.run.revoked) == names - {left.id}


async def test_a_machine_that_is_stuck_is_a_launch_that_failed_and_is_ended(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(1)
    await parts.pass_time(6.0)
    (machine,) = parts.cloud.alive()
    machine.is_stuck = True
    (launch,) = [record.id for record in parts.ledger.alive()]
    await parts.pass_time(66.0)
    assert machine.gone_at is not None
    assert launch not in [record.id for record in parts.ledger.alive()]
    kinds = [entry.kind for entry in (await parts.ledger.decisions(pool="", before=None, limit=100))[0]]
    assert "launch_failed" in kinds
    (ended,) = [one for one in await launches(parts) if one.id == launch]
    assert ended.cause is Cause.FAILED


async def test_a_launch_that_is_taken_back_before_it_worked_did_not_fail(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(2)
    await parts.pass_time(6.0)
    await parts.want(1)
    for record in parts.ledger.alive():
        await parts.fleet.see(record.id, Sight.STOP, message="the service stops")
    await parts.pass_time(60.0)
    ended = [one for one in await launches(parts) if one.gone_at is not None]
    assert [(one.ready_at, one.cause) for one in ended] == [(None, Cause.ORDERED)] * 2
    kinds = [entry.kind for entry in (await parts.ledger.decisions(pool="", before=None, limit=100))[0]]
    assert "launch_failed" not in kinds


async def test_an_orphan_is_watched_and_then_ended(tmp_path: Path) -> None:
    parts = await running(tmp_path)
    stray(parts.cloud)
    await parts.pass_time(240.0)
    assert len(parts.cloud.alive()) == 4
    assert len(parts.ledger.orphans) == 1
    await parts.pass_time(180.0)
    assert len(parts.cloud.alive()) == 3
    await parts.pass_time(61.0)
    assert parts.ledger.orphans == {}
    kinds = [entry.kind for entry in (await parts.ledger.decisions(pool="", before=None, limit=100))[0]]
    assert kinds.count("orphan") == 1


async def test_an_orphans_quarantine_goes_on_over_a_restart(tmp_path: Path) -> None:
    parts = await running(tmp_path)
    stray(parts.cloud)
    await parts.pass_time(180.0)
    again = await build(tmp_path, database=parts.database, cloud=parts.cloud, clock=parts.clock, run=parts.run)
    await again.pass_time(200.0)
    assert len(parts.cloud.alive()) == 3


async def test_other_clusters_are_left_alone(tmp_path: Path) -> None:
    parts = await running(tmp_path)
    stray(parts.cloud, cluster="strangers")
    await parts.pass_time(1000.0)
    assert len(parts.cloud.alive()) == 4
    assert parts.ledger.orphans == {}


async def test_what_two_lists_do_not_have_is_gone_and_replaced(tmp_path: Path) -> None:
    parts = await running(tmp_path)
    lost = parts.ledger.alive()[0]
    del parts.cloud.machines[lost.instance.handle]  # deleted in the console, and forgotten
    parts.run.is_away = True
    parts.clock.advance(60.0)
    await parts.reconciler.sweep()
    assert parts.states() == {"ready": 3}
    parts.clock.advance(60.0)
    await parts.reconciler.sweep()
    assert parts.states() == {"ready": 2}
    parts.run.is_away = False
    await parts.pass_time(60.0)
    assert parts.states() == {"ready": 3}


async def test_a_list_that_has_it_again_begins_the_count_anew(tmp_path: Path) -> None:
    parts = await running(tmp_path, 1)
    handle = parts.ledger.alive()[0].instance.handle
    for _ in range(4):
        machine = parts.cloud.machines.pop(handle)
        await parts.reconciler.sweep()
        parts.cloud.machines[handle] = machine
        await parts.reconciler.sweep()
    assert parts.states() == {"ready": 1}


async def test_of_two_under_one_launch_id_the_registered_one_stays(tmp_path: Path) -> None:
    parts = await running(tmp_path, 1)
    record = parts.ledger.alive()[0]
    parts.cloud.start(record.launch, record.id)
    await parts.pass_time(70.0)
    (left,) = parts.cloud.alive()
    assert left.instance.handle.id == record.instance.handle
    assert parts.states() == {"ready": 1}


async def test_a_provider_that_cannot_be_read_changes_nothing_and_is_told_of(tmp_path: Path) -> None:
    parts = await running(tmp_path)

    def broken(point: str) -> None:
        if point == "list before":
            raise Auth("the token has expired")

    blind = await build(
        tmp_path,
        database=parts.database,
        cloud=parts.cloud,
        clock=parts.clock,
        run=parts.run,
        provider=lambda cloud: CloudProvider(cloud, fault=broken),
    )
    parts.cloud.machines.clear()
    parts.run.is_away = True
    for _ in range(5):
        await blind.reconciler.sweep()
    assert blind.states() == {"ready": 3}
    assert "token has expired" in blind.reconciler.troubles()["provider cloud"]
    assert blind.reconciler.last_sweep_at is None


async def test_a_silent_dataflow_takes_no_node_away(tmp_path: Path) -> None:
    parts = await running(tmp_path)
    parts.run.is_away = True
    await parts.pass_time(3600.0)
    assert parts.states() == {"ready": 3}
    assert len(parts.cloud.alive()) == 3


async def test_a_node_that_dataflow_lost_is_retired_and_replaced(tmp_path: Path) -> None:
    parts = await running(tmp_path)
    lost = parts.ledger.alive()[0].id
    parts.run.lost[lost] = 30.0
    await parts.pass_time(30.0)
    assert parts.states() == {"ready": 3}
    parts.run.lost[lost] = 61.0
    await parts.pass_time(120.0)
    assert parts.states() == {"ready": 3}
    assert lost not in {record.id for record in parts.ledger.alive()}
    assert not parts.cloud.find(lost)


async def test_a_node_that_never_works_is_given_up_and_the_breaker_opens(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    run = parts.run

    class Never(set[str]):
        def __contains__(self, _: object) -> bool:
            return True

    run.never_ready = Never()
    await parts.want(1)
    await parts.pass_time(1200.0)
    view = parts.fleet.view(parts.fleet.pool(POOL))
    assert view.breaker_until is not None
    assert parts.cloud.starts <= 5  # without the breaker it would have been one every two minutes
    run.never_ready = set()
    await parts.pass_time(1200.0)
    assert parts.states() == {"ready": 1}
    assert parts.fleet.view(parts.fleet.pool(POOL)).breaker_until is None


@pytest.mark.parametrize("error", [Retry, Unknown])
@pytest.mark.parametrize("point", ["launch before", "launch after"])
async def test_a_launch_whose_answer_was_lost_is_one_instance(
    tmp_path: Path, error: type[ProviderError], point: str
) -> None:
    parts = await build(tmp_path, provider=lambda cloud: CloudProvider(cloud, fault=failing_once(error, point)))
    await parts.want(1)
    await parts.pass_time(90.0)
    assert parts.states() == {"ready": 1}
    assert parts.cloud.starts == 1


async def test_a_refused_launch_is_gone_and_tried_again_under_another_id(tmp_path: Path) -> None:
    fault = failing_once(Capacity, "launch before")
    parts = await build(tmp_path, provider=lambda cloud: CloudProvider(cloud, fault=fault))
    applied = await parts.want(1)
    await parts.pass_time(90.0)
    (record,) = parts.ledger.alive()
    assert record.id != applied.launched[0]
    refused = parts.ledger.records[applied.launched[0]].instance
    assert refused.state is InstanceState.GONE
    assert "Capacity" in refused.message


async def test_a_defect_of_a_provider_stays_with_its_machine(tmp_path: Path) -> None:
    left = [KeyError("a defect")]

    def fault(point: str) -> None:
        if point == "launch before" and left:
            raise left.pop()

    parts = await build(tmp_path, provider=lambda cloud: CloudProvider(cloud, fault=fault))
    await parts.want(3)
    await parts.actuator.work()
    assert parts.cloud.starts == 2
    await parts.pass_time(60.0)
    assert parts.states() == {"ready": 3}


async def test_what_does_not_end_is_asked_again_and_people_are_told(tmp_path: Path) -> None:
    parts = await running(tmp_path, 2)
    parts.cloud.end_s = 1000.0
    await parts.want(1)
    await parts.pass_time(400.0)
    assert any("does not end" in trouble for trouble in parts.reconciler.troubles().values())
    assert parts.states() == {"ready": 1, "retiring": 1}
    await parts.pass_time(700.0)
    assert parts.states() == {"ready": 1}
    assert parts.reconciler.troubles() == {}


async def test_a_machine_that_is_too_old_is_drained_and_replaced(tmp_path: Path) -> None:
    parts = await build(tmp_path, times={"expires_s": 3600.0})
    await parts.want(1)
    first = parts.ledger.alive()[0].id
    await parts.pass_time(3600.0, tick_s=30.0)
    await parts.pass_time(120.0)
    assert parts.run.drained == {first: "fleet"}
    assert parts.states() == {"ready": 1}


async def test_an_instance_that_goes_backwards_is_suspect_and_costs_on(tmp_path: Path) -> None:
    parts = await running(tmp_path, 1)
    record = parts.ledger.alive()[0]
    parts.run.is_away = True
    parts.cloud.boot_s = 1e9  # the cloud says that it boots, again
    await parts.reconciler.sweep()
    assert parts.states() == {"suspect": 1}
    assert parts.fleet.view(parts.fleet.pool(POOL)).usd_per_hour == 1.0
    parts.cloud.boot_s = 0.0
    parts.run.is_away = False
    await parts.pass_time(70.0)
    assert parts.states() == {"ready": 1}
    assert parts.ledger.alive()[0].id == record.id


async def test_an_instance_that_stays_suspect_is_drained_and_replaced(tmp_path: Path) -> None:
    parts = await running(tmp_path, 2)
    odd, other = (record.id for record in parts.ledger.alive())
    await parts.fleet.see(odd, Sight.PENDING)  # its provider says that it boots, again
    since = parts.clock.wall()
    assert parts.states() == {"ready": 1, "suspect": 1}
    assert parts.ledger.records[odd].suspect_at == since
    again = await build(tmp_path, database=parts.database, cloud=parts.cloud, clock=parts.clock, run=parts.run)
    parts.clock.advance(299.0)
    parts.run.is_away = True
    await again.reconciler.observe()
    assert again.states() == {"ready": 1, "suspect": 1}
    parts.clock.advance(2.0)
    await again.reconciler.observe()
    assert again.states() == {"ready": 1, "draining": 1}
    assert again.ledger.records[odd].suspect_at is None
    assert again.ledger.records[odd].instance.message == "what is seen of it has not fit for 301 s"
    again.run.is_away = False
    await again.pass_time(120.0)
    assert again.states() == {"ready": 2}
    assert odd not in {record.id for record in again.ledger.alive()}
    assert other in {record.id for record in again.ledger.alive()}


async def test_a_list_that_lags_makes_nothing_missing(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    parts.cloud.lag_s = 150.0
    await parts.want(2)
    await parts.pass_time(300.0)
    assert parts.states() == {"ready": 2}
    assert parts.cloud.starts == 2


async def test_the_next_life_knows_what_the_last_one_did(tmp_path: Path) -> None:
    parts = await running(tmp_path)
    again = await build(tmp_path, database=parts.database, cloud=parts.cloud, clock=parts.clock, run=parts.run)
    assert again.ledger.records == parts.ledger.records
    assert again.ledger.pools == parts.ledger.pools
    assert again.ledger.next_decision == parts.ledger.next_decision
    await again.pass_time(300.0)
    assert parts.cloud.starts == 3


async def test_a_pool_that_is_off_is_left_as_it_is(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(mode=Mode.OFF))
    await parts.want(2)
    await parts.pass_time(60.0)
    parts.cloud.machines.pop(parts.ledger.alive()[0].instance.handle)
    await parts.pass_time(300.0)
    assert parts.states() == {"ready": 1}
    assert isinstance(parts.run, Run)
    assert LaunchId("x") not in parts.ledger.records
