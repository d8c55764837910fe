"""Savings of data algorithms: rollouts generated against accuracy reached, on a synthetic mix of difficulties.

    python -m benchmarks.data_algorithms [--steps 100] [--seeds 5] [--svg FILE]

Selectors, filters, samplers, gate and buffer are the real ones, driven in process without journal or gRPC. The rest is
a model, in virtual time: a prompt is solved with probability sigmoid(ability + practice - difficulty), difficulties are
spread so widely that most groups of eight have equal rewards at first, and a trained group moves ability and the
prompt's own practice by the spread of its rewards, 2 sqrt(q (1 - q)) for a share q of right answers, averaged over the
batch: groups without spread dilute it. A group teaches `STALENESS_FACTOR` times as much for each version of age,
and `REUSE` times as much each time it is trained again. Accuracy is that of other prompts of the same mix, which only
ability helps. The effect of replay on learning is therefore an assumption; the rollouts of the
algorithms are measured.
"""

import argparse
import heapq
import math
import random
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from astraflow.contract.batches import StepReport
from astraflow.contract.ids import FlowId, GroupId, NodeId, PolicyId, Version
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode, Trajectory
from astraflow.dataflow.admission.routing import RoutedGroup
from astraflow.dataflow.config import DataflowConfig, FlowConfig, StreamConfig
from astraflow.dataflow.flow import Flow
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.service import build_run
from astraflow.dataflow.serving.buffer import ServedBatch
from astraflow.dataflow.serving.stream import Stream
from astraflow.dataflow.storage.journal import Journal
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.plot import Curve, line_plot

POLICY, NODE = PolicyId("solver"), NodeId("node")
PROMPTS, GROUP_SIZE, BATCH_GROUPS, MAX_STALENESS = 2000, 8, 64, 8
"""A quarter of the published set-up: 8,000 prompts, batches of 256 groups of eight, staleness 8, 100 steps."""
SPREAD, MEAN_DIFFICULTY = 5.8, 0.5
"""Distribution of difficulties, in logits: dynamic sampling generates about 3.5 times the rollouts, as published."""
ABILITY_GAIN, PRACTICE_GAIN = 0.04, 0.3
"""Logits for a batch, and for a group, with the largest spread."""
STALENESS_FACTOR, REUSE = 0.98, 0.9
GROUPS_AT_ONCE, GROUP_S, STEP_S = 128, 60.0, 45.0
"""The pool, the median duration of a group (lognormal), and the trainer's step."""

