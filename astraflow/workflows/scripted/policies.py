"""Policies with given replies, for checks of workflows without a model."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.models.tokenizers import ChatTokenizer

Reply = Callable[[PolicyId, int], str]
"""Returns the reply to a request. Arguments: the policy, and the number of its requests before, in this episode."""


def in_order(*texts: str) -> Reply:
    """Returns the texts in order to each policy, the last one again and again."""
    return lambda policy, index: texts[min(index, len(texts) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """A request that a workflow sent, with its result."""

    policy: PolicyId
    prompt: Int32Array
    sampling: Sampling
    generation: Generation


@dataclass(slots=True, kw_only=True)
class EpisodeRecord:
    """Requests of one episode, and the conditions of its policies."""

    reply: Reply
    failure: Exception | None = None
    """Raised by every request."""
    blocked_from: int | None = None
    """Number of requests after which further ones wait until they are released or cancelled."""
    max_requests: int = 1000
    """A workflow that sends more does not end by itself."""
    requests: list[Request] = field(default_factory=list)
    started: int = 0
    """Requests so far, those that wait included."""
    blocked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request waits."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by the caller: requests wait no longer."""


class TooManyRequests(Exception):
    """The workflow did not end after `EpisodeRecord.max_requests` requests."""


class ScriptedPolicy:
    """Client of a policy with given replies, as an engine answers: it respects length limit, stop tokens and stop
    strings. Uses the byte tokenizer; text that spells a special token stays text."""

    def __init__(self, policy: PolicyId, record: EpisodeRecord) -> None:
        self._policy = policy
        self._record = record
        self._asked = 0

    @property
    def tokenizer(self) -> ChatTokenizer:
        return ByteTokenizer()

    @property
    def allows_grammars(self) -> bool:
        return True

    async def generate(self, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Returns the next reply."""
        record = self._record
        index, self._asked = self._asked, self._asked + 1
        number, record.started = record.started, record.started + 1
        if record.failure is not None:
            raise record.failure
        if number >= record.max_requests:
            raise TooManyRequests(f"{number} requests and no end")
        if record.blocked_from is not None and number >= record.blocked_from:
            record.blocked.set()
            await record.released.wait()
        await asyncio.sleep(0)  # other tasks run, as with a real engine
        generation = _generation(record.reply(self._policy, index), sampling, number)
        record.requests.append(
            Request(policy=self._policy, prompt=prompt.copy(), sampling=sampling, generation=generation)
        )
        return generation


def _generation(text: str, sampling: Sampling, number: int) -> Generation:
    """Returns the generation; its logprobs tell the requests of an episode apart."""
    ends = [text.find(stop) + len(stop) for stop in sampling.stop_strings if stop in text]
    tokens = ByteTokenizer().encode(text[: min(ends)] if ends else text)
    if not ends:
        tokens = np.append(tokens, np.asarray(sampling.stop_tokens[:1], dtype=np.int32)).astype(np.int32)
    is_cut = len(tokens) > sampling.max_new_tokens
    tokens = tokens[: sampling.max_new_tokens]
    return Generation(
        tokens=tokens,
        logprobs=np.full(len(tokens), -(1 + number) / 1024, dtype=np.float32),
        spans=(VersionSpan(version=Version(0), length=len(tokens)),) if len(tokens) else (),
        finish=Finish.LENGTH if is_cut else Finish.STOP,
    )
