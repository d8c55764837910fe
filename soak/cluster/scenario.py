"""One run of a cluster under faults: start, faults, calm, and the checks of services, mirror, bucket and ledger."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.reports.report import Report
from astraflow.recipe.loading import load_recipe, snapshot
from astraflow.weights.config import WeightsConfig
from astraflow.weights.service import running as weights_running
from astraflow.wire.server import ListenOptions
from soak.cluster.page_user import PageUser, disagreements, logged_in
from soak.cluster.strikes import BUCKET, DATABASE, LINK, LONGEST_S, MACHINE, Strike, strikes
from soak.cluster.topology import BUCKET_KEYS, FAR_NODES, Cluster, kill_machine, running_cluster
from soak.fault_plan import LinkFault
from soak.ledger import Ledger
from soak.monitor import Monitor
from soak.processes import TOKEN_OF_RUN, FaultCounts
from soak.rules import Invariant, Rules, Violation
from soak.scenario import RECIPE, Outcome, fetch_all, final_checks, steps_more

OVERRIDES = (
    "policies.solver.backend.step_s=2.0",
    "policies.verifier.backend.step_s=2.0",
    "nodes.capacity=8",
    "dataflow.lease_s=15.0",
    "dataflow.heartbeat_s=2.0",
)
"""Slower than the soak on one host: its processes start again every few seconds on two cores."""

PATIENCE_S = 300.0
"""Seconds for the run to reach an expected state without faults."""

LINK_DOWN = "link down "
"""Prefix of the line that asks the process which runs the link for an outage of so many seconds."""


@dataclass(slots=True)
class ClusterOutcome:
    """Results of a run."""

    run: Outcome
    acknowledged: int = 0
    """Changes of a pool that the page acknowledged."""
    retries: int = 0
    fetched_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes of weights sent by the store to each caller that has a name, and to the mirror and others without."""
    mirrored: dict[str, dict[str, int]] = field(default_factory=dict)
    """Versions that the nodes of the far host fetched since their last start, by address of the source."""


async def soak_cluster(
    seed: int, *, seconds: float, every_s: float, directory: Path, far: str, say: Callable[[str], None]
) -> ClusterOutcome:
    """Runs in `directory`, where logs and state stay. far: namespace of the second host. `say` gets the progress."""
    recipe = load_recipe(str(RECIPE), OVERRIDES)
    recipe_file = directory / "recipe.json"
    recipe_file.write_text(snapshot(recipe))
    ledger, counts = Ledger(Rules(recipe)), FaultCounts()
    async with running_cluster(recipe, recipe_file, directory, ledger, counts, far=far) as cluster:
        watch = Monitor(cluster.topology, directory, ledger, patience_s=PATIENCE_S)
        outcome = ClusterOutcome(run=Outcome(ledger=ledger, fault_counts=counts, watch=watch))
        async with _background(watch.run()), _user(cluster) as (user, changes):
            await steps_more(outcome.run, 2, what="the first steps")
            say("every trainer has made its first steps; the faults begin")
            began = time.monotonic()
            await _strike(
                strikes(seed, list(cluster.topology.processes), every_s=every_s), seconds, outcome, cluster, say
            )
            outcome.run.storm_s = time.monotonic() - began
            say(f"the faults are over after {outcome.run.storm_s:.0f} s and {len(counts.kills)} kills")
            await steps_more(outcome.run, 3, what="steps after the faults")
            user.finish()
            await changes
            await _check_services(outcome, cluster, user)
            say("page, ledger and mirror were compared; the run is drained")
            await final_checks(outcome.run, cluster.topology)
            outcome.run.found += await _check_bucket(outcome.run, cluster, recipe.weights)
    return outcome


@asynccontextmanager
async def _background(work: Any) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def _user(cluster: Cluster) -> AsyncIterator[tuple[PageUser, "asyncio.Task[None]"]]:
    address = f"http://127.0.0.1:{cluster.ports.page}"
    async with httpx.AsyncClient(base_url=address, timeout=30.0) as client:
        user = await logged_in(client, cluster.directory)
        async with _background(user.run()) as changes:
            yield user, changes