DYNAMIC = ({"kind": "informative"},)
GRESO = {"kind": "greso", "floor_easy": 0.05, "floor_hard": 0.30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A combination of data algorithms."""

    name: str
    filters: tuple[dict[str, Any], ...] = DYNAMIC
    selector: dict[str, Any] = field(default_factory=lambda: {"kind": "sequential"})
    sampler: dict[str, Any] = field(default_factory=lambda: {"kind": "fresh"})


VARIANTS = (
    Variant(name="none", filters=({"kind": "keep_all"},)),
    Variant(name="dynamic sampling"),
    Variant(name="+ replay 0.3", sampler={"kind": "replay", "ratio": 0.3}),
    Variant(name="+ replay 0.5", sampler={"kind": "replay", "ratio": 0.5}),
    Variant(name="+ GRESO", selector=GRESO),
    Variant(name="+ GRESO + replay 0.3", selector=GRESO, sampler={"kind": "replay", "ratio": 0.3}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run."""

    name: str
    curve: tuple[tuple[int, float], ...]
    """(rollouts generated so far, accuracy) after each step."""
    hours: float
    """Virtual hours."""
    replayed: float
    """Replayed share of all batches."""
    stale: float
    """Share of admitted groups that became stale."""

    @property
    def rollouts(self) -> int:
        """Rollouts generated in total."""
        return self.curve[-1][0]

    @property
    def accuracy(self) -> float:
        """Accuracy after the last step."""
        return self.curve[-1][1]

    def rollouts_to(self, accuracy: float) -> int | None:
        """Returns the rollouts generated until this accuracy was first reached; None if it never was."""
        return next((rollouts for rollouts, reached in self.curve if reached >= accuracy), None)


class Learner:
    """The model of the policy."""

    def __init__(self, seed: int) -> None:
        chance = np.random.default_rng(seed)
        self._difficulty = chance.normal(MEAN_DIFFICULTY, SPREAD, PROMPTS)
        self._held_out = chance.normal(MEAN_DIFFICULTY, SPREAD, 4 * PROMPTS)
        self._practice = np.zeros(PROMPTS)
        self._ability = 0.0
        self._uses = Counter[str]()

    def probability(self, prompt: int) -> float:
        """Returns the probability of a correct answer."""
        return _sigmoid(self._ability + self._practice[prompt] - self._difficulty[prompt])

    def train(self, groups: Sequence[RoutedGroup], prompts: Sequence[int], version: int) -> None:
        """Trains one step."""
        total = 0.0
        for group, prompt in zip(groups, prompts, strict=True):
            rewards = group.rewards()
            share = sum(rewards) / len(rewards)
            worth = STALENESS_FACTOR ** (version - group.oldest_version) * REUSE ** self._uses[group.id]
            gain = 2 * math.sqrt(share * (1 - share)) * worth
            self._uses[group.id] += 1
            self._practice[prompt] += PRACTICE_GAIN * gain
            total += gain
        self._ability += ABILITY_GAIN * total / len(groups)

    def accuracy(self) -> float:
        """Returns the accuracy on prompts that are never trained."""
        return float(np.mean(1 / (1 + np.exp(self._held_out - self._ability))))


class Simulation:
    """A pool and a trainer around one flow and one stream, as events in virtual time."""

    def __init__(self, flow: Flow, stream: Stream, *, seed: int) -> None:
        self._flow = flow
        self._stream = stream
        self._learner = Learner(seed)
        self._chance = random.Random(f"bench/{seed}")
        self._now = 0.0
        self._running: list[tuple[float, int, list[Episode]]] = []
        self._step_ends: float | None = None
        self._prompts: dict[str, int] = {}
        self._rollouts = 0

    def steps(self, count: int) -> Iterator[tuple[int, float]]:
        """Yields the rollouts generated and the accuracy after each step."""
        for _ in range(count):
            while (served := self._stream.next_batch()) is None:
                self._issue()
                self._finish_next()
            ends = self._now + STEP_S
            self._issue()
            while self._running and self._running[0][0] <= ends:
                self._finish_next()
                self._issue()
            self._now = ends
            self._train(served)
            yield self._rollouts, self._learner.accuracy()

    @property
    def hours(self) -> float:
        """Virtual time, in hours."""
        return self._now / 3600

    def _issue(self) -> None:
        while len(self._running) < GROUPS_AT_ONCE and self._stream.issue_headroom() > 0:
            group = self._flow.issue()
            self._stream.counts.issued += 1
            self._prompts[group.id] = group.prompt_index
            tasks = self._flow.lease(NODE, GROUP_SIZE, served={}, now=0.0, remaining_bytes=1)
            chance = self._learner.probability(group.prompt_index)
            episodes = [_episode(task, self._chance.random() < chance, self._stream.version) for task in tasks]
            ends = self._now + self._chance.lognormvariate(math.log(GROUP_S), 0.6)
            heapq.heappush(self._running, (ends, self._flow.issued, episodes))

    def _finish_next(self) -> None:
        self._now, _, episodes = heapq.heappop(self._running)
        self._rollouts += len(episodes)
        group = GroupId(episodes[0].task.rpartition("/")[0])
        complete = self._flow.accept(group, episodes, {POLICY: self._stream.version}).complete_group
        if complete is None:
            raise RuntimeError(f"group {group} is not complete")
        self._flow.count_admission(complete.admission)
        self._stream.counts.refused += len(complete.admission.refused)
        for routed in complete.admission.admitted.values():
            self._stream.admit(routed)

    def _train(self, served: ServedBatch) -> None:
        groups = (*served.fresh_groups, *served.replayed)
        self._learner.train(groups, [self._prompts[group.id] for group in groups], served.version)
        version = Version(served.version + 1)
        self._stream.acknowledge(
            StepReport(batch=served.id, policy=POLICY, version=version, wait_s=0, compute_s=STEP_S, publish_s=0)
        )
        self._stream.evict_stale()
        self._stream.release_stale_replayable()
        self._flow.advance(version)


def measure(variant: Variant, *, steps: int, seed: int) -> Outcome:
    """Measures a variant."""
    config = DataflowConfig(
        seed=seed,
        flows={
            "train": FlowConfig(
                dataset={"kind": "scripted", "size": PROMPTS},
                workflow={"kind": "single_turn", "policy": POLICY},
                reward={"kind": "exact_match"},
                group_size=GROUP_SIZE,
                selector=variant.selector,
                filters=variant.filters,
            )
        },
        streams={POLICY: StreamConfig(batch_groups=BATCH_GROUPS, max_staleness=MAX_STALENESS, sampler=variant.sampler)},
        models={POLICY: {"kind": "scripted"}},
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Journal(Path(folder) / "journal.sqlite")) as journal,
        closing(Archive(Path(folder) / "history.sqlite", clock=SystemClock())) as archive,
    ):
        run = build_run(config, journal=journal, archive=archive, clock=SystemClock())
        stream = run.streams[POLICY]
        bench = Simulation(run.flows[FlowId("train")], stream, seed=seed)
        curve = tuple(bench.steps(steps))
    counts = stream.counts
    return Outcome(
        name=variant.name,
        curve=curve,
        hours=bench.hours,
        replayed=counts.replayed / (counts.trained + counts.replayed),
        stale=sum(counts.dropped.values()) / counts.admitted,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanWithSpread:
    """Mean and spread of a figure over several seeds."""

    mean: float
    spread: float
    """Standard deviation; 0 for one seed."""


def over_seeds(values: Sequence[float]) -> MeanWithSpread:
    """Returns the mean and spread."""
    return MeanWithSpread(mean=statistics.fmean(values), spread=statistics.stdev(values) if len(values) > 1 else 0.0)


def table(by_seed: Sequence[Sequence[Outcome]]) -> str:
    """Formats one line per variant, means over the seeds with standard deviations.

    by_seed: for each seed the outcomes of all variants. `to equal` compares, within each seed, at the accuracy that
    dynamic sampling alone has after nine steps of ten.
    """
    heads = ("rollouts", "of dyn.", "accuracy", "to equal, of dyn.", "never", "hours", "replayed", "stale")
    lines = [f"{'':22}" + "".join(f"{head:>20}" for head in heads[:4]) + "".join(f"{head:>10}" for head in heads[4:])]
    dynamic = [_named(outcomes, "dynamic sampling") for outcomes in by_seed]
    for variant in by_seed[0]:
        own = [_named(outcomes, variant.name) for outcomes in by_seed]
        shares = [outcome.rollouts / base.rollouts for outcome, base in zip(own, dynamic, strict=True)]
        reached = [_share_to_equal(outcome, base) for outcome, base in zip(own, dynamic, strict=True)]
        at_all = [share for share in reached if share is not None]
        lines.append(
            f"{variant.name:22}"
            + _with_spread([outcome.rollouts for outcome in own], ",.0f")
            + _with_spread(shares, ".2f")
            + _with_spread([outcome.accuracy for outcome in own], ".1%")
            + (_with_spread(at_all, ".2f") if at_all else f"{'-':>20}")
            + f"{len(own) - len(at_all):10}"
            + f"{statistics.fmean(outcome.hours for outcome in own):10.2f}"
            + f"{statistics.fmean(outcome.replayed for outcome in own):10.1%}"
            + f"{statistics.fmean(outcome.stale for outcome in own):10.1%}"
        )
    return "\n".join(line.rstrip() for line in lines) + "\n"


def curves(by_seed: Sequence[Sequence[Outcome]]) -> list[Curve]:
    """Returns accuracy against rollouts of each variant: for each step the mean over the seeds."""
    return [
        Curve(
            name=variant.name,
            points=tuple(
                (statistics.fmean(x for x, _ in points), statistics.fmean(y for _, y in points))
                for points in zip(*(_named(outcomes, variant.name).curve for outcomes in by_seed), strict=True)
            ),
        )
        for variant in by_seed[0]
    ]


def main() -> None:
    """Measures every variant, prints the table, draws the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=1, help="how many; each takes half a minute")
    parser.add_argument("--svg", type=Path)
    arguments = parser.parse_args()
    by_seed = [
        [measure(variant, steps=arguments.steps, seed=seed) for variant in VARIANTS] for seed in range(arguments.seeds)
    ]
    sys.stdout.write(table(by_seed))
    if arguments.svg:
        picture = line_plot(curves(by_seed), x_label="rollouts generated", y_label="accuracy on other prompts")
        arguments.svg.write_text(picture)


def _named(outcomes: Sequence[Outcome], name: str) -> Outcome:
    return next(outcome for outcome in outcomes if outcome.name == name)


def _share_to_equal(outcome: Outcome, dynamic: Outcome) -> float | None:
    equal = dynamic.curve[round(0.9 * len(dynamic.curve)) - 1][1]
    reached, base = outcome.rollouts_to(equal), dynamic.rollouts_to(equal)
    return reached / base if reached and base else None


def _with_spread(values: Sequence[float], form: str) -> str:
    figure = over_seeds(values)
    text = f"{figure.mean:{form}}" + (f" ± {figure.spread:{form}}" if len(values) > 1 else "")
    return f"{text:>20}"


def _episode(task: Task, is_right: bool, version: Version) -> Episode:
    trajectory = Trajectory(
        policy=POLICY,
        tokens=_TOKEN,
        logprobs=_LOGPROB,
        spans=(Span(author=Author.MODEL, length=1, version=version),),
        reward=float(is_right),
    )
    return Episode(task=task.id, node=NODE, trajectories=(trajectory,))


_TOKEN = np.zeros(1, dtype=np.int32)
_LOGPROB = np.zeros(1, dtype=np.float32)


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


if __name__ == "__main__":
    main()
