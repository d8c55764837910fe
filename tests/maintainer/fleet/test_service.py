"""The fleet service over gRPC, with a reporting dataflow and processes as machines."""

import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import structlog

from astraflow.access import callers as access
from astraflow.access.callers import Caller
from astraflow.access.credentials import CredentialSigner, new_id
from astraflow.client.fleet_plane import FleetPlaneClient, connect_fleet
from astraflow.contract.errors import Conflict, InvalidInput, NotAuthenticated, NotPermitted, PlanRefused, Unavailable
from astraflow.contract.fleet.instances import InstanceState, LaunchId
from astraflow.contract.fleet.plans import Actor, PlanRequest, Role
from astraflow.contract.fleet.pools import FleetStatus, KillScope, PoolSpec
from astraflow.contract.fleet.preflight import CheckKind
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import RecordKind, Severity
from astraflow.runtime.clock import SystemClock
from astraflow.wire.server import ListenOptions
from maintainer.fleet import service as fleet_service
from maintainer.fleet.__main__ import read_config
from maintainer.fleet.config import FleetConfig
from maintainer.fleet.guard.inputs import GuardInputs
from maintainer.fleet.service import serve
from tests.errors import raises_code
from tests.fakes.cloud import Cloud, CloudProvider
from tests.fakes.control_plane import TOKEN, FakeControlPlane
from tests.maintainer.fleet.parts import ALICE, HAL, OTTO
from tests.maintainer.fleet.providers.test_local_process import SLEEPER

pytestmark = pytest.mark.anyio

LOCAL = PoolId("here")
PATIENCE_S = 40.0


def config(**changes: Any) -> FleetConfig:
    values = {
        "cluster": "service-test",
        "providers": {"machine": {"kind": "local_process", "program": SLEEPER, "types": {"small": 2.0}}},
        "pools": {"here": {"provider": "machine", "mode": "off", "max_nodes": 4}},
        "times": {"tick_s": 0.1, "sweep_s": 0.2},
        "retire_on_stop": True,
    }
    return FleetConfig.parse(values | changes, where="")


@asynccontextmanager
async def service(directory: Path, fleet_config: FleetConfig | None = None) -> AsyncIterator[str]:
    """Runs a fleet service during the test; yields its address."""
    plane, stop, ready = FakeControlPlane(sequence=5), asyncio.Event(), asyncio.get_running_loop().create_future()
    async with plane.serving() as dataflow, asyncio.TaskGroup() as tasks:
        tasks.create_task(
            serve(
                fleet_config or config(),
                dataflow=dataflow,
                join_address=dataflow,
                token=TOKEN,
                authority=None,
                listen=ListenOptions(token=TOKEN),
                directory=directory,
                stop=stop,
                on_ready=ready.set_result,
            )
        )
        try:
            yield await asyncio.wait_for(ready, PATIENCE_S)
        finally:
            stop.set()


async def until(fleet: FleetPlaneClient, holds: Callable[[FleetStatus], bool]) -> FleetStatus:
    deadline = time.monotonic() + PATIENCE_S
    while not holds(status := await fleet.status()):
        assert time.monotonic() < deadline, status
        await asyncio.sleep(0.05)
    return status


def nodes(status: FleetStatus) -> dict[str, int]:
    return {state.value: number for state, number in status.pools[0].nodes.items()}


async def test_a_pool_grows_and_shrinks_over_the_network(tmp_path: Path) -> None:
    async with service(tmp_path) as address, connect_fleet(address, TOKEN) as fleet:
        plan = await fleet.plan(PlanRequest(pool=LOCAL, actor=ALICE, reason="two will do", target=2))
        assert (plan.launches, plan.usd_per_hour_change) == (2, 4.0)
        applied = await fleet.apply(plan.id, key="up")
        assert await fleet.apply(plan.id, key="up") == applied
        status = await until(fleet, lambda status: nodes(status) == {"running": 2})
        assert status.usd_per_hour == 4.0
        listed = await fleet.instances(pool=LOCAL)
        assert {instance.id for instance in listed} == set(applied.launched)
        assert {instance.handle for instance in listed} == set(applied.launched)
        assert {instance.actor for instance in listed} == {"alice"}
        down = await fleet.plan(PlanRequest(pool=LOCAL, actor=ALICE, reason="one is enough", target=1))
        assert len(down.victims) == 1
        await fleet.apply(down.id, key="down", approver=ALICE)
        await until(fleet, lambda status: nodes(status) == {"running": 1})
        ended_instances = [
            instance for instance in await fleet.instances(with_gone=True) if instance.state is InstanceState.GONE
        ]
        assert [instance.id for instance in ended_instances] == list(down.victims)
        assert [entry.kind.value for entry in await fleet.decisions(pool=LOCAL)] == ["apply", "apply", "spec"]
        applications = await fleet.decisions(pool=LOCAL, kinds=[RecordKind.APPLY, RecordKind.HOLD])
        assert [entry.kind for entry in applications] == [RecordKind.APPLY, RecordKind.APPLY]


