"""A run as real processes over loopback, and its results."""

import asyncio
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from astraflow.contract.reports.report import Report, StreamReport
from astraflow.recipe.loading import snapshot
from benchmarks.asynchronous.experiment import POLICIES, Mode, Setting, recipe
from tests.system.processes import RunningRun, assert_balanced, running

POLL_S = 0.25
LIMIT_S = 900.0
GONE_WITHIN_S = 60.0
"""The machine may be busy, and the end of a run is not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of one trainer, from its log; seconds of this machine."""

    ended_at: float
    wait_s: float
    compute_s: float
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run. Times are seconds of the original set-up."""

    mode: str
    label: str
    sigma: float
    iterations_s: tuple[float, ...]
    """Durations after the warm-up; an iteration ends when every policy has made its step."""
    ended_s: tuple[float, ...]
    """End of each iteration, counted from the end of the first."""
    wait: dict[str, float]
    """Share of its time that each trainer waited for batches."""
    train_use: float
    """Share of the training GPUs' time spent on training."""
    rollout_use: float
    """Generated tokens over the capacity of the generating GPUs with full batches all the time."""
    idle: float
    """Share of all GPU time without training or generation."""
    stale: float
    """Share of the admitted groups that became stale."""
    staleness: float
    """Mean age of a served row, in versions."""
    load: float
    """Load of this machine before: runnable processes besides the benchmark's."""

    @property
    def iteration_s(self) -> float:
        """Median duration of an iteration."""
        return statistics.median(self.iterations_s)


def measure(setting: Setting, mode: Mode, folder: Path, *, warm_up: int, steps: int, seed: int) -> Outcome:
    """Runs until every policy has made `warm_up + steps` steps; measures the latter. The folder must be new."""
    folder.mkdir(parents=True)
    file = folder / "recipe.json"
    file.write_text(snapshot(recipe(setting, mode, seed=seed)))
    load = os.getloadavg()[0]
    begun, ended, steps_by_policy = asyncio.run(_run(file, folder / "run", warm_up=warm_up, steps=steps))
    return _outcome(setting, mode, begun, ended, steps_by_policy, warm_up=warm_up, load=load)


async def _run(
    file: Path, directory: Path, *, warm_up: int, steps: int
) -> tuple[Report, Report, dict[str, list[Step]]]:
    options = ("--no-web", "--limit-s", str(LIMIT_S))
    async with running(str(file), directory, *options, gone_within_s=GONE_WITHIN_S) as run:
        begun = await _after(run, warm_up)
        ended = await _after(run, warm_up + steps)
        assert_balanced(ended)
    return begun, ended, {policy: _steps(run, policy)[: warm_up + steps] for policy in POLICIES}


async def _after(run: RunningRun, steps: int) -> Report:
    """Returns the first report in which every policy has made this many steps."""
    while True:
        report = await run.report()
        if all(stream.training.steps >= steps for stream in report.streams):
            return report
        await asyncio.sleep(POLL_S)


def _steps(run: RunningRun, policy: str) -> list[Step]:
    return [
        Step(
            ended_at=datetime.fromisoformat(line["timestamp"]).timestamp(),
            wait_s=line["wait_s"],
            compute_s=line["compute_s"],
            wall_s=line["wait_s"] + line["compute_s"] + line["publish_s"] + line["checkpoint_s"],
        )
        for line in run.logged_steps(f"trainer-{policy}")
    ]


def _outcome(
    setting: Setting,
    mode: Mode,
    begun: Report,
    ended: Report,
    steps_by_policy: dict[str, list[Step]],
    *,
    warm_up: int,
    load: float,
) -> Outcome:
    ends = [
        max(steps[number].ended_at for steps in steps_by_policy.values())
        for number in range(len(steps_by_policy[POLICIES[0]]))
    ]
    measured = {policy: steps[warm_up:] for policy, steps in steps_by_policy.items()}
    span_s = ends[-1] - ends[warm_up - 1]
    train_use = statistics.mean(sum(step.compute_s for step in steps) / span_s for steps in measured.values())
    rollout_use = _tokens_per_s(setting, begun, ended) / (len(POLICIES) * mode.gpus * setting.full_tokens_per_s)
    used = train_use + rollout_use
    return Outcome(
        mode=mode.name,
        label=mode.label,
        sigma=setting.sigma,
        iterations_s=tuple(
            (after - before) * setting.faster
            for before, after in zip(ends[warm_up - 1 :], ends[warm_up:], strict=False)
        ),
        ended_s=tuple((end - ends[0]) * setting.faster for end in ends),
        wait={
            policy: sum(step.wait_s for step in steps) / sum(step.wall_s for step in steps)
            for policy, steps in measured.items()
        },
        train_use=train_use,
        rollout_use=rollout_use,
        idle=1 - (used if mode.is_colocated else used / 2),
        stale=sum(sum(s.groups.dropped.values()) for s in ended.streams)
        / sum(s.groups.admitted for s in ended.streams),
        staleness=_mean_staleness(ended.streams),
        load=load,
    )


def _tokens_per_s(setting: Setting, begun: Report, ended: Report) -> float:
    """Returns the tokens per second of all nodes, in the original time."""
    first, last = (sum(node.counters.get("tokens_generated", 0) for node in report.nodes) for report in (begun, ended))
    return (last - first) * setting.tokens_in_one / ((ended.at - begun.at) * setting.faster)


def _mean_staleness(streams: Sequence[StreamReport]) -> float:
    rows = [(age, count) for stream in streams for age, count in stream.staleness.items()]
    return sum(age * count for age, count in rows) / sum(count for _, count in rows)
