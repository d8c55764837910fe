"""Limits of results: a result that breaks one becomes a failed episode with its cause, and counts as nothing else.

Limits come from the flow (policies, `reward_range`, `max_tokens`), its workflow (`EpisodeBounds`) and the trainers of
its policies (`RowLimits`). A push is first compared as a whole with the strictest limits of its flows, in a few passes
over its columns; only a push with a value beyond them is checked episode by episode.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import sub
from typing import Final

from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.agent_calls import MAX_CALLS
from astraflow.contract.rollouts.expert_columns import has_other_experts
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.limits import (
    MAX_ABS_REWARD,
    MAX_LOGPROB,
    MAX_METRIC,
    MAX_TRAJECTORIES,
    MIN_LOGPROB,
    EpisodeBounds,
    RowLimits,
)
from astraflow.contract.rollouts.partial_rollouts import RecordedGeneration
from astraflow.contract.rollouts.recording import Mixture
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.token_columns import TokenColumn, TokenColumns
from astraflow.contract.rollouts.trajectories import (
    NO_VERSION,
    Episode,
    Extremes,
    Trajectories,
    Trajectory,
)

EXTRA_TOKENS: Final = 64
"""Tokens beyond a workflow's bound that are accepted: engines may add the tokens of a stop string."""

TOKENS_PER_CHARACTER: Final = 4
"""Most tokens of a character of a prompt: a tokenizer with byte fallback has one for each byte of UTF-8."""

MAX_REQUEST_BYTES: Final = 64
"""Largest digest of a recorded request. Bytes."""

_ALL_TOKENS = 2**31
"""Ids below it are not negative."""

_TEXT_CHARACTERS = 2**16
_CHARACTERS_PER_TOKEN = 256
"""Bounds of the texts of a trajectory: these characters, and so many for each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """Limit that a result breaks."""

    limit: str
    """Name of the limit, by which refused results are counted."""
    boundary: Boundary
    cause: str
    """Text of the failure: the value, its limit and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal(Failure):
    """Failure in place of a result that breaks a limit."""

    limit: str
    """`Defect.limit`."""

    @property
    def is_retried(self) -> bool:
        """True: another node may return a result within the limits."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultLimits:
    """Limits of the results of one flow."""

    reward_range: tuple[float, float]
    """Lowest and highest reward of a trajectory."""
    policies: frozenset[PolicyId] | None = None
    """Policies that write trajectories; None: any."""
    max_tokens: int | None = None
    """Tokens of a trajectory, whatever workflow and trainer state; None: no such limit."""
    bounds: EpisodeBounds = field(default_factory=EpisodeBounds)
    """Largest episode that the workflow can produce."""

    def tokens(self, row: RowLimits, *, characters: int) -> float:
        """Returns the most tokens of a trajectory. characters: of the texts of its prompt."""
        bounds = self.bounds
        limits = [self.max_tokens, row.tokens]
        if bounds.tokens is not None:
            limits.append(bounds.tokens + EXTRA_TOKENS)
        if bounds.context is not None and bounds.written is not None:
            limits.append(bounds.context + TOKENS_PER_CHARACTER * characters + bounds.written + EXTRA_TOKENS)
        return min((limit for limit in limits if limit is not None), default=math.inf)

    @property
    def written(self) -> float:
        """Most tokens of a trajectory that its policy wrote."""
        return math.inf if self.bounds.written is None else self.bounds.written + EXTRA_TOKENS

    @property
    def trajectories(self) -> int:
        """Most trajectories of an episode."""
        return self.bounds.trajectories or MAX_TRAJECTORIES

    @property
    def turn_reward(self) -> float:
        """Largest magnitude of the reward of a turn, and of their sum: a turn cannot change a reward within its range
        by more."""
        low, high = self.reward_range
        return max(abs(low), abs(high), high - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Strictest:
    """Numbers that trajectories are compared with."""

    vocabulary: float
    tokens: float
    written: float
    low_reward: float
    high_reward: float
    turn_reward: float
    mixtures: frozenset[Mixture]
    """Mixtures of experts of the policies' models; a model whose shape is unknown is left out."""

    @classmethod
    def of(cls, limits: Iterable[ResultLimits], rows: Iterable[RowLimits], *, characters: int = 0) -> "_Strictest":
        limits, rows = list(limits), list(rows) or [RowLimits()]
        return cls(
            vocabulary=min((row.vocabulary for row in rows if row.vocabulary is not None), default=_ALL_TOKENS),
            tokens=min(limit.tokens(row, characters=characters) for limit in limits for row in rows),
            written=min(limit.written for limit in limits),
            low_reward=max(limit.reward_range[0] for limit in limits),
            high_reward=min(limit.reward_range[1] for limit in limits),
            turn_reward=min(limit.turn_reward for limit in limits),
            mixtures=frozenset(row.mixture for row in rows if row.mixture is not None),
        )


