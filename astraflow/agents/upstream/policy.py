"""A policy whose answers a hosted endpoint gives, for workflows that ask with chat messages."""

from collections.abc import Sequence

import numpy as np

from astraflow.agents.calls import CallOptions, ModelCall, ReplyFinish
from astraflow.agents.text_tokens import TextTokenizer
from astraflow.agents.upstream.client import Upstream
from astraflow.contract.ids import Version
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.contract.values import Json

_VERSION = Version(0)
"""Placeholder version of the texts of an endpoint, which has no versions."""


class UpstreamPolicy:
    """Policy of one task whose answers an endpoint gives: the interface `PolicyClient` of workflows.

    Token ids carry the text (`TextTokenizer`), logprobs are 0: trajectories of it are scored and shown, never trained.
    """

    def __init__(self, upstream: Upstream, model: str, *, seed: int = 0) -> None:
        """model: name of the model at the endpoint. seed: of the episode; added to that of the sampling."""
        self.upstream = upstream
        self.model = model
        self._seed = seed
        self._requests = 0
        self._tokenizer = TextTokenizer()

    @property
    def tokenizer(self) -> TextTokenizer:
        """Tokenizer that carries messages to `generate`."""
        return self._tokenizer

    @property
    def allows_grammars(self) -> bool:
        """True: nothing is trained, and the endpoint has the last word."""
        return True

    async def generate(self, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Returns the endpoint's answer to the messages of the prompt.

        A stop string ends the answer and stays part of it, as for every engine: the endpoint is not told of it,
        because endpoints leave it out and do not say which one they met. Raises: RolloutFailed at the boundary
        `engine`.
        """
        options = CallOptions(
            model=self.model,
            max_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_p=None if sampling.top_p == 1 else sampling.top_p,
            json_schema=sampling.json_schema,
        )
        try:
            call = ModelCall(options=options, messages=self._tokenizer.messages(prompt))
            reply = await self.upstream.complete(call, extra=self.extra_fields(sampling))
        except Exception as problem:  # whatever the endpoint's client raises is a failed rollout
            raise RolloutFailed(str(problem), boundary=Boundary.ENGINE, code="rollout.engine_failed") from problem
        text, is_stopped = cut_at_stop(reply.message.content, sampling.stop_strings)
        is_cut = reply.finish is ReplyFinish.LENGTH and not is_stopped
        return text_generation(self._tokenizer, text, is_complete=not is_cut)

    def extra_fields(self, sampling: Sampling) -> dict[str, Json]:
        """Returns the fields of the next request for parts of the sampling that the APIs have no field for, with a seed
        of its own."""
        seed = None if sampling.seed is None else (sampling.seed + self._seed + self._requests) % 2**31
        self._requests += 1
        fields: dict[str, Json] = {"top_k": sampling.top_k or None, "min_p": sampling.min_p or None, "seed": seed}
        return {name: value for name, value in fields.items() if value is not None}


def text_generation(tokenizer: TextTokenizer, text: str, *, is_complete: bool) -> Generation:
    """Returns a text as a generation. is_complete: the message ends with it."""
    tokens = tokenizer.encode(text)
    if is_complete or not len(tokens):
        tokens = np.append(tokens, np.int32(tokenizer.stop_tokens[0])).astype(np.int32)
    return Generation(
        tokens=tokens,
        logprobs=np.zeros(len(tokens), dtype=np.float32),
        spans=(VersionSpan(version=_VERSION, length=len(tokens)),),
        finish=Finish.STOP if is_complete else Finish.LENGTH,
    )


def cut_at_stop(text: str, stop_strings: Sequence[str]) -> tuple[str, bool]:
    """Returns the text up to the end of its first stop string, and whether it has one.

    >>> cut_at_stop("go <end> on", ("<end>",))
    ('go <end>', True)
    """
    ends = [(text.find(stop), stop) for stop in stop_strings if stop in text]
    if not ends:
        return text, False
    begin, stop = min(ends)
    return text[: begin + len(stop)], True
