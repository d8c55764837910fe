"""Library of seeded runs for the run doctor: for each fault, runs that have it and runs that nearly have it; and
healthy runs.

Courses are noisy curves of steps with the metrics that trainers report; rollouts are groups of eight answers. A nearly
faulty run is a healthy one that has what the fault is usually mistaken for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from astraflow.contract.ids import FlowId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.learning_faults import LearningFault
from astraflow.contract.reports.evaluations import EvaluationReport, EvaluationScore, EvaluationState
from astraflow.contract.reports.queries import SampledGroup
from astraflow.contract.reports.report import EVALUATED, SampledTrajectory
from astraflow.contract.reports.training_steps import TrainingStep
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.learning.facts import LearningFacts

POLICY = PolicyId("solver")
GROUP_SIZE = 8
STEPS = 200
Curve = np.ndarray


def rising(random: np.random.Generator, low: float = 0.2, high: float = 0.8, *, steps: int = STEPS) -> Curve:
    """Returns a reward that rises to a plateau, with the noise of groups."""
    course = low + (high - low) * (1 - np.exp(-np.arange(steps) / (steps / random.uniform(3, 8))))
    return np.clip(course + random.normal(0, 0.03, steps), 0, 1)


def flat(random: np.random.Generator, value: float, noise: float, *, steps: int = STEPS) -> Curve:
    """Returns a constant with noise."""
    return value + random.normal(0, noise, steps)


def metrics_of(random: np.random.Generator, rewards: Curve) -> dict[str, Curve]:
    """Returns the metrics of a healthy run with this reward."""
    steps = len(rewards)
    progress = (rewards - rewards.min()) / max(1e-9, float(np.ptp(rewards)))
    return {
        "entropy": np.abs(0.7 - 0.6 * progress + random.normal(0, 0.02, steps)),
        "grad_norm": np.abs(0.8 - 0.4 * progress) * np.exp(random.normal(0, 0.25, steps)),
        "signal_fraction": np.clip(0.8 - 0.5 * progress + random.normal(0, 0.05, steps), 0.05, 1),
        "clip_fraction": np.abs(random.normal(0.02, 0.01, steps)),
        "mismatch_k3": np.abs(random.normal(1e-4, 5e-5, steps)),
        "mismatch_sample_size": np.full(steps, 0.99),
        "kl_behaviour": np.abs(random.normal(2e-3, 1e-3, steps)),
        "staleness_mean": np.full(steps, 1.5),
        "truncated_fraction": np.abs(random.normal(0.02, 0.01, steps)),
        "tokens_mean": 100 + random.normal(0, 5, steps),
        "learning_rate": np.full(steps, 1e-6),
        "skipped": np.zeros(steps),
        "updates": np.ones(steps),
        "published_elements": np.full(steps, 1e6),
        "published_changed_elements": 1e6 * np.abs(random.normal(0.02, 0.005, steps)),
        "dropped_rows": np.zeros(steps),
    }


def steps_of(rewards: Curve, metrics: Mapping[str, Curve], policy: PolicyId = POLICY) -> tuple[TrainingStep, ...]:
    """Returns the steps of curves."""
    return tuple(
        TrainingStep(
            policy=policy,
            step=index + 1,
            at=float(index),
            version=Version(index + 1),
            total_tokens=0,
            total_episodes=0,
            reward=float(reward),
            metrics={name: float(values[index]) for name, values in metrics.items()},
        )
        for index, reward in enumerate(rewards)
    )


@dataclass(kw_only=True)
class Rollouts:
    """Sampled groups of the latest steps. The functions get the random generator and the index of the prompt."""

    reward: Callable[[np.random.Generator, int], float] = lambda random, prompt: float(random.random() < 0.6)
    answer: Callable[[np.random.Generator, int], str] = lambda random, prompt: words(random, 30)
    prompt: Callable[[int], str] = "How much is {} and 4?".format
    terms: Callable[[np.random.Generator, float], Mapping[str, float]] = lambda random, reward: {}
    fails: Callable[[np.random.Generator], bool] = lambda random: bool(random.random() < 0.01)
    metrics: Callable[[np.random.Generator], Mapping[str, float]] = lambda random: {}
    prompts: int = 40
    tries: int = 1
    evaluation: Sequence[str] = field(default_factory=lambda: [f"Held-out question {index}" for index in range(20)])

    def build(self, random: np.random.Generator) -> tuple[list[SampledGroup], list[SampledTrajectory]]:
        """Returns the groups and their members, newest first."""
        groups, rollouts = [], []
        for attempt in range(self.tries):
            for prompt in range(self.prompts):
                members = [self._member(random, attempt, prompt, member) for member in range(GROUP_SIZE)]
                rollouts += members
                groups.append(_group(members, f"{prompt}", step=STEPS - attempt))
        for index, text in enumerate(self.evaluation):
            member = replace(self._member(random, 99, 1000 + index, 0), flow=FlowId("held_out"), outcome=EVALUATED)
            rollouts.append(replace(member, prompt_text=text, failure=None))
        return groups, rollouts

    def _member(self, random: np.random.Generator, attempt: int, prompt: int, member: int) -> SampledTrajectory:
        reward = float(self.reward(random, prompt))
        terms = self.terms(random, reward)
        text = self.answer(random, prompt)
        number = (attempt * 2000 + prompt) * GROUP_SIZE + member
        return SampledTrajectory(
            ordinal=number,
            group=GroupId(f"train:{attempt}-{prompt}"),
            task=TaskId(f"t{number}"),
            flow=FlowId("train"),
            policy=POLICY,
            node=NodeId("n1"),
            at=float(number),
            step=STEPS - attempt,
            outcome="trained",
            reward=terms.get("total", reward),
            prompt_text=self.prompt(prompt),
            completion_text=text,
            reference_text=f"the answer of {self.prompt(prompt)}",
            tokens=40,
            model_tokens=30,
            spans=(),
            is_truncated=False,
            member=member,
            metrics=dict(self.metrics(random)),
            reward_terms={name: value for name, value in terms.items() if name != "total"},
            failure=Failure(boundary=Boundary.REWARD, message="the judge did not answer")
            if self.fails(random)
            else None,
        )


def words(random: np.random.Generator, count: int) -> str:
    """Returns a text of random words."""
    letters = random.integers(ord("a"), ord("z"), (count, 6), dtype=np.uint8)
    return " ".join(bytes(word).decode() for word in letters)


def _group(members: Sequence[SampledTrajectory], prompt: str, *, step: int) -> SampledGroup:
    rewards = [member.reward for member in members if member.failure is None]
    return SampledGroup(
        group=members[0].group,
        policy=POLICY,
        flow=members[0].flow,
        ordinal=members[-1].ordinal,
        at=members[-1].at,
        step=step,
        outcome="trained",
        trajectories=len(members),
        failed=len(members) - len(rewards),
        truncated=0,
        reward_mean=float(np.mean(rewards)) if rewards else None,
        reward_min=min(rewards, default=None),
        reward_max=max(rewards, default=None),
        prompt=prompt,
    )


def facts_of(
    random: np.random.Generator,
    rewards: Curve | None = None,
    *,
    rollouts: Rollouts | None = None,
    rounds: Sequence[EvaluationReport] = (),
    others: Mapping[PolicyId, Sequence[TrainingStep]] | None = None,
    is_learned: bool = False,
    **metrics: Any,
) -> LearningFacts:
    """Returns the facts of a run; healthy except for what is given."""
    rewards = rising(random) if rewards is None else rewards
    groups, members = (rollouts or Rollouts()).build(random)
    return LearningFacts(
        policy=POLICY,
        steps=steps_of(rewards, {**metrics_of(random, rewards), **metrics}),
        groups=groups,
        rollouts=members,
        rounds=rounds,
        others=others or {},
        is_learned=is_learned,
    )


def rounds_of(random: np.random.Generator, scores: Sequence[float], error: float = 0.02) -> list[EvaluationReport]:
    """Returns ended rounds of an evaluation, evenly over the steps."""
    return [
        EvaluationReport(
            flow=FlowId("held_out"),
            round=index + 1,
            versions={POLICY: Version((index + 1) * STEPS // len(scores))},
            state=EvaluationState.DONE,
            done=100,
            total=100,
            masked=0,
            failed=0,
            scores=(
                EvaluationScore(
                    policy=POLICY, name="avg@1", value=float(score + random.normal(0, error / 2)), error=error
                ),
            ),
            actor="schedule",
            reason="",
            requested_at=0.0,
            started_at=0.0,
            finished_at=float(index),
        )
        for index, score in enumerate(scores)
    ]


def _ramp(before: float, after: float, *, begin: int = STEPS // 2) -> Curve:
    return np.concatenate([np.full(begin, before), np.linspace(before, after, STEPS - begin)])


Case = Callable[[np.random.Generator], LearningFacts]
Random = np.random.Generator


def _solved(share: float) -> Callable[[Random, int], float]:
    """Returns rewards by group: this share of the groups is solved as a whole, the others are mixed."""
    return lambda random, prompt: 1.0 if prompt % 100 < 40 * share else float(random.random() < 0.5)


def _failing(share: float) -> Callable[[Random, int], float]:
    return lambda random, prompt: 0.0 if prompt % 100 < 40 * share else float(random.random() < 0.5)


def _two_terms(random: Random, reward: float, weight: float) -> dict[str, float]:
    style = float(random.random())
    return {"correct": reward, "style": style, "total": reward + weight * style}


FAULTY: Mapping[LearningFault, Case] = {
    LearningFault.REWARD_CONSTANT: lambda r: facts_of(
        r, flat(r, 0.0, 0.0), rollouts=Rollouts(reward=lambda *_: 0.0, fails=lambda _: False)
    ),
    LearningFault.GROUPS_FAILED: lambda r: facts_of(r, flat(r, 0.1, 0.02), rollouts=Rollouts(reward=_failing(0.9))),
    LearningFault.GROUPS_SOLVED: lambda r: facts_of(r, rollouts=Rollouts(reward=_solved(0.9))),
    LearningFault.REWARD_FELL: lambda r: facts_of(
        r, np.concatenate([rising(r, steps=120), flat(r, 0.3, 0.03, steps=80)])
    ),
    LearningFault.REWARD_STALLED: lambda r: facts_of(
        r, flat(r, 0.35, 0.03), rollouts=Rollouts(reward=lambda random, _: float(random.random() < 0.35))
    ),
    LearningFault.REWARD_HACKED: lambda r: facts_of(r, rounds=rounds_of(r, [0.3, 0.5, 0.6, 0.45, 0.35])),
    LearningFault.TERM_UNEARNED: lambda r: facts_of(
        r, rollouts=Rollouts(terms=lambda random, reward: {"correct": reward, "format": 0.0, "total": reward})
    ),
    LearningFault.TERM_DOMINATES: lambda r: facts_of(
        r, rollouts=Rollouts(terms=lambda random, reward: _two_terms(random, reward, 60.0))
    ),
    LearningFault.ENTROPY_COLLAPSED: lambda r: facts_of(
        r,
        flat(r, 0.3, 0.03),
        rollouts=Rollouts(reward=lambda random, _: float(random.random() < 0.3)),
        entropy=np.abs(_ramp(0.7, 0.01, begin=20) + r.normal(0, 0.005, STEPS)),
    ),
    LearningFault.ENTROPY_EXPLODED: lambda r: facts_of(
        r,
        np.concatenate([rising(r, steps=120), np.linspace(0.7, 0.1, 80) + r.normal(0, 0.03, 80)]),
        entropy=_ramp(0.6, 2.0, begin=120) + r.normal(0, 0.02, STEPS),
    ),
    LearningFault.GRADIENT_SPIKES: lambda r: facts_of(
        r, grad_norm=np.where(np.arange(STEPS) % 8 == 0, 40.0, 0.5) * np.exp(r.normal(0, 0.2, STEPS))
    ),
    LearningFault.UPDATES_SKIPPED: lambda r: facts_of(r, skipped=(np.arange(STEPS) % 6 == 0).astype(float)),
    LearningFault.WEIGHTS_STUCK: lambda r: facts_of(
        r, flat(r, 0.4, 0.03), published_changed_elements=np.abs(r.normal(2, 1, STEPS))
    ),
    LearningFault.CLIPPED: lambda r: facts_of(r, clip_fraction=np.clip(r.normal(0.45, 0.05, STEPS), 0, 1)),
    LearningFault.ROLLOUTS_STALE: lambda r: facts_of(r, kl_behaviour=np.abs(r.normal(0.3, 0.08, STEPS))),
    LearningFault.POLICY_STOPPED: lambda r: facts_of(
        r,
        flat(r, 0.5, 0.01),
        signal_fraction=np.abs(r.normal(0.003, 0.002, STEPS)),
        others={PolicyId("critic"): _other(r)},
    ),
    LearningFault.TRUNCATED: lambda r: facts_of(
        r, truncated_fraction=np.clip(_ramp(0.05, 0.6) + r.normal(0, 0.02, STEPS), 0, 1)
    ),
    LearningFault.LENGTH_DRIFTED: lambda r: facts_of(
        r,
        flat(r, 0.4, 0.03),
        rollouts=Rollouts(reward=lambda random, _: float(random.random() < 0.4)),
        tokens_mean=_ramp(100, 450) + r.normal(0, 8, STEPS),
    ),
    LearningFault.ANSWERS_REPEAT: lambda r: facts_of(
        r,
        rollouts=Rollouts(
            reward=lambda random, _: float(random.random() < 0.2),
            answer=lambda random, _: "The answer is 7." if random.random() < 0.8 else words(random, 20),
        ),
    ),
    LearningFault.ANSWERS_LOOP: lambda r: facts_of(
        r,
        rollouts=Rollouts(
            reward=lambda random, _: float(random.random() < 0.2),
            answer=lambda random, _: "and so on " * 80 if random.random() < 0.5 else words(random, 60),
        ),
    ),
    LearningFault.EMPTY_REWARDED: lambda r: facts_of(
        r,
        rollouts=Rollouts(
            reward=lambda random, _: float(random.choice([0.2, 0.2, 1.0, 0.0])),
            answer=lambda random, _: "" if random.random() < 0.5 else words(random, 20),
        ),
    ),
    LearningFault.PROMPTS_DEAD: lambda r: facts_of(r, rollouts=Rollouts(reward=_failing(0.5), tries=4)),
    LearningFault.PROMPTS_REPEATED: lambda r: facts_of(
        r, rollouts=Rollouts(prompt=lambda index: f"How much is {index // 2} and 4?", evaluation=())
    ),
    LearningFault.EVALUATION_LEAKS: lambda r: facts_of(
        r,
        rollouts=Rollouts(
            evaluation=[f"How much is {index} and 4?" for index in range(5)] + [f"New {index}" for index in range(20)]
        ),
    ),
    LearningFault.TOOLS_FAIL: lambda r: facts_of(
        r,
        rollouts=Rollouts(
            metrics=lambda random: {
                "tool_calls": 3,
                "tool_errors": float(random.integers(1, 3)),
                "tool_calls.search": 3,
            }
        ),
    ),
    LearningFault.VERIFIER_FAILS: lambda r: facts_of(
        r, rollouts=Rollouts(fails=lambda random: bool(random.random() < 0.35))
    ),
    LearningFault.ROWS_DROPPED: lambda r: facts_of(r, dropped_rows=np.ones(STEPS), dropped_mismatch=np.ones(STEPS)),
}
"""A run with each fault."""

NEARLY: Mapping[LearningFault, Case] = {
    LearningFault.REWARD_CONSTANT: lambda r: facts_of(
        r, rollouts=Rollouts(reward=lambda *_: 1.0, fails=lambda _: False), is_learned=True
    ),
    LearningFault.GROUPS_FAILED: lambda r: facts_of(r, rollouts=Rollouts(reward=_failing(0.5))),
    LearningFault.GROUPS_SOLVED: lambda r: facts_of(r, rollouts=Rollouts(reward=_solved(0.5))),
    LearningFault.REWARD_FELL: lambda r: facts_of(r, np.clip(rising(r) + 0.07 * np.sin(np.arange(STEPS) / 9), 0, 1)),
    LearningFault.REWARD_STALLED: lambda r: facts_of(r, rising(r, 0.3, 0.4)),
    LearningFault.REWARD_HACKED: lambda r: facts_of(r, rounds=rounds_of(r, [0.3, 0.5, 0.6, 0.58, 0.57])),
    LearningFault.TERM_UNEARNED: lambda r: facts_of(
        r,
        rollouts=Rollouts(
            terms=lambda random, reward: {"correct": reward, "format": float(random.random() < 0.1), "total": reward}
        ),
    ),
    LearningFault.TERM_DOMINATES: lambda r: facts_of(
        r, rollouts=Rollouts(terms=lambda random, reward: _two_terms(random, reward, 0.1))
    ),
    LearningFault.ENTROPY_COLLAPSED: lambda r: facts_of(
        r,
        rising(r, 0.2, 0.97),
        rollouts=Rollouts(reward=lambda random, _: float(random.random() < 0.97)),
        entropy=np.abs(_ramp(0.7, 0.01, begin=20)),
    ),
    LearningFault.ENTROPY_EXPLODED: lambda r: facts_of(r, entropy=_ramp(0.6, 1.2) + r.normal(0, 0.02, STEPS)),
    LearningFault.GRADIENT_SPIKES: lambda r: facts_of(r, grad_norm=np.exp(r.normal(-0.5, 0.6, STEPS))),
    LearningFault.UPDATES_SKIPPED: lambda r: facts_of(r, skipped=(np.arange(STEPS) == STEPS - 5).astype(float)),
    LearningFault.WEIGHTS_STUCK: lambda r: facts_of(r, published_changed_elements=np.abs(r.normal(400, 50, STEPS))),
    LearningFault.CLIPPED: lambda r: facts_of(r, clip_fraction=np.clip(r.normal(0.15, 0.03, STEPS), 0, 1)),
    LearningFault.ROLLOUTS_STALE: lambda r: facts_of(r, kl_behaviour=np.abs(r.normal(0.03, 0.01, STEPS))),
    LearningFault.POLICY_STOPPED: lambda r: facts_of(r, others={PolicyId("critic"): _other(r)}),
    LearningFault.TRUNCATED: lambda r: facts_of(
        r, truncated_fraction=np.clip(_ramp(0.8, 0.35, begin=20) + r.normal(0, 0.02, STEPS), 0, 1)
    ),
    LearningFault.LENGTH_DRIFTED: lambda r: facts_of(r, tokens_mean=_ramp(100, 450) + r.normal(0, 8, STEPS)),
    LearningFault.ANSWERS_REPEAT: lambda r: facts_of(
        r, rollouts=Rollouts(reward=lambda *_: 1.0, answer=lambda *_: "yes", fails=lambda _: False), is_learned=True
    ),
    LearningFault.ANSWERS_LOOP: lambda r: facts_of(r, rollouts=Rollouts(answer=lambda random, _: words(random, 200))),
    LearningFault.EMPTY_REWARDED: lambda r: facts_of(
        r,
        rollouts=Rollouts(
            reward=lambda random, prompt: float(random.random() < 0.5) if prompt % 5 else 0.0,
            answer=lambda random, prompt: words(random, 20) if prompt % 5 else "",
        ),
    ),
    LearningFault.PROMPTS_DEAD: lambda r: facts_of(r, rollouts=Rollouts(reward=_failing(0.15), tries=4)),
    LearningFault.PROMPTS_REPEATED: lambda r: facts_of(r, rollouts=Rollouts(tries=4)),
    LearningFault.EVALUATION_LEAKS: lambda r: facts_of(
        r, rollouts=Rollouts(evaluation=[f"How much is 4 and {index}?" for index in range(25)])
    ),
    LearningFault.TOOLS_FAIL: lambda r: facts_of(
        r,
        rollouts=Rollouts(
            metrics=lambda random: {
                "tool_calls": 3,
                "tool_errors": float(random.random() < 0.3),
                "tool_calls.search": 3,
            }
        ),
    ),
    LearningFault.VERIFIER_FAILS: lambda r: facts_of(
        r, rollouts=Rollouts(fails=lambda random: bool(random.random() < 0.08))
    ),
    LearningFault.ROWS_DROPPED: lambda r: facts_of(r, dropped_rows=(np.arange(STEPS) % 7 == 0).astype(float)),
}
"""A healthy run that nearly has each fault."""


def _other(random: Random) -> tuple[TrainingStep, ...]:
    rewards = rising(random)
    return steps_of(rewards, metrics_of(random, rewards), PolicyId("critic"))


def healthy(random: Random) -> LearningFacts:
    """Returns a healthy run: its course, length and noise differ by seed."""
    steps = int(random.integers(20, 400))
    rewards = rising(random, random.uniform(0, 0.5), random.uniform(0.55, 1.0), steps=steps)
    mean = float(rewards[-10:].mean())
    rollouts = Rollouts(
        reward=lambda generator, _: float(generator.random() < min(mean, 0.85)), tries=int(random.integers(1, 4))
    )
    return facts_of(random, rewards, rollouts=rollouts)
