"""Checks that compare: the reward with an evaluation, and a policy with the others of its run."""

from collections.abc import Sequence

from astraflow.contract.learning_faults import LearningFault
from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.learning.facts import ENOUGH_STEPS, WINDOW, Course, Found, LearningFacts

MIN_FALL = 0.05
"""Least fall of an evaluation that counts: scores are shares of solved prompts."""

MOST_FALL = 0.1
"""Part of the range of rewards by which the reward may fall too: beyond it, both are lost together."""

STOPPED_SIGNAL = 0.02
"""Share of tokens with an advantage, below which a policy has nothing to learn from."""


def evaluation_checks(facts: LearningFacts) -> Found:
    """Yields a reward that stays or rises while the newest round of an evaluation is below an earlier one."""
    for flow in sorted({round_report.flow for round_report in facts.rounds}):
        scores = _scores([report for report in facts.rounds if report.flow == flow], facts)
        if len(scores) < 3:
            continue
        name, version, value, error = scores[-1]
        _, best_version, best, best_error = max(scores[:-1], key=lambda score: score[2])
        fall, noise = best - value, (error**2 + best_error**2) ** 0.5
        if fall < max(MIN_FALL, 3 * noise):
            continue
        before, after = _reward_at(facts.course, best_version), _reward_at(facts.course, version)
        if before is None or after is None or before - after > MOST_FALL * facts.spread:
            continue
        yield (
            LearningFault.REWARD_HACKED,
            {
                "score": f"{flow} {name}",
                "best": best,
                "best_version": best_version,
                "value": value,
                "version": version,
                "before": before,
                "reward": after,
            },
        )
        return


def _scores(rounds: Sequence[EvaluationReport], facts: LearningFacts) -> list[tuple[str, int, float, float]]:
    """Returns name, version, value and error of the first score of each round, by version."""
    scores = []
    for round_report in rounds:
        score = next((score for score in round_report.scores if score.policy == facts.policy), None)
        version = round_report.versions.get(facts.policy)
        if score is not None and version is not None:
            scores.append((score.name, int(version), score.value, score.error or 0.0))
    return sorted(scores, key=lambda score: score[1])


def _reward_at(course: Course, version: int) -> float | None:
    """Returns the mean reward of the steps around a version; None if they are not among those that are known."""
    near = [step.reward for step in course.steps if abs(step.version - version) <= WINDOW // 2]
    return sum(near) / len(near) if len(near) > 2 else None


def policy_checks(facts: LearningFacts) -> Found:
    """Yields a policy whose reward and signal are gone, while another one of the run goes on learning."""
    course = facts.course
    signal, change = course.latest("signal_fraction", 2 * WINDOW), course.reward_shift
    if signal is None or change is None or signal >= STOPPED_SIGNAL or change.is_clear or facts.is_learned:
        return
    for other, steps in facts.others.items():
        moving = Course(steps).reward_shift
        if len(steps) >= ENOUGH_STEPS and moving is not None and moving.is_clear and moving.change > 0:
            yield (
                LearningFault.POLICY_STOPPED,
                {
                    "steps": len(course),
                    "reward": change.after,
                    "signal": signal,
                    "other": other,
                    "other_before": moving.before,
                    "other_reward": moving.after,
                    "limit": STOPPED_SIGNAL,
                },
            )
            return
