"""Scenes in which the guard has something to say, always played alike, and the transcripts that are kept of them.

    python -m tests.maintainer.scenes            # play and write all of them again; the change is for a reviewer

A scene is a maintainer in virtual time over a real desk and guard, with a stand-in that plans what it is told to. Its
clock, ids and names are fixed: the same code writes the same bytes.
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

from astraflow.contract.advice import Mode
from astraflow.contract.fleet import InstanceState, KillScope, PlanRequest
from astraflow.contract.ids import PoolId
from maintainer.fleet.lifecycle import Sight
from maintainer.fleet.observation import Advice
from maintainer.llm.base import Part, Reply, Request, Said, ToolCall, ToolReply
from tests.maintainer.fleet.parts import ALICE, OTTO, POOL, spec
from tests.maintainer.parts import OTHER, Says, Scene, advice, scene

KEPT = Path(__file__).parent / "transcripts"
AGAIN = "python -m tests.maintainer.scenes"

PACED = {"nodes": 2, "share": 0.25, "changes_per_hour": 100, "cool_down_s": 0.0, "hold_s": 0.0}
"""The envelope of most scenes: nobody has to wait, and what is wanted is not kept for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """One plan, which is applied when it may be."""

    pool: str = POOL
    target: int | None = None
    retire: int = 0
    """So many of the nodes that work, by name."""


class Wanting(Says):
    """In each wake it plans, and tries to apply, what it wants then."""

    def __init__(self) -> None:
        super().__init__(self._step)
        self.scene: Scene | None = None
        self.wants: tuple[Want, ...] = ()
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        """What others do while it thinks, once."""

    async def reply(self, request: Request) -> Reply:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return await super().reply(request)

    def _step(self, request: Request) -> tuple[Part, ...]:
        turn = len(request.messages) // 2
        if turn >= 2 * len(self.wants):
            return (Said(text="That was all."),)
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
    """A scene and its stand-in."""

    here: Scene
    model: Wanting

    async def wake(self, *wants: Want) -> None:
        """Wait for the next wake, in which this is wanted: one plan for each pool."""
        self.model.wants = wants
        before = len(self.here.entries("wake"))
        for _ in range(40):
            await self.here.pass_time(5.0)
            if len(self.here.entries("wake")) > before:
                return
        raise AssertionError("nothing woke the maintainer")

    async def grow(self, pool: PoolId, nodes: int) -> None:
        """People have a pool grow, and its nodes work."""
        desk, version = self.here.parts.desk, self.here.parts.fleet.pool(pool).version
        plan = await desk.plans.make(PlanRequest(pool=pool, actor=ALICE, reason="a scene", target=nodes))
        await desk.apply(plan.id, key=f"grow-{pool}-{version}", approver=ALICE)
        await self.here.parts.pass_time(60.0)

    def rule_wants(self, pool: PoolId, target: int | None) -> None:
        """What the rule advises from now on; None for nothing."""
        self.here.parts.targets.pop(pool, None)
        if target is not None:
            self.here.parts.targets[pool] = Advice(target=target, reason="a scene")


def working(here: Scene, pool: PoolId) -> list[str]:
    """Nodes of a pool that work, oldest first."""
    alive = here.parts.ledger.alive(pool)
    return sorted(record.id for record in alive if record.instance.state is InstanceState.READY)


@asynccontextmanager
async def playing(directory: Path, **changes: Any) -> AsyncIterator[Play]:
    """Two pools, of which the first has four nodes and is outside the rule's band all the time."""
    model = Wanting()
    watch = {"watch": {"rest_s": 0.0, "look_s": 30.0}}
    envelope = PACED | changes.pop("envelope", {})
    async with scene(directory, llm=model, config=watch, envelope=envelope, **changes) as here:
        model.scene = here
        play = Play(here=here, model=model)
        await play.grow(POOL, 4)
        here.dataflow.advice = (advice(present=4, target=6, low=5.0, high=8.0),)
        yield play


