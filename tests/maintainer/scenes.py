"""Deterministic scenes with guard findings, and their stored transcripts.

    python -m tests.maintainer.scenes            # write all transcripts again, for review of the change

A scene is a maintainer in virtual time with the real fleet manager and guard, and a scripted model. Its clock, ids and
names are fixed: the same code writes the same bytes.
"""

import argparse
import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.contract.fleet.instances import InstanceState
from astraflow.contract.fleet.plans import PlanRequest
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.ids import PoolId
from maintainer.agent.llm.interface import Part, Reply, Request, TextPart, ToolCall, ToolReply
from maintainer.fleet.ledger.lifecycle import InstanceEvent
from maintainer.fleet.state.observation import TargetRecommendation
from tests.maintainer.fleet.parts import ALICE, OTTO, POOL, spec
from tests.maintainer.parts import OTHER, Says, Scene, advice, scene

KEPT = Path(__file__).parent / "transcripts"
AGAIN = "python -m tests.maintainer.scenes"

PACED = {"nodes": 2, "share": 0.25, "changes_per_hour": 100, "cool_down_s": 0.0, "hold_s": 0.0}
"""Limits of most scenes: no cool-down and no hold after a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """Plan that the model makes, and applies if the guard allows it."""

    pool: str = POOL
    target: int | None = None
    retire: int = 0
    """Number of ready nodes to retire by name."""


class Wanting(Says):
    """Model that makes the current `wants` into plans in each wake, and tries to apply them."""

    def __init__(self) -> None:
        super().__init__(self._step)
        self.scene: Scene | None = None
        self.wants: tuple[Want, ...] = ()
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        """Callback that runs once during the next reply."""

    async def reply(self, request: Request) -> Reply:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return await super().reply(request)

    def _step(self, request: Request) -> tuple[Part, ...]:
        turn = len(request.messages) // 2
        if turn >= 2 * len(self.wants):
            return (TextPart(text="That was all."),)
        if turn % 2 == 0:
            return (self._plan(self.wants[turn // 2], turn),)
        (reply,) = request.messages[-1].parts
        plan = json.loads(reply.content)["plan_id"] if isinstance(reply, ToolReply) else ""
        key = f"apply-{turn}"
        return (ToolCall(id=f"c{turn}", name="fleet_apply", arguments={"plan_id": plan, "idempotency_key": key}),)

    def _plan(self, want: Want, turn: int) -> ToolCall:
        assert self.scene is not None
        names, nodes = self.scene.names, working(self.scene, PoolId(want.pool))
        arguments: dict[str, Any] = {
            "pool": names.token("pool", want.pool),
            "target": want.target,
            "retire": [names.token("node", node) for node in nodes[: want.retire]] or None,
            "reason": "a scene",
        }
        return ToolCall(id=f"c{turn}", name="fleet_plan", arguments=arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """Scene and its scripted model."""

    here: Scene
    model: Wanting

    async def wake(self, *wants: Want) -> None:
        """Waits for the next wake, in which the model makes these plans, one for each pool."""
        self.model.wants = wants
        before = len(self.here.entries("wake"))
        for _ in range(40):
            await self.here.pass_time(5.0)
            if len(self.here.entries("wake")) > before:
                return
        raise AssertionError("nothing woke the maintainer")

    async def grow(self, pool: PoolId, nodes: int) -> None:
        """Grows a pool as an admin, and waits until its nodes are ready."""
        fleet_manager, version = self.here.parts.fleet_manager, self.here.parts.fleet.pool(pool).version
        plan = await fleet_manager.plans.make(PlanRequest(pool=pool, actor=ALICE, reason="a scene", target=nodes))
        await fleet_manager.apply(plan.id, key=f"grow-{pool}-{version}", approver=ALICE)
        await self.here.parts.pass_time(60.0)

    def rule_wants(self, pool: PoolId, target: int | None) -> None:
        """Sets the rule's recommendation; None removes it."""
        self.here.parts.targets.pop(pool, None)
        if target is not None:
            self.here.parts.targets[pool] = TargetRecommendation(target=target, reason="a scene")


def working(here: Scene, pool: PoolId) -> list[str]:
    """Returns the ready nodes of a pool, oldest first."""
    alive = here.parts.ledger.alive(pool)
    return sorted(record.id for record in alive if record.instance.state is InstanceState.READY)


@asynccontextmanager
async def playing(directory: Path, **changes: Any) -> AsyncIterator[Play]:
    """Yields a scene of two pools; the first has four nodes and stays outside the rule's band."""
    model = Wanting()
    watch = {"watch": {"wake_pause_s": 0.0, "check_interval_s": 30.0}}
    limits = PACED | changes.pop("limits", {})
    async with scene(directory, llm=model, config=watch, limits=limits, **changes) as here:
        model.scene = here
        play = Play(here=here, model=model)
        await play.grow(POOL, 4)
        here.dataflow.recommendations = (advice(present=4, target=6, low=5.0, high=8.0),)
        yield play


