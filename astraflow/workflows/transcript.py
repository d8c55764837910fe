"""Putting a trajectory together: what the policy read and what it wrote, in order."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from astraflow.contract.generation import Finish, Generation
from astraflow.contract.ids import PolicyId
from astraflow.contract.spans import Author, Span
from astraflow.contract.trajectories import Float32Array, Int32Array, Trajectory
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.rewards.base import Score


class Transcript:
    """The tokens of one policy in one episode, with who wrote each: `read` and `wrote` in the order it happened.

    Begin every generation with `tokens` as its prompt: then what the policy is trained on is what it saw.
    """

    def __init__(self, policy: PolicyId) -> None:
        self._policy = policy
        self._pieces: list[Int32Array] = []
        self._logprobs: list[Float32Array] = []
        self._spans: list[Span] = []
        self._is_truncated = False

    def tokens(self) -> Int32Array:
        """Everything so far: int32 `[n]`."""
        return self._pieces[0] if len(self._pieces) == 1 else np.concatenate(self._pieces or [_NOTHING])

    def read(self, context: Int32Array) -> None:
        """The policy was shown these tokens."""
        self._pieces.append(context)
        self._extend(Span(author=Author.CONTEXT, length=len(context)))

    def wrote(self, generation: Generation) -> None:
        """The policy wrote these tokens."""
        self._pieces.append(generation.tokens)
        self._logprobs.append(generation.logprobs)
        for span in generation.spans:
            self._extend(Span(author=Author.MODEL, length=span.length, version=span.version))
        self._is_truncated = generation.finish is Finish.LENGTH

    def trajectory(self, score: float | Score, *, metrics: Mapping[str, float] | None = None) -> Trajectory:
        """What was read and written, scored. Truncated if the last generation ended at its length limit."""
        given = Score.of(score)
        logprobs = self._logprobs[0] if len(self._logprobs) == 1 else np.concatenate(self._logprobs or [_NO_LOGPROBS])
        return Trajectory(
            policy=self._policy,
            tokens=self.tokens(),
            logprobs=logprobs,
            spans=tuple(self._spans),
            reward=given.value,
            answer=given.answer,
            is_truncated=self._is_truncated,
            metrics=metrics or {},
        )

    def _extend(self, span: Span) -> None:
        """Append a span, joined with the one before where nothing changes."""
        if span.length == 0:
            return
        last = self._spans[-1] if self._spans else None
        if last is not None and (last.author, last.version) == (span.author, span.version):
            self._spans[-1] = replace(last, length=last.length + span.length)
        else:
            self._spans.append(span)


_NOTHING = np.empty(0, dtype=np.int32)
_NO_LOGPROBS = np.empty(0, dtype=np.float32)


def with_text(trajectory: Trajectory, tokenizer: ChatTokenizer) -> Trajectory:
    """The trajectory with its text attached, for people to look at.

    The prompt is what stands before the first model-written token, special tokens included; the completion is the rest.
    """
    ends = np.cumsum([0, *(span.length for span in trajectory.spans)]).tolist()
    places = zip(trajectory.spans, pairwise(ends), strict=True)
    begun = next((begin for span, (begin, _) in places if span.author is Author.MODEL), len(trajectory.tokens))
    prompt = tokenizer.decode(trajectory.tokens[:begun], keep_specials=True)
    completion = tokenizer.decode(trajectory.tokens[begun:])

    def text_end(end: int) -> int:
        if end <= begun:
            return len(prompt)
        return len(prompt) + min(len(completion), len(tokenizer.decode(trajectory.tokens[begun:end])))

    ended = tuple(text_end(end) for end in ends[1:])
    return replace(trajectory, prompt_text=prompt, completion_text=completion, text_ends=ended)
