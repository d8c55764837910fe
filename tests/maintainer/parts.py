"""Maintainer in virtual time, with the real fleet manager, guard and ledger, and clouds in memory."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from astraflow.contract.errors import Unavailable
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.maintainer import MaintainerMode, TranscriptEntry
from astraflow.contract.fleet.pools import PoolSpec
from astraflow.contract.fleet.recommendations import PoolRecommendation
from astraflow.contract.ids import PoolId
from astraflow.contract.reports.report import Report
from maintainer.agent.config import MaintainerConfig
from maintainer.agent.llm.interface import Llm, ModelFailed, Part, Reply, Request, Usage, models
from maintainer.agent.loop import Maintainer
from maintainer.agent.notifications.webhook import Answer, Notifier
from maintainer.agent.observation.names import Names
from maintainer.agent.observation.snapshot import SnapshotReader
from maintainer.agent.transcript.transcript import Transcript, read
from maintainer.evals.simulation.in_process_fleet import InProcessFleet
from maintainer.fleet.ledger.ledger import Changes
from maintainer.fleet.ledger.records import PoolRecord
from tests import make
from tests.fakes.clock import ManualClock
from tests.maintainer.fleet.parts import OTTO, POOL, Parts, build, spec

OTHER = PoolId("us")
KEY = b"a key of names.."


class Dataflow:
    """Dataflow that reports a fleet's machines with the rule's recommendations."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.recommendations: tuple[PoolRecommendation, ...] = ()
        self.is_away = False
        self.is_stuck = False
        self._sequence = 0
        self.changed: Callable[[Report], Report] = lambda report: report

    async def report(self) -> Report:
        if self.is_away:
            raise Unavailable("dataflow is away")
        self._sequence += not self.is_stuck
        at = self.parts.clock.wall()
        advice = tuple(replace(recommendation, at=at - at % 30) for recommendation in self.recommendations)
        return self.changed(
            replace(self.parts.run.report(), sequence=self._sequence, at=at, recommendations=advice, events=())
        )


class Says:
    """Model with scripted turns: parts or a failure for each turn, then an empty reply."""

    model = "a test's"
    is_simulated = True

    def __init__(self, turns: Sequence[tuple[Part, ...] | ModelFailed] | Callable[[Request], tuple[Part, ...]]) -> None:
        self.turns = list(turns) if not callable(turns) else []
        self.answer = turns if callable(turns) else None
        self.requests: list[Request] = []
        self.usage = Usage(input=100, output=10)
        self.price = 0.001

    async def reply(self, request: Request) -> Reply:
        self.requests.append(request)
        if self.answer is not None:
            return Reply(parts=self.answer(request), usage=self.usage, model=self.model)
        turn = self.turns.pop(0) if self.turns else ()
        if isinstance(turn, ModelFailed):
            raise turn
        return Reply(parts=turn, usage=self.usage, model=self.model)

    def usd(self, usage: Usage) -> float:
        return self.price

    async def close(self) -> None:
        return None


@dataclass(kw_only=True)
class Scene:
    """A maintainer and its environment for a test."""

    parts: Parts
    fleet: InProcessFleet
    dataflow: Dataflow
    snapshot_reader: SnapshotReader
    maintainer: Maintainer
    notifier: Notifier
    posted: list[dict[str, Any]]
    transcript: Path
    clock: ManualClock
    names: Names

    def entries(self, kind: str = "") -> list[TranscriptEntry]:
        """Returns the transcript entries of a kind, or all."""
        return [entry for entry in read(self.transcript).entries if kind in ("", entry.kind)]

    async def mode(self, mode: MaintainerMode) -> None:
        """Sets the maintainer's mode as an operator."""
        await self.parts.maintainer_api.set_mode(
            mode, actor=OTTO, key=f"mode-{self.clock.wall()}-{mode}", reason="a test"
        )
        await self.maintainer.heartbeat()

    async def journal(self, kind: str) -> list[Decision]:
        """Returns the entries of a kind in the fleet's journal, oldest first."""
        decisions = await self.fleet.decisions(limit=1000)
        return [entry for entry in reversed(decisions) if entry.kind.value == kind]

    async def pass_time(self, duration_s: float, *, step_s: float = 5.0) -> None:
        """Runs the fleet service and the maintainer in virtual time."""
        until = self.clock.wall() + duration_s
        while self.clock.wall() < until:
            await self.parts.pass_time(step_s, tick_s=step_s)
            await self.maintainer.heartbeat()
            await self.maintainer.check()

    async def size(self, pool: PoolId = POOL) -> int:
        """Returns the current plus requested nodes."""
        return self.parts.fleet.size(pool)


@asynccontextmanager
async def scene(
    tmp_path: Path,
    *,
    llm: Llm | str = "good",
    mode: str = "auto",
    pools: Sequence[PoolSpec] | None = None,
    config: dict[str, Any] | None = None,
    **changes: Any,
) -> AsyncIterator[Scene]:
    """Yields a started maintainer. llm: model or name of a scripted character. changes: fleet settings."""
    specs = list(pools) if pools is not None else [spec(), spec(id=OTHER)]
    parts = await build(tmp_path, pool=specs[0], **changes)
    for pool in specs[1:]:
        record = PoolRecord(spec=pool, version=1, target=0)
        await parts.ledger.change(lambda _, record=record: (Changes(pools=(record,)), None))  # type: ignore[misc]  # binds the loop variable
    fleet, dataflow, posted = (
        InProcessFleet(parts.fleet, parts.fleet_manager, parts.proposals, parts.maintainer_api),
        Dataflow(parts),
        [],
    )

    async def post(url: str, body: Any) -> Answer:
        posted.append({"url": url, **body})
        return Answer(status=200)

    values: dict[str, Any] = {"mode": mode, "watch": {"wake_pause_s": 0.0}} | (config or {})
    chosen = MaintainerConfig.parse(values, where="")
    model = models.build({"kind": "scripted", "character": llm}) if isinstance(llm, str) else llm
    notifier = Notifier(chosen.notify, run="run-1", clock=parts.clock, post=post, url="https://example.test/secret")
    names = Names(KEY)
    path = tmp_path / "maintainer" / "transcript.jsonl"
    snapshot_reader = SnapshotReader(dataflow, fleet, parts.clock)
    with Transcript(path, parts.clock) as transcript:
        maintainer = Maintainer(
            chosen,
            run="run-1",
            snapshot_reader=snapshot_reader,
            fleet=fleet,
            llm=model,
            names=names,
            transcript=transcript,
            notifier=notifier,
            clock=parts.clock,
        )
        await maintainer.begin()
        yield Scene(
            parts=parts,
            fleet=fleet,
            dataflow=dataflow,
            snapshot_reader=snapshot_reader,
            maintainer=maintainer,
            notifier=notifier,
            posted=posted,
            transcript=path,
            clock=parts.clock,
            names=names,
        )


def advice(
    pool: PoolId = POOL, *, present: int, target: int, low: float, high: float, **changes: Any
) -> PoolRecommendation:
    """Returns a recommendation of the rule."""
    return make.pool_advice(pool, target=target, present=present, band_low=low, band_high=high, **changes)