def are_within(
    parts: Sequence[Trajectories], limits: Sequence[ResultLimits], rows: Mapping[PolicyId, RowLimits]
) -> bool:
    """Returns whether all trajectories are within the strictest limits of several flows; False says nothing about one
    flow. The number of trajectories of an episode is not compared."""
    if not limits:
        return True
    strictest = _Strictest.of(limits, rows.values())
    return all(
        limit.policies is None or limit.policies.issuperset(part.policies) for limit in limits for part in parts
    ) and not any(_defect(part, strictest) for part in parts)


def checked(
    episode: Episode,
    limits: ResultLimits,
    *,
    rows: Mapping[PolicyId, RowLimits] | None = None,
    prompt: Prompt | None = None,
) -> Episode:
    """Returns the episode if it is within the limits of its flow, else a failure with the limit that it breaks.

    rows: what the trainers of policies state. prompt: of its task, whose texts count among its tokens.
    """
    defect = _episode_defect(Trajectories.of(episode.trajectories), limits, rows or {}, prompt)
    return episode if defect is None else failed(episode, defect)


def failed(episode: Episode, defect: Defect) -> Episode:
    """Returns a failure in place of an episode that breaks a limit."""
    trajectories = Trajectories.of(episode.trajectories)
    built = trajectories.with_details() if len(trajectories) <= MAX_TRAJECTORIES else []
    calls = tuple(replace(call, turn=None) for _, trajectory in built for call in trajectory.calls)
    failure = Refusal(boundary=defect.boundary, message=f"cannot use the result: {defect.cause}", limit=defect.limit)
    return replace(episode, trajectories=(), failure=failure, failed_calls=calls[:MAX_CALLS])


def generation_defect(recorded: RecordedGeneration, *, limits: ResultLimits, row: RowLimits) -> Defect | None:
    """Returns the limit that a generation breaks, as part of a task that is handed back. Nodes use none that is longer
    than the request asks."""
    tokens = recorded.generation.tokens
    most = min(limits.max_tokens or math.inf, row.tokens or math.inf)
    if len(recorded.request) > MAX_REQUEST_BYTES:
        cause = f"a digest has {len(recorded.request)} bytes; send at most {MAX_REQUEST_BYTES}"
        return Defect(limit="request", boundary=Boundary.WORKFLOW, cause=cause)
    if len(tokens) > most:
        return _too_long(len(tokens), most)
    extremes = Extremes.of(tokens, recorded.generation.logprobs, recorded.generation.columns)
    return (
        _token_defect(extremes, row.vocabulary or _ALL_TOKENS)
        or _logprob_defect(extremes)
        or _experts_defect(recorded.generation.columns, {row.mixture} if row.mixture else ())
    )


def reward_defect(trajectory: Trajectory, limits: ResultLimits) -> Defect | None:
    """Returns the limit that a reward of the trajectory, of its turns or of its terms breaks."""
    strictest, part = _Strictest.of([limits], ()), Trajectories.of((trajectory,))
    return _reward_defect(part, strictest) or _term_defect(trajectory, strictest)