async def distance(directory: Path) -> None:
    """Targets near the rule, too far above it, and below it, where the rule would launch the nodes again."""
    async with playing(directory) as play:
        await play.grow(OTHER, 12)
        play.rule_wants(POOL, 4)
        play.rule_wants(OTHER, 12)
        await play.wake(Want(target=6), Want(pool=OTHER, target=15))
        await play.wake(Want(target=9), Want(pool=OTHER, target=16))
        play.rule_wants(POOL, 6)
        await play.wake(Want(target=5), Want(pool=OTHER, retire=1))
        play.rule_wants(POOL, None)
        await play.wake(Want(target=7))


async def hold(directory: Path) -> None:
    """A hold of a pool allows launches and no retirements until it ends."""
    async with playing(directory) as play:
        fleet_manager = play.here.parts.fleet_manager
        await fleet_manager.set_hold(POOL, minutes=2.0, actor=OTTO, key="hold", reason="somebody looks")
        await play.wake(Want(retire=1))
        await play.wake(Want(target=5))
        await play.here.parts.pass_time(120.0)
        await play.wake(Want(retire=1))


async def breaker(directory: Path) -> None:
    """Three failed launches in a row block launches in this pool for a time, and not in the other."""
    async with playing(directory) as play:
        parts = play.here.parts
        for _ in range(3):
            await parts.want(parts.fleet.size(POOL) + 1)
            for record in parts.ledger.alive(POOL):
                if record.instance.ready_at is None:
                    await parts.records.record_event(
                        record.id, InstanceEvent.GONE, message="VcpuLimitExceeded: quota is 0"
                    )
        await play.wake(Want(target=6), Want(pool=OTHER, target=2))
        await parts.pass_time(600.0)
        await play.wake(Want(target=6))


async def kill_switch(directory: Path) -> None:
    """The kill switch stops agents, later all actors, during a wake; the guard refuses later plans."""
    async with playing(directory) as play:
        fleet_manager = play.here.parts.fleet_manager
        for number, scope in enumerate((KillScope.AGENTS, KillScope.ALL)):

            async def stop(scope: KillScope = scope, key: str = f"stop-{number}") -> None:
                await fleet_manager.kill_switch(scope, actor=ALICE, key=key, reason="enough")

            play.model.meanwhile = stop
            await play.wake(Want(target=5))
            await fleet_manager.kill_switch(KillScope.NONE, actor=ALICE, key=f"go-{number}", reason="looked at")


async def caps(directory: Path) -> None:
    """Bounds and budget of a pool, budget of the fleet, and the last ready node."""
    bounds = {"min_nodes": 2, "max_nodes": 6, "usd_per_hour_max": 5.5, "usd_per_day_max": 6.0}
    pools = [spec(**bounds), spec(id=OTHER, type="large")]
    budget = {"usd_per_hour_max": 9.5, "usd_per_day_max": 8.5}
    async with playing(directory, pools=pools, budget=budget) as play:
        await play.grow(OTHER, 1)
        await play.wake(Want(target=7), Want(pool=OTHER, target=2))
        await play.wake(Want(retire=3), Want(pool=OTHER, retire=1))
        await play.wake(Want(target=6))
        await play.wake(Want(target=5))


async def rate(directory: Path) -> None:
    """Cool-down after a change, and the limit of changes per hour."""
    async with playing(directory, limits={"changes_per_hour": 3, "cool_down_s": 90.0}) as play:
        await play.here.parts.pass_time(120.0)
        await play.wake(Want(target=5))
        await play.wake(Want(target=6))
        await play.here.parts.pass_time(120.0)
        await play.wake(Want(target=6))
        await play.here.parts.pass_time(120.0)
        await play.wake(Want(target=7))


async def stale_input(directory: Path) -> None:
    """Stale dataflow reports allow launches and no retirements."""
    async with playing(directory) as play:
        play.here.parts.run.is_away = True
        await play.here.parts.pass_time(120.0)
        await play.wake(Want(retire=1))
        await play.wake(Want(target=5))


async def modes(directory: Path) -> None:
    """Pools in the modes off, advise and up_only."""
    off, growing = PoolId("off"), PoolId("growing")
    pools = [spec(mode=Mode.ADVISE), spec(id=off, mode=Mode.OFF), spec(id=growing, mode=Mode.UP_ONLY)]
    async with playing(directory, pools=pools) as play:
        await play.grow(growing, 2)
        await play.wake(Want(target=5), Want(pool=off, target=1), Want(pool=growing, target=3))
        await play.wake(Want(retire=1), Want(pool=growing, retire=1))


SCENES: Mapping[str, Callable[[Path], Awaitable[None]]] = {
    "distance": distance,
    "hold": hold,
    "breaker": breaker,
    "kill-switch": kill_switch,
    "caps": caps,
    "rate": rate,
    "stale-input": stale_input,
    "modes": modes,
}


async def recorded(name: str, directory: Path) -> Path:
    """Plays a scene in an empty directory; returns the path of its transcript."""
    await SCENES[name](directory)
    return directory / "maintainer" / "transcript.jsonl"


def kept(name: str) -> Path:
    """Returns the path of a scene's stored transcript."""
    return KEPT / f"{name}.jsonl"


async def record_all() -> None:
    """Writes all stored transcripts again."""
    for name in SCENES:
        with tempfile.TemporaryDirectory() as directory:
            shutil.copyfile(await recorded(name, Path(directory)), kept(name))


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], usage=AGAIN).parse_args()
    KEPT.mkdir(exist_ok=True)
    asyncio.run(record_all())
