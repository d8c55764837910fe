"""Checks of the metrics of training steps."""

import numpy as np

from astraflow.contract.learning_faults import LearningFault
from astraflow.contract.training_metrics import DROPPED_PREFIX, DROPPED_ROWS
from astraflow.learning.facts import ENOUGH_STEPS, WINDOW, Found, LearningFacts

FELL_SHARE = 0.2
"""Part of the range of rewards by which the reward may fall below its best ten steps."""

STALLED_STEPS = 150
COLLAPSED_ENTROPY = 0.1
EXPLODED_ENTROPY = 1.5
SPIKE_FACTOR = 10.0
SPIKE_STEPS = 50
MOST_SPIKES = 2
SKIP_STEPS = 20
STUCK_SHARE = 1e-4
CLIPPED_SHARE = 0.3
STALE_NATS = 0.1
TRUNCATED_SHARE = 0.3
LENGTH_FACTOR = 2.5
DROP_STEPS = 20


def reward_checks(facts: LearningFacts) -> Found:
    """Yields faults of the course of the reward."""
    course, spread = facts.course, facts.spread
    change, best = course.reward_shift, course.best
    if change is None or best is None or spread <= 0:
        return
    best_step, best_reward = best
    fall = best_reward - change.after
    noise = float(np.square(np.diff(course.rewards[-ENOUGH_STEPS:])).mean() / 2 / WINDOW) ** 0.5
    # The best of many windows is above its mean by chance: five standard errors, not three.
    if fall > FELL_SHARE * spread and fall > 5 * noise and best_step < course.steps[-1].step - WINDOW:
        yield LearningFault.REWARD_FELL, {"best": best_reward, "best_step": best_step, "reward": change.after}
    is_moving = change.is_clear or best_reward - change.before > FELL_SHARE * spread
    has_spread = len({rollout.reward for rollout in facts.trained}) > 1
    is_expected_to_move = has_spread and not facts.is_mostly_rewarded and not facts.is_learned
    if len(course) >= STALLED_STEPS and is_expected_to_move and not is_moving:
        yield (
            LearningFault.REWARD_STALLED,
            {"before": change.before, "reward": change.after, "steps": len(course), "limit": STALLED_STEPS},
        )


def entropy_checks(facts: LearningFacts) -> Found:
    """Yields a collapsed or exploded entropy: either is a fault only without a gain in reward."""
    course = facts.course
    entropy, reward = course.shift("entropy"), course.reward_shift
    if entropy is None or reward is None or entropy.before <= 0 or not entropy.is_clear or course.best is None:
        return
    figures = {"before": entropy.before, "entropy": entropy.after, "reward": reward.after}
    has_gained = reward.is_clear and reward.change > FELL_SHARE * facts.spread / 2
    if entropy.after < COLLAPSED_ENTROPY * entropy.before and not has_gained and not facts.is_mostly_rewarded:
        yield LearningFault.ENTROPY_COLLAPSED, figures
    best_reward = course.best[1]
    has_fallen = best_reward - reward.after > FELL_SHARE / 2 * facts.spread and not has_gained
    if entropy.after > EXPLODED_ENTROPY * entropy.before and entropy.change > 0.1 and has_fallen:
        yield LearningFault.ENTROPY_EXPLODED, {**figures, "best": best_reward}


def update_checks(facts: LearningFacts) -> Found:
    """Yields faults of gradients, updates and their effect on the published weights."""
    course = facts.course
    norms = course.values("grad_norm")
    norms = norms[np.isfinite(norms)]
    if len(norms) >= ENOUGH_STEPS:
        # The norm shrinks with the share of prompts that are not solved yet: what is large is judged by the begin too.
        median, latest = float(max(np.median(norms), np.median(norms[:WINDOW]))), norms[-SPIKE_STEPS:]
        spikes = int((latest > SPIKE_FACTOR * median).sum())
        if median > 0 and spikes > MOST_SPIKES:
            figures = {"median": median, "spikes": spikes, "steps": len(latest), "largest": float(latest.max())}
            yield LearningFault.GRADIENT_SPIKES, {**figures, "limit": SPIKE_FACTOR}
    skipped = int(np.nansum(course.values("skipped")[-SKIP_STEPS:]))
    if skipped > 1:
        yield LearningFault.UPDATES_SKIPPED, {"skipped": skipped, "steps": min(SKIP_STEPS, len(course))}
    yield from _stuck_weights(facts)