async def test_a_refusal_carries_the_guards_inputs(tmp_path: Path) -> None:
    async with service(tmp_path) as address, connect_fleet(address, TOKEN) as fleet:
        await fleet.kill_switch(KillScope.AGENTS, actor=OTTO, key="stop", reason="enough")
        plan = await fleet.plan(PlanRequest(pool=LOCAL, actor=HAL, reason="one more", target=1))
        with pytest.raises(PlanRefused, check=lambda problem: problem.code == "fleet.plan_refused") as refused:
            await fleet.apply(plan.id, key="k")
        inputs = GuardInputs.parse(refused.value.guard_json)
        assert {finding.code.value for finding in inputs.violations()} == {"kill_switch", "mode"}
        assert inputs.proposal.actor == HAL
        assert nodes(await fleet.status()) == {}


async def test_providers_are_listed_and_preflighted_without_a_launch(tmp_path: Path) -> None:
    async with service(tmp_path) as address, connect_fleet(address, TOKEN) as fleet:
        (listed,) = await fleet.providers()
        assert (listed.name, listed.kind, listed.pools) == ("machine", "local_process", (LOCAL,))
        preflight_result = await fleet.run_preflight("machine", actor=OTTO)
        assert (preflight_result.is_ok, preflight_result.requested_by) == (True, OTTO.name)
        assert [check.is_ok for check in preflight_result.checks if check.kind is CheckKind.PRICE] == [True]
        assert nodes(await fleet.status()) == {}


@pytest.mark.long
async def test_repeated_launch_failures_are_an_alarm_in_the_audit_log(tmp_path: Path) -> None:
    broken = {"machine": {"kind": "local_process", "program": [sys.executable, "-c", "raise SystemExit(7)"]}}
    times = {"tick_s": 0.1, "sweep_s": 0.2, "follow_s": 0.2}
    fleet_config = config(providers=broken, times=times)
    async with service(tmp_path, fleet_config) as address, connect_fleet(address, TOKEN) as fleet:
        plan = await fleet.plan(PlanRequest(pool=LOCAL, actor=ALICE, reason="three", target=3))
        await fleet.apply(plan.id, key="up", approver=ALICE)
        deadline = time.monotonic() + PATIENCE_S
        while not (alarms := [decision for decision in await fleet.decisions() if decision.kind.value == "alarm"]):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert [alarm.actor for alarm in alarms] == ["fleet"]
        assert alarms[0].reason.startswith("launches ")
        assert alarms[0].reason.endswith(LOCAL)


@pytest.mark.long
async def test_instances_survive_the_service_and_are_found_after_its_restart(tmp_path: Path) -> None:
    async with service(tmp_path, config(retire_on_stop=False)) as address, connect_fleet(address, TOKEN) as fleet:
        plan = await fleet.plan(PlanRequest(pool=LOCAL, actor=ALICE, reason="two", target=2))
        applied = await fleet.apply(plan.id, key="up")
        await until(fleet, lambda status: nodes(status) == {"running": 2})
    async with service(tmp_path) as address, connect_fleet(address, TOKEN) as fleet:
        status = await until(fleet, lambda status: status.last_sweep_at is not None)
        assert nodes(status) == {"running": 2}
        assert status.orphans == 0
        assert await fleet.apply(plan.id, key="up") == applied
        held = [int(_pid(tmp_path, launch)) for launch in applied.launched]
    deadline = time.monotonic() + PATIENCE_S
    while any(_is_alive(pid) for pid in held):
        assert time.monotonic() < deadline, "a machine was left behind"
        await asyncio.sleep(0.05)


@pytest.mark.long
async def test_the_service_stops_at_any_time(tmp_path: Path) -> None:
    busy = config(times={"tick_s": 0.005, "sweep_s": 0.002, "follow_s": 0.003})
    for life in range(20):
        async with asyncio.timeout(PATIENCE_S):
            async with service(tmp_path / str(life), busy) as address:
                await asyncio.sleep(0.003 * life)  # some iterations stop it during a provider call
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*address.rsplit(":", 1))


