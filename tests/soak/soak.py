"""One soak: begin, storm, calm, drain, one more kill, and the reckoning."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.reports import Report
from astraflow.recipe import load_recipe
from astraflow.runtime.aio import retry
from astraflow.weights.origins import Origin, Origins
from astraflow.weights.puller import Puller
from astraflow.wire.channel import dial
from tests.soak.ledger import Ledger
from tests.soak.plan import Disturb, Due, End, Fault, Kill, Stop, faults
from tests.soak.processes import TOKEN_OF_RUN, Tally
from tests.soak.rules import Promise, Rules, Violation
from tests.soak.topology import DATAFLOW, WEIGHTS, Topology, running
from tests.soak.watch import PATIENCE_S, Watch

RECIPE = Path(__file__).parent / "recipe.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How long the storm lasts: both must be reached."""

    seconds: float
    kills: int = 0


@dataclass(slots=True)
class Outcome:
    """What a soak found out, as far as it came."""

    ledger: Ledger
    tally: Tally
    watch: Watch
    storm_s: float = 0.0
    lasting: list[tuple[float, str]] = field(default_factory=list)
    """When each fault that is no kill began (monotonic seconds), and on which process or link."""
    disturbed: Counter[str] = field(default_factory=Counter)
    """Troubles of links, by kind."""
    report: Report | None = None
    """After everything has ended."""
    found: list[Violation] = field(default_factory=list)
    """By the reckoning."""

    @property
    def violations(self) -> list[Violation]:
        """Every promise that was seen broken."""
        surprises = [
            Violation(
                promise=Promise.PROCESS, message=f"{one.process} ended by itself with code {one.code}:\n{one.log_tail}"
            )
            for one in self.tally.surprises
        ]
        return self.ledger.violations + self.watch.violations + self.found + surprises


async def soak(seed: int, length: Length, directory: Path, say: Callable[[str], None]) -> Outcome:
    """Run it in `directory`, where logs and state stay. `say` hears how far it is."""
    recipe = load_recipe(str(RECIPE))
    ledger, tally = Ledger(Rules(recipe)), Tally()
    async with running(recipe, RECIPE, directory, ledger, tally) as topology:
        outcome = Outcome(ledger=ledger, tally=tally, watch=Watch(topology, directory, ledger))
        watching = asyncio.create_task(outcome.watch.run())
        try:
            await _steps_more(outcome, 3, what="the first steps")
            say("every trainer has made its first steps; the storm begins")
            began = time.monotonic()
            await _storm(faults_of(seed, topology), length, outcome, topology, say)
            outcome.storm_s = time.monotonic() - began
            say(f"the storm is over after {outcome.storm_s:.0f} s and {len(tally.kills)} kills")
            await _steps_more(outcome, 3, what="steps after the storm")
            await _reckon(outcome, topology)
        finally:
            watching.cancel()
    return outcome


def faults_of(seed: int, topology: Topology) -> Callable[[], Due]:
    """The next fault of the seed, each time."""
    endless = faults(seed, weights=topology.likelihoods(), nodes=topology.nodes, links=list(topology.links))
    return lambda: next(endless)


async def _steps_more(outcome: Outcome, steps: int, *, what: str) -> None:
    """Until every policy has made so many steps more."""
    goal = {policy: done + steps for policy, done in outcome.ledger.steps().items()}
    await outcome.watch.until(
        lambda _: all(done >= goal[policy] for policy, done in outcome.ledger.steps().items()), what=what
    )


async def _storm(
    next_fault: Callable[[], Due], length: Length, outcome: Outcome, topology: Topology, say: Callable[[str], None]
) -> None:
    """One fault after the other; those that last go on beside the next. At the end all of them are over."""
    kills, began, told_at = outcome.tally.kills, time.monotonic(), time.monotonic()
    async with asyncio.TaskGroup() as lasting:
        while time.monotonic() < began + length.seconds or len(kills) < length.kills:
            due = next_fault()
            await asyncio.sleep(due.after_s)
            _begin(due.fault, outcome, topology, lasting)
            if time.monotonic() > told_at + 60:
                told_at = time.monotonic()
                say(f"{told_at - began:.0f} s, {len(kills)} kills, steps {dict(outcome.ledger.steps())}")