def _episode_defect(
    trajectories: Trajectories, limits: ResultLimits, rows: Mapping[PolicyId, RowLimits], prompt: Prompt | None
) -> Defect | None:
    if len(trajectories) > limits.trajectories:
        cause = f"it has {len(trajectories)} trajectories, the workflow at most {limits.trajectories}; push no others"
        return Defect(limit="trajectories", boundary=Boundary.WORKFLOW, cause=cause)
    policies = dict.fromkeys(trajectories.policies)
    foreign = [] if limits.policies is None else [policy for policy in policies if policy not in limits.policies]
    if foreign:
        known = ", ".join(sorted(limits.policies or ()))
        cause = f"policy {foreign[0]!r} takes no part in the flow; push trajectories of {known}"
        return Defect(limit="policy", boundary=Boundary.WORKFLOW, cause=cause)
    characters = 0 if prompt is None else len(json.dumps(dict(prompt.fields), ensure_ascii=False))
    strictest = {
        policy: _Strictest.of([limits], [rows.get(policy, RowLimits())], characters=characters) for policy in policies
    }
    if len(strictest) == 1:
        return _defect(trajectories, *strictest.values())
    parts = ((trajectories[index : index + 1], policy) for index, policy in enumerate(trajectories.policies))
    return next((defect for part, policy in parts if (defect := _defect(part, strictest[policy]))), None)


def _defect(part: Trajectories, limits: _Strictest) -> Defect | None:
    return (
        _token_defect(part.extremes, limits.vocabulary)
        or _length_defect(part, limits)
        or _logprob_defect(part.extremes)
        or _experts_defect(part.token_columns, limits.mixtures)
        or _reward_defect(part, limits)
        or next((defect for _, item in part.with_details() if (defect := _detail_defect(item, limits))), None)
    )


def _token_defect(extremes: Extremes, vocabulary: float) -> Defect | None:
    largest = extremes.largest_token
    if largest < vocabulary:
        return None
    cause = f"token id {largest} is not below the vocabulary of {vocabulary:.0f}; use the tokenizer of the model"
    return Defect(limit="token_id", boundary=Boundary.ENGINE, cause=cause)


def _experts_defect(columns: TokenColumns, mixtures: Collection[Mixture]) -> Defect | None:
    """Returns the defect of experts that are not those of the only mixture; of several, each policy has its own."""
    experts = columns.get(TokenColumn.EXPERTS)
    if experts is None or not mixtures or (len(mixtures) == 1 and not has_other_experts(experts, *mixtures).any()):
        return None
    known = " or ".join(str(mixture) for mixture in mixtures)
    cause = f"its column of experts is not that of a model with {known}; use the model of the policy"
    return Defect(limit="experts", boundary=Boundary.ENGINE, cause=cause)


def _length_defect(part: Trajectories, limits: _Strictest) -> Defect | None:
    columns, begin, end = part.columns, part.begin, part.end
    token_ends, logprob_ends = columns.token_ends, columns.logprob_ends
    longest = max(map(sub, token_ends[begin + 1 : end + 1], token_ends[begin:end]), default=0)
    if longest > limits.tokens:
        return _too_long(longest, limits.tokens)
    written = max(map(sub, logprob_ends[begin + 1 : end + 1], logprob_ends[begin:end]), default=0)
    if defect := _written_defect(written, limits.written):
        return defect
    versions, ends = columns.span_versions, columns.span_ends[begin : end + 1]
    firsts = map(versions.__getitem__, ends[: bisect_left(ends, ends[-1])])  # those at the end have no spans
    if any(map(NO_VERSION.__ne__, firsts)):
        cause = "the first token of a trajectory is model-written, and no context predicts it; begin with the prompt"
        return Defect(limit="no_context", boundary=Boundary.WORKFLOW, cause=cause)
    return None


def _too_long(tokens: int, most: float) -> Defect:
    cause = f"it has {tokens} tokens in a row, at most {most:.0f} can be trained; push shorter ones"
    return Defect(limit="tokens", boundary=Boundary.ENGINE, cause=cause)


