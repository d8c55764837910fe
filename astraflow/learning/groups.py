"""Checks of the rewards of sampled rollouts: groups without a spread, terms, prompts, failures, tools."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from astraflow.contract.learning_faults import LearningFault
from astraflow.contract.reports.queries import SampledGroup
from astraflow.contract.reports.report import EVALUATED, SampledTrajectory
from astraflow.contract.rollouts.agent_calls import CallOutcome
from astraflow.contract.rollouts.failures import Boundary
from astraflow.learning.facts import Found, LearningFacts

CONSTANT_ROLLOUTS = 100
ENOUGH_GROUPS = 20
NO_SPREAD_SHARE = 0.8
UNEARNED_ROLLOUTS = 200
DOMINANT_FACTOR = 20.0
ENOUGH_PROMPTS = 10
TRIES = 3
DEAD_SHARE = 0.3
FAILED_MEMBERS = 40
FAILED_SHARE = 0.2
ENOUGH_CALLS = 40
FAILED_CALLS = 0.3


def spread_checks(facts: LearningFacts) -> Found:
    """Yields rewards that never differ, and groups that mostly fail or succeed as a whole."""
    rewards = [rollout.reward for rollout in facts.trained]
    lowest, highest = facts.reward_range
    low, high = lowest + facts.spread / 4, highest - facts.spread / 4
    is_solved = facts.is_learned or (facts.spread > 0 and rewards and rewards[0] >= high)
    if len(rewards) >= CONSTANT_ROLLOUTS and len(set(rewards)) == 1 and not is_solved:
        yield (
            LearningFault.REWARD_CONSTANT,
            {"rollouts": len(rewards), "reward": rewards[0], "limit": CONSTANT_ROLLOUTS},
        )
        return
    groups = _groups(facts)
    if len(groups) < ENOUGH_GROUPS or facts.spread == 0:
        return
    even = [group.reward_max for group in groups if group.reward_max == group.reward_min]
    failed = [reward for reward in even if reward is not None and reward <= low]
    solved = [reward for reward in even if reward is not None and reward >= high]
    figures = {"groups": len(groups), "limit": NO_SPREAD_SHARE}
    if len(failed) >= NO_SPREAD_SHARE * len(groups):
        yield LearningFault.GROUPS_FAILED, {**figures, "share": len(failed) / len(groups), "reward": max(failed)}
    if len(solved) >= NO_SPREAD_SHARE * len(groups) and not facts.is_learned:
        yield LearningFault.GROUPS_SOLVED, {**figures, "share": len(solved) / len(groups), "reward": min(solved)}


def _groups(facts: LearningFacts) -> list[SampledGroup]:
    """Returns the groups of training with at least two results."""
    return [group for group in facts.groups if group.outcome != EVALUATED and group.trajectories - group.failed >= 2]


def term_checks(facts: LearningFacts) -> Found:
    """Yields terms that are never earned, and a term beside which no other matters."""
    scored = [rollout for rollout in facts.trained if len(rollout.reward_terms) > 1]
    columns = {name: np.array([rollout.reward_terms[name] for rollout in scored]) for name in _shared_terms(scored)}
    if len(scored) < UNEARNED_ROLLOUTS or len(columns) < 2:
        return
    differing = {name: values for name, values in columns.items() if values.min() < values.max()}
    for name, values in columns.items():
        if differing and name not in differing and values[0] <= 0:
            yield (
                LearningFault.TERM_UNEARNED,
                {"term": name, "value": float(values[0]), "rollouts": len(scored), "limit": UNEARNED_ROLLOUTS},
            )
            break
    yield from _dominant_term(scored, differing)


def _shared_terms(rollouts: Sequence[SampledTrajectory]) -> list[str]:
    if not rollouts:
        return []
    return sorted(set(rollouts[0].reward_terms).intersection(*(rollout.reward_terms for rollout in rollouts)))


def _dominant_term(scored: Sequence[SampledTrajectory], columns: Mapping[str, np.ndarray]) -> Found:
    """Compares what terms add to the reward: their weights are found by least squares."""
    if len(columns) < 2:
        return
    names, matrix = list(columns), np.stack(list(columns.values()), 1)
    if np.linalg.matrix_rank(matrix - matrix.mean(0)) < len(names):
        return  # terms that follow each other have no weights of their own
    rewards = np.array([rollout.reward for rollout in scored])
    weights, *_ = np.linalg.lstsq(np.column_stack([matrix, np.ones(len(matrix))]), rewards, rcond=None)
    spreads = np.abs(weights[:-1]) * (matrix.max(0) - matrix.min(0))
    other, first = np.argsort(spreads)[-2:]
    is_weighted = spreads[other] > 1e-6 * spreads[first]  # else it is reported, and not part of the reward
    if is_weighted and spreads[first] >= DOMINANT_FACTOR * spreads[other]:
        yield (
            LearningFault.TERM_DOMINATES,
            {
                "term": names[first],
                "spread": float(spreads[first]),
                "other": names[other],
                "other_spread": float(spreads[other]),
                "limit": DOMINANT_FACTOR,
            },
        )


def prompt_checks(facts: LearningFacts) -> Found:
    """Yields prompts that are never solved, or stand in the data set several times."""
    groups = _groups(facts)
    tries: dict[str, list[SampledGroup]] = defaultdict(list)
    for group in groups:
        if group.prompt:
            tries[f"{group.flow}/{group.prompt}"].append(group)
    tried = [of_prompt for of_prompt in tries.values() if len({group.step for group in of_prompt}) >= TRIES]
    low = facts.reward_range[0] + facts.spread / 4
    dead = sum(all((group.reward_max or 0.0) <= low for group in of_prompt) for of_prompt in tried)
    if len(tried) >= ENOUGH_PROMPTS and facts.spread > 0 and dead > DEAD_SHARE * len(tried):
        yield LearningFault.PROMPTS_DEAD, {"dead": dead, "prompts": len(tried), "limit": DEAD_SHARE}


def failure_checks(facts: LearningFacts) -> Found:
    """Yields rollouts that fail before they are scored."""
    members = [rollout for rollout in facts.rollouts if rollout.outcome != EVALUATED]
    failures = [rollout.failure for rollout in members if rollout.failure is not None]
    if len(members) < FAILED_MEMBERS or len(failures) < FAILED_SHARE * len(members):
        return
    boundaries: Counter[Boundary] = Counter(failure.boundary for failure in failures)
    (boundary, count), *_ = boundaries.most_common(1)
    messages = Counter(failure.message for failure in failures if failure.boundary is boundary)
    yield (
        LearningFault.VERIFIER_FAILS,
        {
            "share": len(failures) / len(members),
            "members": len(members),
            "boundary": boundary.value,
            "most": count / len(failures),
            "error": messages.most_common(1)[0][0][:200],
            "limit": FAILED_SHARE,
        },
    )


def tool_checks(facts: LearningFacts) -> Found:
    """Yields tools whose calls fail, with the tool that is called most where they do."""
    calls, failed = 0.0, 0.0
    failing: Counter[str] = Counter()
    for rollout in facts.trained:
        of_rollout, errors = _calls(rollout)
        calls, failed = calls + of_rollout, failed + errors
        if errors:
            failing.update({name.removeprefix("tool_calls."): int(count) for name, count in _tools(rollout)})
    if calls >= ENOUGH_CALLS and failed >= FAILED_CALLS * calls:
        tool = {"tool": failing.most_common(1)[0][0]} if failing else {}
        yield LearningFault.TOOLS_FAIL, {"share": failed / calls, "calls": int(calls), "limit": FAILED_CALLS, **tool}


def _calls(rollout: SampledTrajectory) -> tuple[float, float]:
    """Returns the calls of a rollout, and those that failed: of its tools, and of its agent program."""
    outcomes = rollout.call_outcomes
    refused = outcomes.get(CallOutcome.REFUSED.value, 0) + outcomes.get(CallOutcome.ABORTED.value, 0)
    errors = rollout.metrics.get("tool_errors", 0.0)
    return rollout.metrics.get("tool_calls", 0.0) + sum(outcomes.values()), errors + refused


def _tools(rollout: SampledTrajectory) -> Iterator[tuple[str, float]]:
    return ((name, count) for name, count in rollout.metrics.items() if name.startswith("tool_calls."))
