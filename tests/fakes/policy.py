"""A policy with given replies that records its prompts."""

import numpy as np

from astraflow.contract.ids import Version
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.models.tokenizers import ChatTokenizer


class FakePolicy:
    """Returns replies in order and raises an exception among them. The requested length limit cuts a reply."""

    def __init__(self, *replies: str | Exception, version: int = 3) -> None:
        self._replies = list(replies)
        self._version = Version(version)
        self.prompts: list[Int32Array] = []
        self.samplings: list[Sampling] = []
        self.allows_grammars = True

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The byte tokenizer."""
        return ByteTokenizer()

    async def generate(self, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Returns the next reply and a stop token."""
        self.prompts.append(prompt)
        self.samplings.append(sampling)
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        whole = np.append(self.tokenizer.encode(reply), np.int32(sampling.stop_tokens[0])).astype(np.int32)
        tokens = whole[: sampling.max_new_tokens]
        return Generation(
            tokens=tokens,
            logprobs=np.full(len(tokens), -0.5, dtype=np.float32),
            spans=(VersionSpan(version=self._version, length=len(tokens)),),
            finish=Finish.STOP if len(tokens) == len(whole) else Finish.LENGTH,
        )

    def asked(self, number: int) -> str:
        """Returns the text of one prompt that the policy got."""
        return self.tokenizer.decode(self.prompts[number], keep_special_tokens=True)