def _written_defect(written: int, most: float) -> Defect | None:
    if written <= most:
        return None
    cause = f"the policy wrote {written} tokens, the workflow admits {most:.0f}; apply max_new_tokens"
    return Defect(limit="written_tokens", boundary=Boundary.ENGINE, cause=cause)


def _logprob_defect(extremes: Extremes) -> Defect | None:
    low, high = extremes.lowest_logprob, extremes.highest_logprob
    if low >= MIN_LOGPROB and high <= MAX_LOGPROB:
        return None
    value = high if high > MAX_LOGPROB else low
    cause = f"logprob {value:g} is not in {MIN_LOGPROB:g} to {MAX_LOGPROB:g}; record that of the sampled token"
    return Defect(limit="logprob", boundary=Boundary.ENGINE, cause=cause)


def _reward_defect(part: Trajectories, limits: _Strictest) -> Defect | None:
    rewards = part.rewards
    if not rewards or (limits.low_reward <= min(rewards) and max(rewards) <= limits.high_reward):
        return None
    value = next(reward for reward in rewards if not limits.low_reward <= reward <= limits.high_reward)
    cause = (
        f"reward {value:g} is outside the flow's range from {limits.low_reward:g} to {limits.high_reward:g}; correct "
        "the reward, or set the flow's reward_range"
    )
    return Defect(limit="reward", boundary=Boundary.REWARD, cause=cause)


def _detail_defect(trajectory: Trajectory, limits: _Strictest) -> Defect | None:
    if defect := _term_defect(trajectory, limits):
        return defect
    if trajectory.teacher_prompt and max(trajectory.teacher_prompt) >= limits.vocabulary:
        cause = f"a token of its teacher_prompt is not below the vocabulary of {limits.vocabulary:.0f}"
        return Defect(limit="token_id", boundary=Boundary.ENGINE, cause=f"{cause}; use the tokenizer of the model")
    if not all(abs(value) <= MAX_METRIC for value in trajectory.metrics.values()):
        cause = f"a metric is beyond {MAX_METRIC:g}; correct the workflow"
        return Defect(limit="metric", boundary=Boundary.WORKFLOW, cause=cause)
    if not _are_texts_consistent(trajectory):
        cause = "its texts do not belong to its tokens; attach the decoded tokens"
        return Defect(limit="text", boundary=Boundary.WORKFLOW, cause=cause)
    return None


def _term_defect(trajectory: Trajectory, limits: _Strictest) -> Defect | None:
    turns = trajectory.turn_rewards
    largest = max(abs(value) for value in (*turns, sum(turns)))
    if not largest <= limits.turn_reward:
        cause = f"the reward of a turn, or the sum of all, is {largest:g}, beyond {limits.turn_reward:g}; correct it"
        return Defect(limit="turn_reward", boundary=Boundary.REWARD, cause=cause)
    if not all(abs(value) <= MAX_ABS_REWARD for value in trajectory.reward_terms.values()):
        cause = f"a reward term is beyond {MAX_ABS_REWARD:g}; correct the reward"
        return Defect(limit="reward_term", boundary=Boundary.REWARD, cause=cause)
    return None


def _are_texts_consistent(trajectory: Trajectory) -> bool:
    """Returns whether texts are not much longer than its tokens, and the ends of spans and tokens lie in them."""
    characters = len(trajectory.prompt_text) + len(trajectory.completion_text)
    limit = _TEXT_CHARACTERS + _CHARACTERS_PER_TOKEN * len(trajectory.tokens)
    return (
        characters <= limit
        and len(trajectory.answer) <= limit
        and len(trajectory.text_ends) in (0, len(trajectory.spans))
        and len(trajectory.span_s) in (0, len(trajectory.spans))
        and len(trajectory.token_ends) in (0, trajectory.model_tokens)
        and max(trajectory.text_ends, default=0) <= characters
        and max(trajectory.token_ends, default=0) <= characters
        and min(trajectory.span_s, default=0.0) >= 0
    )
