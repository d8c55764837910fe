"""One soak: start, faults, calm, drain, one more kill, and the final checks."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.reports.report import Report
from astraflow.recipe.loading import load_recipe
from astraflow.runtime.retries import retry
from astraflow.weights.transfer.puller import Puller
from astraflow.weights.transfer.weight_sources import WeightSource, WeightSources
from astraflow.wire.channel import ClientTls, dial
from soak.fault_plan import DisturbLink, End, Fault, Kill, ScheduledFault, Stop, faults
from soak.ledger import Ledger
from soak.monitor import PATIENCE_S, Monitor
from soak.processes import TOKEN_OF_RUN, FaultCounts
from soak.rules import Invariant, Rules, Violation
from soak.topology import DATAFLOW, WEIGHTS, Topology, running

RECIPE = Path(__file__).parent / "recipe.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakLength:
    """Duration of the faults: both limits must be reached."""

    seconds: float
    kills: int = 0


@dataclass(slots=True)
class Outcome:
    """Results of a soak until its end or failure."""

    ledger: Ledger
    fault_counts: FaultCounts
    watch: Monitor
    storm_s: float = 0.0
    lasting: list[tuple[float, str]] = field(default_factory=list)
    """Start (monotonic seconds) and process or link of each fault other than a kill."""
    disturbed: Counter[str] = field(default_factory=Counter)
    """Link faults, by kind."""
    report: Report | None = None
    """Last report, after all tasks have ended."""
    found: list[Violation] = field(default_factory=list)
    """Violations found by the final checks."""

    @property
    def violations(self) -> list[Violation]:
        """Returns every violation."""
        surprises = [
            Violation(
                promise=Invariant.PROCESS,
                message=f"{surprise.process} ended by itself with code {surprise.code}:\n{surprise.log_tail}",
            )
            for surprise in self.fault_counts.surprises
        ]
        return self.ledger.violations + self.watch.violations + self.found + surprises


async def soak(seed: int, length: SoakLength, directory: Path, say: Callable[[str], None]) -> Outcome:
    """Runs in `directory`, where logs and state stay. `say` gets the progress."""
    recipe = load_recipe(str(RECIPE))
    ledger, fault_counts = Ledger(Rules(recipe)), FaultCounts()
    async with running(recipe, RECIPE, directory, ledger, fault_counts) as topology:
        outcome = Outcome(ledger=ledger, fault_counts=fault_counts, watch=Monitor(topology, directory, ledger))
        watching = asyncio.create_task(outcome.watch.run())
        try:
            await steps_more(outcome, 3, what="the first steps")
            say("every trainer has made its first steps; the storm begins")
            began = time.monotonic()
            await _storm(faults_of(seed, topology), length, outcome, topology, say)
            outcome.storm_s = time.monotonic() - began
            say(f"the storm is over after {outcome.storm_s:.0f} s and {len(fault_counts.kills)} kills")
            await steps_more(outcome, 3, what="steps after the storm")
            await final_checks(outcome, topology)
        finally:
            watching.cancel()
    return outcome


def faults_of(seed: int, topology: Topology) -> Callable[[], ScheduledFault]:
    """Returns the function that gives the next fault of the seed."""
    endless = faults(seed, weights=topology.likelihoods(), nodes=topology.nodes, links=list(topology.links))
    return lambda: next(endless)


async def steps_more(outcome: Outcome, steps: int, *, what: str) -> None:
    """Waits until every policy has made this many more steps."""
    goal = {policy: done + steps for policy, done in outcome.ledger.steps().items()}
    await outcome.watch.until(
        lambda _: all(done >= goal[policy] for policy, done in outcome.ledger.steps().items()), what=what
    )


async def _storm(
    next_fault: Callable[[], ScheduledFault],
    length: SoakLength,
    outcome: Outcome,
    topology: Topology,
    say: Callable[[str], None],
) -> None:
    """Injects one fault after the other; long ones overlap with the next. At the end all faults are over."""
    kills, began, told_at = outcome.fault_counts.kills, time.monotonic(), time.monotonic()
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
        outcome.lasting.append((time.monotonic(), fault.link if isinstance(fault, DisturbLink) else fault.process))
    match fault:
        case Kill(process=name, pause_s=pause_s):
            topology.processes[name].kill(pause_s=pause_s)
        case End(process=name, pause_s=pause_s):
            topology.processes[name].end(pause_s=pause_s)
        case Stop(process=name, for_s=for_s):
            lasting.create_task(topology.processes[name].stop(for_s))
        case DisturbLink(link=name, trouble=trouble, for_s=for_s):
            outcome.disturbed[trouble.value] += 1
            lasting.create_task(topology.links[name].disturb(trouble, for_s))


async def final_checks(outcome: Outcome, topology: Topology) -> None:
    """Lets all issued tasks end, checks the state, and checks again after one more kill."""
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
        outcome.found += await fetch_all(outcome, policy, topology.weights, tls=topology.tls)
    await asyncio.gather(*(topology.processes[name].finish() for name in (DATAFLOW, WEIGHTS)))


def has_ended(report: Report) -> bool:
    """Returns whether no group is open, and no trainer can make another step."""
    return all(flow.open == 0 for flow in report.flows) and all(
        stream.groups.in_batch == 0 and stream.groups.buffered < stream.batch_groups for stream in report.streams
    )


def _same(before: Report, after: Report) -> list[Violation]:
    """Returns a violation for each count of the report that changed in a kill."""
    places = ("training.steps", "groups", "version")
    return [
        Violation(promise=Invariant.LOST, message=f"{old.policy}: {attribute} was {was}, and is {now} after a kill")
        for old, new in zip(before.streams, after.streams, strict=True)
        for attribute in places
        if (was := attrgetter(attribute)(old)) != (now := attrgetter(attribute)(new))
    ]


async def fetch_all(
    outcome: Outcome, policy: PolicyId, address: str, *, tls: ClientTls | None = None
) -> list[Violation]:
    """Checks that every version in a store can be fetched and verified, and that the newest is the last trained one."""
    violations: list[Violation] = []
    lineage = outcome.ledger.lineages[policy]
    async with dial(address, token=TOKEN_OF_RUN, tls=tls) as link:
        client = WeightPlaneClient(link)
        kept = await retry(lambda: client.versions(policy), what="asking what is kept", give_up_after_s=PATIENCE_S)
        for notice in kept:
            try:
                await _fetch(client, policy, notice.version)
            except AstraFlowError as problem:
                message = f"{policy}: version {notice.version} cannot be had: {problem}"
                violations.append(Violation(promise=Invariant.VERSIONS, message=message))
    violations += outcome.ledger.check_stored_versions(policy, kept, lineage.published)
    if not kept or kept[-1].version != lineage.steps:
        message = f"{policy}: {lineage.steps} steps were acknowledged, the newest version kept is {kept[-1:]}"
        violations.append(Violation(promise=Invariant.VERSIONS, message=message))
    return violations


async def _fetch(client: WeightPlaneClient, policy: PolicyId, version: Version) -> None:
    await Puller(WeightSources([WeightSource("store", [client])]), policy).pull_exact(version)