async def envelope(directory: Path) -> None:
    """Near the rule, too far from it, and below it, where the rule would only order again."""
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
    """While somebody holds a pool nodes may come, and none goes; afterwards one does."""
    async with playing(directory) as play:
        desk = play.here.parts.desk
        await desk.hold(POOL, minutes=2.0, actor=OTTO, key="hold", reason="somebody looks")
        await play.wake(Want(retire=1))
        await play.wake(Want(target=5))
        await play.here.parts.pass_time(120.0)
        await play.wake(Want(retire=1))


async def breaker(directory: Path) -> None:
    """Three launches in a row failed: no more are tried there for a while, elsewhere they are."""
    async with playing(directory) as play:
        parts = play.here.parts
        for _ in range(3):
            await parts.want(parts.fleet.size(POOL) + 1)
            for record in parts.ledger.alive(POOL):
                if record.instance.ready_at is None:
                    await parts.fleet.see(record.id, Sight.GONE, message="VcpuLimitExceeded: quota is 0")
        await play.wake(Want(target=6), Want(pool=OTHER, target=2))
        await parts.pass_time(600.0)
        await play.wake(Want(target=6))


async def kill_switch(directory: Path) -> None:
    """People stop agents, later everybody, while a wake is under way: what is planned after that is refused."""
    async with playing(directory) as play:
        desk = play.here.parts.desk
        for number, scope in enumerate((KillScope.AGENTS, KillScope.ALL)):

            async def stop(scope: KillScope = scope, key: str = f"stop-{number}") -> None:
                await desk.kill_switch(scope, actor=ALICE, key=key, reason="enough")

            play.model.meanwhile = stop
            await play.wake(Want(target=5))
            await desk.kill_switch(KillScope.NONE, actor=ALICE, key=f"go-{number}", reason="looked at")


async def caps(directory: Path) -> None:
    """Bounds and money of a pool, money of all together, and the last node that works."""
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
    """Changes wait for the one before to take effect, and an hour has room for a few."""
    async with playing(directory, envelope={"changes_per_hour": 3, "cool_down_s": 90.0}) as play:
        await play.here.parts.pass_time(120.0)
        await play.wake(Want(target=5))
        await play.wake(Want(target=6))
        await play.here.parts.pass_time(120.0)
        await play.wake(Want(target=6))
        await play.here.parts.pass_time(120.0)
        await play.wake(Want(target=7))


async def stale_input(directory: Path) -> None:
    """The fleet service has not heard of dataflow for long: nodes may come, and none goes."""
    async with playing(directory) as play:
        play.here.parts.run.is_away = True
        await play.here.parts.pass_time(120.0)
        await play.wake(Want(retire=1))
        await play.wake(Want(target=5))


async def modes(directory: Path) -> None:
    """Pools that are off, only advised, or may only grow."""
    off, growing = PoolId("off"), PoolId("growing")
    pools = [spec(mode=Mode.ADVISE), spec(id=off, mode=Mode.OFF), spec(id=growing, mode=Mode.UP_ONLY)]
    async with playing(directory, pools=pools) as play:
        await play.grow(growing, 2)
        await play.wake(Want(target=5), Want(pool=off, target=1), Want(pool=growing, target=3))
        await play.wake(Want(retire=1), Want(pool=growing, retire=1))


SCENES: Mapping[str, Callable[[Path], Awaitable[None]]] = {
    "envelope": envelope,
    "hold": hold,
    "breaker": breaker,
    "kill-switch": kill_switch,
    "caps": caps,
    "rate": rate,
    "stale-input": stale_input,
    "modes": modes,
}


async def recorded(name: str, directory: Path) -> Path:
    """Play a scene. directory: an empty one. Returns its transcript there."""
    await SCENES[name](directory)
    return directory / "maintainer" / "transcript.jsonl"


def kept(name: str) -> Path:
    """The transcript that is kept of a scene."""
    return KEPT / f"{name}.jsonl"


async def record_all() -> None:
    """Write all of them again."""
    for name in SCENES:
        with tempfile.TemporaryDirectory() as directory:
            shutil.copyfile(await recorded(name, Path(directory)), kept(name))


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], usage=AGAIN).parse_args()
    KEPT.mkdir(exist_ok=True)
    asyncio.run(record_all())