@pytest.mark.long
async def test_pools_are_created_and_changed_over_the_network_and_stored(tmp_path: Path) -> None:
    spec = PoolSpec(id=PoolId("more"), provider="machine", mode=Mode.OFF, max_nodes=3, options={"a": [1, None]})
    async with service(tmp_path) as address, connect_fleet(address, TOKEN) as fleet:
        created = await fleet.put_pool(spec, observed_version=0, actor=ALICE, key="new", reason="another")
        assert created.spec == spec
        with pytest.raises(NotPermitted):
            await fleet.put_pool(spec, observed_version=1, actor=OTTO, key="x", reason="another")
        with pytest.raises(Conflict):
            await fleet.put_pool(spec, observed_version=9, actor=ALICE, key="y", reason="another")
    async with service(tmp_path) as address, connect_fleet(address, TOKEN) as fleet:
        pools = {pool.spec.id: pool for pool in (await fleet.status()).pools}
        assert pools[PoolId("more")].spec == spec
        assert set(pools) == {"here", "more"}


async def test_the_guards_findings_reach_the_caller(tmp_path: Path) -> None:
    async with service(tmp_path) as address, connect_fleet(address, TOKEN) as fleet:
        plan = await fleet.plan(PlanRequest(pool=LOCAL, actor=HAL, reason="more!", target=40))
        assert {finding.code.value for finding in plan.findings} >= {"max_nodes", "mode"}
        with pytest.raises(NotPermitted) as caught:
            await fleet.apply(plan.id, key="k")
        assert caught.value.code == "fleet.plan_refused"
        decision = await fleet.kill_switch(KillScope.AGENTS, actor=OTTO, key="stop", reason="enough")
        assert (decision.actor, decision.role) == (OTTO.name, OTTO.role)
        assert (await fleet.status()).kill is KillScope.AGENTS
        with raises_code(NotPermitted, "fleet.kill_switch"):
            await fleet.set_hold(LOCAL, minutes=5, actor=HAL, key="h", reason="wait")
        assert (
            await fleet.escalate(Severity.CRITICAL, actor=HAL, key="e", reason="help")
        ).severity is Severity.CRITICAL


async def test_the_credentials_role_counts_whatever_a_request_claims(tmp_path: Path) -> None:
    caller = Caller(id=new_id(), role=access.Role.AGENT, expires_at=2e10, name="hal")
    async with service(tmp_path) as address, connect_fleet(address, CredentialSigner(TOKEN).sign(caller)) as fleet:
        plan = await fleet.plan(PlanRequest(pool=LOCAL, actor=ALICE, reason="trust me", target=2))
        assert plan.request.actor == Actor(name="agent hal", role=Role.AGENT)
        with raises_code(NotPermitted, "fleet.plan_refused", "off"):
            await fleet.apply(plan.id, key="k", approver=ALICE)
        with raises_code(NotPermitted, "route.not_permitted", "PutPool"):
            spec = PoolSpec(id=PoolId("x"), provider="machine")
            await fleet.put_pool(spec, observed_version=0, actor=ALICE, key="p", reason="mine")
        assert (await fleet.escalate(Severity.INFO, actor=ALICE, key="e", reason="look")).actor == "agent hal"


async def test_the_kill_file_acts_within_a_second(tmp_path: Path) -> None:
    async with service(tmp_path) as address, connect_fleet(address, TOKEN) as fleet:
        plan = await fleet.plan(PlanRequest(pool=LOCAL, actor=ALICE, reason="two", target=2))
        (tmp_path / "KILL").touch()
        with raises_code(NotPermitted, "fleet.plan_refused", "kill switch"):
            await fleet.apply(plan.id, key="k")
        assert (await fleet.status()).kill is KillScope.ALL
        (tmp_path / "KILL").unlink()


async def test_invalid_input_is_refused(tmp_path: Path) -> None:
    async with service(tmp_path) as address:
        async with connect_fleet(address, TOKEN) as fleet:
            with pytest.raises(InvalidInput) as caught:
                await fleet.plan(PlanRequest(pool=PoolId("nowhere"), actor=ALICE, reason="x", target=1))
            assert caught.value.code == "fleet.pool_not_found"
            with raises_code(InvalidInput, "fleet.invalid_page_size"):
                await fleet.instances(limit=100_000)
            with raises_code(InvalidInput, "fleet.instance_not_found"):
                request = PlanRequest(pool=LOCAL, actor=ALICE, reason="x", retire=(LaunchId("unknown"),))
                await fleet.plan(request)
        async with connect_fleet(address, "wrong") as stranger:
            with pytest.raises(NotAuthenticated):
                await stranger.status()


