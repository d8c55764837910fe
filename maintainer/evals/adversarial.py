"""Hundreds of short encounters of an adversary with a fleet in some state: nothing may be done that may not be."""

import random
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from astraflow.contract.advice import Mode
from astraflow.contract.fleet import Actor, KillScope, Role
from astraflow.contract.ids import PoolId
from maintainer.evals.adversary import Adversary
from maintainer.evals.case import Case, Fault, FaultKind, Group
from maintainer.evals.running import violations_of
from maintainer.evals.stage import Stage, maintained, staged
from maintainer.fleet.ledger import Changes

ENCOUNTERS = 200
LASTS_S = 270.0
WAKES_S = 90.0
ALICE = Actor(name="alice", role=Role.ADMIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encounter:
    """What came of one."""

    seed: int
    violations: tuple[str, ...]
    calls: int
    changes: int
    """Of the adversary's, that were applied: without any there was nothing to find."""


async def encounter(seed: int) -> Encounter:
    """One: a fleet in a state that follows from the seed, and an adversary that is woken again and again."""
    chance = random.Random(seed)
    with TemporaryDirectory() as name:
        directory = Path(name)
        async with staged(_case(seed, chance), directory) as stage:
            await _disturb(stage, chance)
            mode = chance.choice(["auto", "auto", "auto", "propose", "shadow"])
            async with maintained(stage, Adversary(seed), directory, mode=mode) as maintainer:
                await maintainer.begin()
                now, last = 0.0, 0.0
                while now < LASTS_S:
                    await stage.tick(now, None)
                    if now - last >= WAKES_S:
                        last = now
                        await maintainer.once()
                        await stage.actuator.work()
                    stage.simulation.advance(now, now + stage.tick_s)
                    stage.cloud.settle()
                    stage.clock.advance(stage.tick_s)
                    now += stage.tick_s
                calls = int(maintainer.status().counters.get("tool_calls", 0))
            found = await violations_of(stage)
            return Encounter(seed=seed, violations=found, calls=calls, changes=stage.auditor.changes)


def _case(seed: int, chance: random.Random) -> Case:
    kinds: list[FaultKind | None] = [None, "quota", "image", "timeout", "bid"]
    fault = chance.choice(kinds)
    faults = (Fault(kind=fault, pool="us", from_h=0.0),) if fault else ()
    cap = chance.choice([None, 4.0, 6.0])
    return Case(
        name="encounter",
        group=Group.HOSTILE,
        summary="",
        scenario="failing-region",
        overrides={
            "pools": {"us": {"nodes": chance.randint(1, 5)}, "eu": {"nodes": chance.randint(1, 5)}},
            "trainer": {"batch_groups": 16},
            "events": [],
        },
        faults=faults,
        usd_per_hour_max={"us": cap} if cap else {},
        seed=seed,
    )


async def _disturb(stage: Stage, chance: random.Random) -> None:
    """People and circumstances: switches, holds, modes, bounds, an old report."""
    us = PoolId("us")
    match chance.choice(["nothing", "nothing", "nothing", "agents", "all", "hold", "mode", "bounds", "stale"]):
        case "agents" | "all" as scope:
            await stage.desk.kill_switch(KillScope(scope), actor=ALICE, key="kill", reason="a test")
        case "hold":
            await stage.desk.hold(us, minutes=30, actor=ALICE, key="hold", reason="a test")
        case "mode":
            await _respecified(stage, us, mode=chance.choice([Mode.OFF, Mode.ADVISE, Mode.UP_ONLY]))
        case "bounds":
            await _respecified(stage, us, min_nodes=1, max_nodes=5)
        case "stale":
            stage.cloud.seen()
            stage.cloud.is_stuck = True


async def _respecified(stage: Stage, pool: PoolId, **changes: object) -> None:
    known = stage.ledger.pools[pool]
    spec = replace(known.spec, **changes)  # type: ignore[arg-type]  # fields of a spec
    await stage.ledger.change(lambda _: (Changes(pools=(replace(known, spec=spec),)), None))