async def _strike(
    plan: Iterator[Strike], seconds: float, outcome: ClusterOutcome, cluster: Cluster, say: Callable[[str], None]
) -> None:
    """Injects one fault after the other; at the end all faults are over."""
    began = shown_at = time.monotonic()
    async with asyncio.TaskGroup() as lasting:
        for strike in plan:
            await asyncio.sleep(strike.after_s)
            if time.monotonic() > began + seconds:
                return
            _inject(strike, outcome.run, cluster, lasting, say)
            if time.monotonic() > shown_at + 60:
                shown_at = time.monotonic()
                kills, steps = outcome.run.fault_counts.kills, dict(outcome.run.ledger.steps())
                say(f"{shown_at - began:.0f} s, {len(kills)} kills, steps {steps}")


def _inject(
    strike: Strike, outcome: Outcome, cluster: Cluster, lasting: asyncio.TaskGroup, say: Callable[[str], None]
) -> None:
    target = strike.target
    if target == DATABASE:
        cluster.database.crash(pause_s=strike.away_s)
    elif target == BUCKET:
        trouble = LinkFault.REFUSE if strike.away_s < LONGEST_S / 2 else LinkFault.STALL
        outcome.disturbed[BUCKET] += 1
        lasting.create_task(cluster.bucket.disturb(trouble, strike.away_s))
    elif target == LINK:
        outcome.disturbed[LINK] += 1
        say(f"{LINK_DOWN}{strike.away_s:.2f}")
    elif target != MACHINE:
        cluster.topology.processes[target].kill(pause_s=strike.away_s)
    elif kill_machine(cluster.machines):
        outcome.fault_counts.kills.append((time.monotonic(), MACHINE))


async def _check_services(outcome: ClusterOutcome, cluster: Cluster, user: PageUser) -> None:
    """Compares page and ledger, and checks that the far host's nodes fetch from the mirror."""
    run = outcome.run
    outcome.acknowledged, outcome.retries = len(user.acknowledged), user.retries
    run.found += await disagreements(user, cluster.ports.database)
    run.found += [Violation(promise=Invariant.PROCESS, message=f"the page answered: {text}") for text in user.defects]
    for (caller, method), size_bytes in cluster.witness.reply_bytes.items():
        if method == "Fetch":
            outcome.fetched_bytes[caller or "mirror"] = size_bytes
    report = await run.watch.until(lambda report: _have_fetched(report, cluster.mirror), what="fetches from the mirror")
    if report is not None:
        outcome.mirrored = {
            node.facts.name: {link.source: link.versions for link in node.links}
            for node in report.nodes
            if node.facts.name in FAR_NODES
        }


def _have_fetched(report: Report, mirror: str) -> bool:
    """Returns whether both nodes of the far host have fetched versions from the mirror since their last start."""
    fetched = {
        node.facts.name for node in report.nodes for link in node.links if link.source == mirror and link.versions
    }
    return fetched >= set(FAR_NODES)


async def _check_bucket(outcome: Outcome, cluster: Cluster, weights: WeightsConfig) -> list[Violation]:
    """Checks, as a store on another machine, that the bucket has every version that must be kept, with its bits."""
    os.environ.update(BUCKET_KEYS)
    config = weights.model_copy(update={"storage": dict(cluster.storage)})
    folder = cluster.directory / "reopened"
    try:
        async with weights_running(config, listen=ListenOptions(token=TOKEN_OF_RUN), directory=folder) as address:
            checks = [await fetch_all(outcome, policy, address) for policy in outcome.ledger.lineages]
    except AstraFlowError as problem:
        return [Violation(promise=Invariant.VERSIONS, message=f"the bucket cannot be opened: {problem}")]
    return [violation for violations in checks for violation in violations]
