"""A policy whose replies are a function of the prompt's text, so that agents of any kind complete a scripted task."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.workflows.scripted.policies import Request

Decide = Callable[[str], str]
"""Returns the reply to a prompt, whose text contains the special tokens."""


def hermes_call(name: str, /, **arguments: Any) -> str:
    """Returns a call of a tool as models write it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass(frozen=True, slots=True)
class Step:
    """A reply to every prompt that contains `seen`, unless a later step's text is in it too."""

    seen: str
    reply: str


def in_steps(first: str, *steps: Step) -> Decide:
    """Returns a policy's decisions: the reply of the last step whose text the prompt contains, and `first` otherwise.

    A step that looks for the output of a tool proves that the tool ran, when the call does not spell the output.
    """

    def decide(prompt: str) -> str:
        return next((step.reply for step in reversed(steps) if step.seen in prompt), first)

    return decide


class DecidingPolicy:
    """Client of a policy, which keeps what the policy read and wrote. Logprobs tell its requests apart."""

    def __init__(self, decide: Decide, *, tokenizer: ChatTokenizer | None = None, policy: str = "policy") -> None:
        self.requests: list[Request] = []
        """Requests that ended, in the order of their ends."""
        self._decide = decide
        self._tokenizer = tokenizer or ByteTokenizer()
        self._policy = PolicyId(policy)

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The byte tokenizer, unless another was given."""
        return self._tokenizer

    @property
    def allows_grammars(self) -> bool:
        """True."""
        return True

    async def generate(self, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Returns the decision and the first stop token, cut at the length limit."""
        text = self._decide(self._tokenizer.decode(prompt, keep_special_tokens=True))
        whole = np.append(self._tokenizer.encode(text), self._end(sampling.stop_tokens)).astype(np.int32)
        tokens = whole[: sampling.max_new_tokens]
        number = len(self.requests) + 1
        generation = Generation(
            tokens=tokens,
            logprobs=(-number - np.arange(len(tokens)) / 4096).astype(np.float32),
            spans=(VersionSpan(version=Version(0), length=len(tokens)),),
            finish=Finish.STOP if len(tokens) == len(whole) else Finish.LENGTH,
        )
        self.requests.append(
            Request(policy=self._policy, prompt=prompt.copy(), sampling=sampling, generation=generation)
        )
        return generation

    def _end(self, stop_tokens: Sequence[int]) -> int:
        return next(iter(stop_tokens), self._tokenizer.stop_tokens[0])