def _begin(fault: Fault, outcome: Outcome, topology: Topology, lasting: asyncio.TaskGroup) -> None:
    if not isinstance(fault, Kill):
        outcome.lasting.append((time.monotonic(), fault.link if isinstance(fault, Disturb) else fault.process))
    match fault:
        case Kill(process=name, pause_s=pause_s):
            topology.processes[name].kill(pause_s=pause_s)
        case End(process=name, pause_s=pause_s):
            topology.processes[name].end(pause_s=pause_s)
        case Stop(process=name, for_s=for_s):
            lasting.create_task(topology.processes[name].stop(for_s))
        case Disturb(link=name, trouble=trouble, for_s=for_s):
            outcome.disturbed[trouble.value] += 1
            lasting.create_task(topology.links[name].disturb(trouble, for_s))


async def _reckon(outcome: Outcome, topology: Topology) -> None:
    """Let everything that was issued end, look where it is, and look again after one more kill."""
    watch = outcome.watch
    await retry(watch.pause_flows, what="pausing the flows", give_up_after_s=PATIENCE_S)
    drained = await watch.until(has_ended, what="the end of all that was issued")
    if drained is None:
        return
    await asyncio.gather(*(topology.processes[name].finish() for name in (*topology.trainers, *topology.nodes)))
    outcome.report = await retry(watch.report, what="asking where everything is", give_up_after_s=PATIENCE_S)
    for service in (DATAFLOW, WEIGHTS):
        topology.processes[service].kill(pause_s=0.0)
    again = await watch.until(lambda _: True, what="dataflow after the last kill")
    if again is not None:
        outcome.found += _same(outcome.report, again)
    outcome.found += outcome.ledger.check_end(outcome.report)
    for policy in outcome.ledger.lineages:
        outcome.found += await _fetch_all(outcome, topology, policy)
    await asyncio.gather(*(topology.processes[name].finish() for name in (DATAFLOW, WEIGHTS)))


def has_ended(report: Report) -> bool:
    """No group is open, and no trainer can make another step."""
    return all(flow.open == 0 for flow in report.flows) and all(
        stream.in_batch == 0 and stream.buffered < stream.batch_groups for stream in report.streams
    )


def _same(before: Report, after: Report) -> list[Violation]:
    """What a kill must leave as it was."""
    places = ("steps", "trained", "buffered", "in_batch", "admitted", "version", "dropped")
    return [
        Violation(promise=Promise.LOST, message=f"{old.policy}: {place} was {was}, and is {now} after a kill")
        for old, new in zip(before.streams, after.streams, strict=True)
        for place in places
        if (was := getattr(old, place)) != (now := getattr(new, place))
    ]


async def _fetch_all(outcome: Outcome, topology: Topology, policy: PolicyId) -> list[Violation]:
    """Every version that is kept can be had, proven by its hashes, and the newest is what was trained last."""
    found: list[Violation] = []
    lineage = outcome.ledger.lineages[policy]
    async with dial(topology.weights, token=TOKEN_OF_RUN) as link:
        client = WeightPlaneClient(link)
        kept = await retry(lambda: client.versions(policy), what="asking what is kept", give_up_after_s=PATIENCE_S)
        for notice in kept:
            try:
                await _fetch(client, policy, notice.version)
            except AstraFlowError as problem:
                message = f"{policy}: version {notice.version} cannot be had: {problem}"
                found.append(Violation(promise=Promise.VERSIONS, message=message))
    if not kept or kept[-1].version != lineage.steps:
        message = f"{policy}: {lineage.steps} steps were acknowledged, the newest version kept is {kept[-1:]}"
        found.append(Violation(promise=Promise.VERSIONS, message=message))
    return found


async def _fetch(client: WeightPlaneClient, policy: PolicyId, version: Version) -> None:
    await Puller(Origins([Origin("store", [client])]), policy).exactly(version)
