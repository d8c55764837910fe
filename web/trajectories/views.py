"""Sampled trajectories as text, grouped with the other members of their groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astraflow.contract.reports.report import SampledTrajectory
from astraflow.contract.rollouts.agent_calls import CallOutcome
from astraflow.contract.rollouts.spans import Author
from web.components import formats
from web.components.texts import visible

LISTED_CHARS = 1_500
"""Most characters of a prompt or a completion in a list."""

MAX_NOTES = 24
"""Most reward terms and metrics of a trajectory in a list."""

_TIMES = "\N{NO-BREAK SPACE}\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One trajectory."""

    ordinal: int
    task: str
    completion: str
    reward: str
    tone: str
    node: str
    versions: str
    """Versions that wrote it, with token counts where there is more than one."""
    outcome: str
    tokens: str
    """Generated tokens and all tokens."""
    is_truncated: bool
    at: float
    notes: str
    """Duration, attempts, reward terms and metrics of the workflow."""
    role: str = ""
    ending: str = ""
    """Reason for the end of an interaction, in words."""
    hidden: int = 0
    """Characters of the completion that are left out."""
    failure: str = ""
    """Cause why there is no completion; empty otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledGroup:
    """Sampled members of one group."""

    id: str
    policy: str
    flow: str
    prompt: str
    reference: str
    members: tuple[Sample, ...]
    reward: str
    """Mean over the members."""
    summary: str
    has_signal: bool
    """False when all members scored alike, so there is nothing to learn."""
    tones: tuple[str, ...]
    """Tone of each member of the whole group."""
    shown: int | None
    """Members that match the filter, where it hides others; None without hidden members. Summary, mean and signal are
    those of the whole group."""
    outcome: str
    at: float


GroupKey = tuple[str, str]
"""Id of a group, and the policy whose part of it is meant."""


def group_samples(
    samples: Sequence[SampledTrajectory],
    names: Mapping[str, str],
    *,
    whole: Mapping[GroupKey, Sequence[SampledTrajectory]] | None = None,
) -> tuple[SampledGroup, ...]:
    """Returns groups in order of first appearance, with members by ordinal. names: node names by node id. whole: all
    members of groups of which the samples are a part."""
    groups: dict[GroupKey, list[SampledTrajectory]] = {}
    for sample in samples:
        groups.setdefault((sample.group, sample.policy), []).append(sample)
    return tuple(
        _group(sorted(members, key=lambda member: member.ordinal), names, (whole or {}).get(key) or members)
        for key, members in groups.items()
    )


def _group(
    members: Sequence[SampledTrajectory], names: Mapping[str, str], whole: Sequence[SampledTrajectory]
) -> SampledGroup:
    first = members[0]
    rewards = [member.reward for member in whole if member.failure is None]
    best, worst = max(rewards, default=0.0), min(rewards, default=0.0)
    outcomes = sorted({outcome_of(member) for member in members})
    return SampledGroup(
        id=first.group,
        policy=first.policy,
        flow=first.flow,
        prompt=visible(next((member.prompt_text for member in members if member.prompt_text), "")[:LISTED_CHARS]),
        reference=visible(
            next((member.reference_text for member in members if member.reference_text), "")[:LISTED_CHARS]
        ),
        members=tuple(_sample(member, names, best=best, worst=worst) for member in members),
        reward=formats.reward(sum(rewards) / len(rewards) if rewards else None),
        summary=group_summary(rewards, failed=len(whole) - len(rewards)),
        has_signal=len(set(rewards)) > 1,
        tones=tuple(
            "bad" if member.failure is not None else tone_of(member.reward, best=best, worst=worst)
            for member in sorted(whole, key=lambda member: member.ordinal)
        ),
        shown=len(members) if len(members) < len(whole) else None,
        outcome=", ".join(outcomes),
        at=max(member.at for member in members),
    )


def group_summary(rewards: Sequence[float], *, failed: int) -> str:
    """Returns the rewards of a group's members in a few words. failed: members without a reward."""
    if not rewards:
        return f"all {failed} failed"
    failed_text = f", {failed} failed" if failed else ""
    if len(set(rewards)) == 1:
        return f"all {len(rewards)} scored {formats.reward(rewards[0])}{failed_text}"
    if set(rewards) <= {0.0, 1.0}:
        return f"{sum(reward == 1.0 for reward in rewards)} of {len(rewards)} correct{failed_text}"
    return f"{len(rewards)} members from {formats.reward(min(rewards))} to {formats.reward(max(rewards))}{failed_text}"


def _sample(member: SampledTrajectory, names: Mapping[str, str], *, best: float, worst: float) -> Sample:
    failure = member.failure
    return Sample(
        ordinal=member.ordinal,
        task=member.task,
        completion=visible(member.completion_text[:LISTED_CHARS]),
        reward=formats.reward(member.reward) if failure is None else formats.MISSING,
        tone=tone_of(member.reward, best=best, worst=worst) if failure is None else "bad",
        node=names.get(member.node, member.node),
        versions=versions_of(member),
        outcome=outcome_of(member),
        tokens=f"{formats.count(member.model_tokens)} of {formats.count(member.tokens)}",
        is_truncated=member.is_truncated,
        at=member.at,
        notes=_notes(member),
        role=visible(member.role),
        ending=member.ending.label if member.ending else "",
        hidden=max(0, len(member.completion_text) - LISTED_CHARS),
        failure=f"failed at {failure.boundary.value}: {failure.message}" if failure is not None else "",
    )


def _notes(member: SampledTrajectory) -> str:
    notes = [formats.duration(member.duration_s)] if member.duration_s else []
    notes += [f"attempt {member.attempt + 1}"] if member.attempt else []
    notes += [calls_summary(member.call_outcomes)] if member.call_outcomes else []
    notes += [f"{visible(name)} {value:.4g}" for name, value in (*member.reward_terms.items(), *member.metrics.items())]
    return ", ".join(notes[:MAX_NOTES])


def calls_summary(outcomes: Mapping[str, int]) -> str:
    """Returns the number of calls by outcome as a phrase; empty without calls.

    >>> calls_summary({"answered": 4, "refused": 1})
    '5 calls, 1 refused'
    """
    labels = {CallOutcome.REPLAYED: "replayed", CallOutcome.REFUSED: "refused", CallOutcome.ABORTED: "aborted"}
    rest = [f"{formats.count(count)} {label}" for key, label in labels.items() if (count := outcomes.get(key.value))]
    total = sum(outcomes.values())
    return ", ".join([formats.several(total, "call"), *rest]) if total else ""


def tone_of(reward: float, *, best: float, worst: float) -> str:
    """Returns the tone of a reward: right or wrong for 0 and 1, otherwise relative to the group."""
    if {reward, best, worst} <= {0.0, 1.0}:
        return "good" if reward == 1.0 else "bad"
    if best == worst:
        return ""
    return "good" if reward == best else "bad" if reward == worst else "warn"


def outcome_of(member: SampledTrajectory) -> str:
    """Returns the outcome of its group in a few words."""
    return f"trained in step {member.step}" if member.step is not None else member.outcome


def versions_of(member: SampledTrajectory) -> str:
    """Returns the versions that wrote it, with token counts where there is more than one."""
    written = [span for span in member.spans if span.author is Author.MODEL]
    if len({span.version for span in written}) == 1:
        return f"v{written[0].version}"
    tokens: dict[int, int] = {}
    for span in written:
        tokens[int(span.version or 0)] = tokens.get(int(span.version or 0), 0) + span.length
    return ", ".join(f"v{version}{_TIMES}{count}" for version, count in tokens.items()) or "no tokens"