def _stuck_weights(facts: LearningFacts) -> Found:
    course = facts.course
    changed, elements = (course.values(f"published_{name}")[-WINDOW:] for name in ("changed_elements", "elements"))
    is_known = np.isfinite(changed) & (elements > 0)
    rate, norm = course.latest("learning_rate"), course.latest("grad_norm")
    if is_known.sum() < WINDOW or not rate or not norm:
        return
    share = float((changed[is_known] / elements[is_known]).mean())
    if share < STUCK_SHARE:
        figures = {"share": share, "versions": int(is_known.sum()), "rate": rate, "limit": STUCK_SHARE}
        yield LearningFault.WEIGHTS_STUCK, figures


def correction_checks(facts: LearningFacts) -> Found:
    """Yields staleness and clipping beyond what the loss corrects; a mismatch of engine and trainer is a problem of the
    run, which names its cause."""
    course = facts.course
    if len(course) < WINDOW:
        return
    staleness = course.latest("staleness_mean") or 0.0
    clipped = course.latest("clip_fraction")
    if clipped is not None and clipped >= CLIPPED_SHARE:
        yield LearningFault.CLIPPED, {"share": clipped, "staleness": staleness, "limit": CLIPPED_SHARE}
    kl = course.latest("kl_behaviour")
    if kl is not None and kl >= STALE_NATS and staleness >= 1:
        yield LearningFault.ROLLOUTS_STALE, {"kl": kl, "staleness": staleness, "limit": STALE_NATS}


def length_checks(facts: LearningFacts) -> Found:
    """Yields answers that are cut off, and lengths that drift without a gain."""
    course = facts.course
    cut = course.latest("truncated_fraction")
    trend = course.shift("truncated_fraction")
    is_falling = trend is not None and trend.is_clear and trend.change < 0
    if cut is not None and cut >= TRUNCATED_SHARE and len(course) >= ENOUGH_STEPS and not is_falling:
        yield LearningFault.TRUNCATED, {"share": cut, "limit": TRUNCATED_SHARE}
    length, reward = course.shift("tokens_mean"), course.reward_shift
    if length is None or reward is None or length.before <= 0 or not length.is_clear:
        return
    factor = length.after / length.before
    has_gained = reward.is_clear and reward.change > 0
    if (factor >= LENGTH_FACTOR or factor <= 1 / LENGTH_FACTOR) and not has_gained and not facts.is_mostly_rewarded:
        figures = {"before": length.before, "tokens": length.after, "limit": LENGTH_FACTOR}
        yield (
            LearningFault.LENGTH_DRIFTED,
            {**figures, "reward_before": reward.before, "reward": reward.after},
        )


def row_checks(facts: LearningFacts) -> Found:
    """Yields rollouts that the trainer leaves out in most steps."""
    latest = facts.steps[-DROP_STEPS:]
    hit = [step for step in latest if step.metrics.get(DROPPED_ROWS, 0.0) > 0]
    if len(latest) < WINDOW or 2 * len(hit) <= len(latest):
        return
    counts: dict[str, float] = {}
    for step in hit:
        for name, count in step.metrics.items():
            if name.startswith(DROPPED_PREFIX) and name != DROPPED_ROWS:
                counts[name.removeprefix(DROPPED_PREFIX)] = counts.get(name.removeprefix(DROPPED_PREFIX), 0.0) + count
    dropped = int(sum(step.metrics[DROPPED_ROWS] for step in hit))
    named = {"limit_name": max(counts, key=lambda name: counts[name])} if counts else {}
    yield LearningFault.ROWS_DROPPED, {"dropped": dropped, "steps": len(latest), **named}
