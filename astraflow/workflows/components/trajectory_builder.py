"""Builder of trajectories: the tokens that the policy read and wrote, in order."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.generation import Finish, Generation
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.token_columns import TokenColumns, joined_columns
from astraflow.contract.rollouts.trajectories import Ending, Float32Array, Int32Array, Trajectory
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.rewards.base import Score
from astraflow.workflows.components.token_ends import token_ends


class TrajectoryBuilder:
    """Collects the tokens of one policy in one episode, with their authors: call `add_context` and `add_generation` in
    order.

    Use `tokens` as the prompt of every generation: the policy is then trained on exactly what it saw.
    """

    def __init__(self, policy: PolicyId) -> None:
        self._policy = policy
        self._pieces: list[Int32Array] = []
        self._logprobs: list[Float32Array] = []
        self._columns: list[tuple[TokenColumns, int]] = []
        self._spans: list[Span] = []
        self._is_truncated = False
        self._drafted = self._accepted = 0

    def tokens(self) -> Int32Array:
        """Returns all tokens so far: int32 `[n]`."""
        return self._pieces[0] if len(self._pieces) == 1 else np.concatenate(self._pieces or [_NO_TOKENS])

    @property
    def model_tokens(self) -> int:
        """Number of tokens that the policy wrote so far."""
        return sum(map(len, self._logprobs))

    def add_context(self, context: Int32Array, *, speaker: str = "") -> None:
        """Appends tokens that the policy reads. speaker: `Span.speaker`."""
        self._pieces.append(context)
        self._extend(Span(author=Author.CONTEXT, length=len(context), speaker=speaker))

    def add_generation(self, generation: Generation) -> None:
        """Appends tokens that the policy wrote."""
        self._pieces.append(generation.tokens)
        self._logprobs.append(generation.logprobs)
        self._columns.append((generation.columns, len(generation.tokens)))
        for span in generation.spans:
            self._extend(Span(author=Author.MODEL, length=span.length, version=span.version))
        self._is_truncated = generation.finish is Finish.LENGTH
        self._drafted += generation.drafted
        self._accepted += generation.accepted

    def build(
        self,
        score: float | Score,
        *,
        metrics: Mapping[str, float] | None = None,
        role: str = "",
        parent: int | None = None,
        parent_turn: int | None = None,
        turn_rewards: Sequence[float] = (),
        turn_discounts: Sequence[float] = (),
        labels: Mapping[str, str] | None = None,
        teacher_prompt: Sequence[int] = (),
        ending: Ending | None = None,
    ) -> Trajectory:
        """Returns the scored trajectory, truncated if the last generation ended at its length limit. The arguments are
        the fields of `Trajectory`; the metric `drafts_accepted` is added where the engine speculates."""
        result = Score.of(score)
        logprobs = self._logprobs[0] if len(self._logprobs) == 1 else np.concatenate(self._logprobs or [_NO_LOGPROBS])
        return Trajectory(
            policy=self._policy,
            tokens=self.tokens(),
            logprobs=logprobs,
            token_columns=joined_columns(self._columns),
            spans=tuple(self._spans),
            reward=result.value,
            answer=result.answer,
            is_truncated=self._is_truncated,
            metrics={**(metrics or {}), **self._speculation()},
            role=role,
            parent=parent,
            parent_turn=parent_turn,
            turn_rewards=tuple(turn_rewards),
            turn_discounts=tuple(turn_discounts),
            reward_terms=result.terms,
            labels=labels or {},
            teacher_prompt=tuple(teacher_prompt),
            ending=ending,
        )

    def _speculation(self) -> Mapping[str, float]:
        return {"drafts_accepted": self._accepted / self._drafted} if self._drafted else {}

    def _extend(self, span: Span) -> None:
        """Appends a span, merged with the previous one if author and version are equal."""
        if span.length == 0:
            return
        last = self._spans[-1] if self._spans else None
        if last is not None and replace(last, length=span.length) == span:
            self._spans[-1] = replace(last, length=last.length + span.length)
        else:
            self._spans.append(span)


_NO_TOKENS = np.empty(0, dtype=np.int32)
_NO_LOGPROBS = np.empty(0, dtype=np.float32)


def with_text(trajectory: Trajectory, tokenizer: ChatTokenizer) -> Trajectory:
    """Returns the trajectory with its text attached, for display.

    The prompt is the text before the first model-written token, special tokens included; the completion is the rest.
    """
    ends = np.cumsum([0, *(span.length for span in trajectory.spans)]).tolist()
    bounds = zip(trajectory.spans, pairwise(ends), strict=True)
    prompt_tokens = next((begin for span, (begin, _) in bounds if span.author is Author.MODEL), len(trajectory.tokens))
    prompt = tokenizer.decode(trajectory.tokens[:prompt_tokens], keep_special_tokens=True)
    completion = tokenizer.decode(trajectory.tokens[prompt_tokens:])

    def text_end(end: int) -> int:
        if end <= prompt_tokens:
            return len(prompt)
        return len(prompt) + min(len(completion), len(tokenizer.decode(trajectory.tokens[prompt_tokens:end])))

    text_ends = tuple(text_end(end) for end in ends[1:])
    after_prompt = slice(prompt_tokens, None)
    return replace(
        trajectory,
        prompt_text=prompt,
        completion_text=completion,
        text_ends=text_ends,
        token_ends=token_ends(
            trajectory.tokens[after_prompt],
            completion,
            trajectory.loss_mask()[after_prompt],
            begin=len(prompt),
            tokenizer=tokenizer,
        ),
    )
