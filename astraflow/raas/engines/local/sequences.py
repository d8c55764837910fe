"""One request on its way through the engine."""

import asyncio
import hashlib
from dataclasses import dataclass, field

import numpy as np

from astraflow.contract.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.ids import Version
from astraflow.contract.trajectories import Int32Array


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """A prompt that is being continued. It outlives its place in the batch: a weight swap puts it back into the queue.

    With `forced`, nothing is drawn: the given tokens are appended one by one, through the same decode path, for their
    logprobs.
    """

    request_id: str
    prompt: Int32Array
    sampling: Sampling
    key: int
    """Of its stream of random numbers."""
    reply: asyncio.Future[Generation]
    forced: Int32Array | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    """Of the tokens before the latest weight swap."""

    @property
    def limit(self) -> int:
        """Tokens it has when it ends at the latest, prompt included."""
        return len(self.prompt) + self.sampling.max_new_tokens

    def text(self) -> Int32Array:
        """Prompt and what was written so far: what the cache must hold before the next token."""
        return np.concatenate([self.prompt, np.array(self.tokens, dtype=np.int32)]) if self.tokens else self.prompt

    def append(self, token: int, logprob: float) -> Finish | None:
        """Take one more token; returns why this was the last one, or None."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if token in self.sampling.stop_tokens:
            return Finish.STOP
        return Finish.LENGTH if len(self.tokens) >= self.sampling.max_new_tokens else None

    def close_span(self, version: Version) -> None:
        """What was written since the last call was written with `version`."""
        length = len(self.tokens) - sum(span.length for span in self.spans)
        if length:
            self.spans.append(VersionSpan(version=version, length=length))

    def start_over(self) -> None:
        """Forget what was written: scores are of one version or worth nothing."""
        self.tokens.clear()
        self.logprobs.clear()
        self.spans.clear()

    def generation(self, finish: Finish) -> Generation:
        """The answer to the caller. The last span must be closed."""
        return Generation(
            tokens=np.array(self.tokens, dtype=np.int32),
            logprobs=np.array(self.logprobs, dtype=np.float32),
            spans=tuple(self.spans),
            finish=finish,
        )


def stream_key(seed: int, request_id: str) -> int:
    """64 bits that name a request's own stream of random numbers, whatever it is batched with."""
    digest = hashlib.blake2b(request_id.encode(), digest_size=8, key=seed.to_bytes(8, "little", signed=True)).digest()
    return int.from_bytes(digest, "little")