@pytest.mark.parametrize("cluster", ["", "shared"])
async def test_two_services_on_one_account_never_end_each_others_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: str
) -> None:
    cloud = Cloud(SystemClock())
    monkeypatch.setattr(fleet_service, "build_providers", lambda *_, **__: {"machine": CloudProvider(cloud)})
    shared = config(cluster=cluster, times={"tick_s": 0.05, "sweep_s": 0.05, "quarantine_s": 0.0, "lost_after_s": 0.0})
    async with (
        service(tmp_path / "one", shared) as first_service,
        service(tmp_path / "two", shared) as second_service,
        connect_fleet(first_service, TOKEN) as first,
        connect_fleet(second_service, TOKEN) as second,
    ):
        for fleet in (first, second):
            plan = await fleet.plan(PlanRequest(pool=LOCAL, actor=ALICE, reason="two", target=2))
            await fleet.apply(plan.id, key="up")
        for fleet in (first, second):
            status = await until(fleet, lambda status: nodes(status) == {"running": 2})
            for _ in range(5):  # sweeps
                swept_at = status.last_sweep_at
                while status.last_sweep_at == swept_at:
                    status = await fleet.status()
            assert status.orphans == (2 if cluster else 0)
            assert len(status.problems) == (1 if cluster else 0)
        assert (len(cloud.alive()), cloud.starts) == (4, 4)


def test_a_configuration_is_read_from_toml_and_from_json(tmp_path: Path) -> None:
    by_hand, of_a_run = tmp_path / "fleet.toml", tmp_path / "fleet.json"
    by_hand.write_text(
        "providers.here = { kind = 'local_process' }\npools.eu = { provider = 'here', mode = 'up-only' }\n"
    )
    pools = {"eu": {"provider": "here", "mode": "up-only"}}
    of_a_run.write_text(json.dumps({"providers": {"here": {"kind": "local_process"}}, "pools": pools}))
    assert read_config(by_hand) == read_config(of_a_run)
    assert read_config(by_hand).pools["eu"].spec("eu").mode is Mode.UP_ONLY
    of_a_run.write_text("[]")
    with pytest.raises(InvalidInput) as caught:
        read_config(of_a_run)
    assert caught.value.code == "file.invalid"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("providers.here = { kind = 'local_proces' }", "local_process"),
        ("providers.here = { kind = 'local_process', max_instance = 3 }", "max_instances"),
        ("providers.here = { kind = 'local_process' }\npools.eu = { provider = 'her' }", "'here'"),
        (
            "providers.here = { kind = 'local_process' }\npools.eu = { provider = 'here', min_nodes = 9 }",
            "min_nodes <= max_nodes",
        ),
        ("providers.here = { kind = 'local_process' }\npool.eu = { provider = 'here' }", "pools"),
        ("cluster = 'a b'\nproviders.here = { kind = 'local_process' }", "not a valid name"),
    ],
)
def test_an_invalid_configuration_is_refused_with_valid_values(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    with raises_code(InvalidInput, "config.invalid", message):
        read_config(path)


def _pid(directory: Path, launch: str) -> str:
    note = directory / "providers" / "machine" / launch / "machine.json"
    return str(json.loads(note.read_text())["pid"])


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_the_service_outlasts_a_locked_ledger_and_does_everything_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astraflow.runtime.database.LOCK_TIMEOUT_S", 0.05)
    async with service(tmp_path) as address, connect_fleet(address, TOKEN) as fleet:
        plan = await fleet.plan(PlanRequest(pool=LOCAL, actor=ALICE, reason="x", target=2))
        with closing(sqlite3.connect(tmp_path / "fleet.sqlite", isolation_level=None)) as other:
            launched = (await fleet.apply(plan.id, key="k1")).launched
            later = await fleet.plan(PlanRequest(pool=LOCAL, actor=ALICE, reason="y", target=3))
            other.execute("BEGIN EXCLUSIVE")  # while the launches run
            with structlog.testing.capture_logs() as logs:
                while not {"step_postponed", "postponement_not_recorded", "retrying"} & {log["event"] for log in logs}:
                    with raises_code(Unavailable, "database.unreachable"):
                        await fleet.apply(later.id, key="k2")
                assert (await fleet.apply(plan.id, key="k1")).launched == launched, "a repeated change needs no write"
        await until(fleet, lambda status: status.pools[0].nodes.get(InstanceState.RUNNING) == 2)
        await fleet.plan(PlanRequest(pool=LOCAL, actor=ALICE, reason="z", target=2))
        instances = await fleet.instances(pool=LOCAL, with_gone=True)
        assert sorted(instance.id for instance in instances) == sorted(launched)
