"""Sampled trajectories as text, together with the others of their group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astraflow.contract.reports import SampledTrajectory
from astraflow.contract.spans import Author
from web.present import formats

_TIMES = "\N{MULTIPLICATION SIGN}"


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
    """Which version wrote how many tokens, when there was more than one."""
    fate: str
    tokens: str
    """Model-written of all."""
    is_truncated: bool
    at: float
    notes: str
    """How long it took, how often it was tried, what the workflow measured."""
    failure: str = ""
    """Why there is no completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledGroup:
    """The members of one group that were sampled."""

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
    """False when all members scored alike: nothing to learn from."""
    fate: str
    at: float


def grouped(samples: Sequence[SampledTrajectory], names: Mapping[str, str]) -> tuple[SampledGroup, ...]:
    """Groups in the order in which they first appear; members as they were sampled. names: node ids -> names."""
    groups: dict[tuple[str, str], list[SampledTrajectory]] = {}
    for sample in samples:
        groups.setdefault((sample.group, sample.policy), []).append(sample)
    return tuple(_group(sorted(members, key=lambda member: member.ordinal), names) for members in groups.values())


def _group(members: Sequence[SampledTrajectory], names: Mapping[str, str]) -> SampledGroup:
    first = members[0]
    rewards = [member.reward for member in members if member.failure is None]
    best, worst = max(rewards, default=0.0), min(rewards, default=0.0)
    fates = sorted({fate_of(member) for member in members})
    return SampledGroup(
        id=first.group,
        policy=first.policy,
        flow=first.flow,
        prompt=next((member.prompt_text for member in members if member.prompt_text), ""),
        reference=next((member.reference_text for member in members if member.reference_text), ""),
        members=tuple(_sample(member, names, best=best, worst=worst) for member in members),
        reward=formats.reward(sum(rewards) / len(rewards) if rewards else None),
        summary=_summary(rewards, failed=len(members) - len(rewards)),
        has_signal=len(set(rewards)) > 1,
        fate=", ".join(fates),
        at=max(member.at for member in members),
    )


def _summary(rewards: Sequence[float], *, failed: int) -> str:
    if not rewards:
        return f"all {failed} failed"
    besides = f", {failed} failed" if failed else ""
    if len(set(rewards)) == 1:
        return f"all {len(rewards)} scored {formats.reward(rewards[0])}{besides}"
    if set(rewards) <= {0.0, 1.0}:
        return f"{sum(reward == 1.0 for reward in rewards)} of {len(rewards)} right{besides}"
    return f"{len(rewards)} members from {formats.reward(min(rewards))} to {formats.reward(max(rewards))}{besides}"


def _sample(member: SampledTrajectory, names: Mapping[str, str], *, best: float, worst: float) -> Sample:
    failure = member.failure
    return Sample(
        ordinal=member.ordinal,
        task=member.task,
        completion=member.completion_text,
        reward=formats.reward(member.reward) if failure is None else formats.MISSING,
        tone=tone_of(member.reward, best=best, worst=worst) if failure is None else "bad",
        node=names.get(member.node, member.node),
        versions=versions_of(member),
        fate=fate_of(member),
        tokens=f"{formats.count(member.model_tokens)} of {formats.count(member.tokens)}",
        is_truncated=member.is_truncated,
        at=member.at,
        notes=_notes(member),
        failure=f"failed at {failure.boundary.value}: {failure.message}" if failure is not None else "",
    )


def _notes(member: SampledTrajectory) -> str:
    notes = [formats.duration(member.duration_s)] if member.duration_s else []
    notes += [f"try {member.attempt + 1}"] if member.attempt else []
    notes += [f"{name} {value:.4g}" for name, value in member.metrics.items()]
    return ", ".join(notes)


def tone_of(reward: float, *, best: float, worst: float) -> str:
    """How good a reward is. Right and wrong by themselves; other rewards against those of their group."""
    if {reward, best, worst} <= {0.0, 1.0}:
        return "good" if reward == 1.0 else "bad"
    if best == worst:
        return ""
    return "good" if reward == best else "bad" if reward == worst else "warn"


def fate_of(member: SampledTrajectory) -> str:
    """What became of it, in a word or two."""
    return f"trained in step {member.step}" if member.step is not None else member.fate


def versions_of(member: SampledTrajectory) -> str:
    """Which versions wrote it, and how many tokens each when there are several."""
    written = [span for span in member.spans if span.author is Author.MODEL]
    if len({span.version for span in written}) == 1:
        return f"v{written[0].version}"
    tokens: dict[int, int] = {}
    for span in written:
        tokens[int(span.version or 0)] = tokens.get(int(span.version or 0), 0) + span.length
    return ", ".join(f"v{version} {_TIMES}{count}" for version, count in tokens.items()) or "nothing written"
