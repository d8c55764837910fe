"""Environment for verifiers that knows nothing of AstraFlow: write letters in reverse order.

Its harness asks the model once, in the process of verifiers, so that an episode takes milliseconds.
"""

from collections.abc import Iterator
from itertools import islice, product
from random import Random
from typing import Any

import httpx
import verifiers.v1 as vf


class ReverseConfig(vf.TasksetConfig):
    """Options of the tasks."""

    length: int = 4
    alphabet: str = "abcdefgh"
    tasks: int = 4096


class ReverseData(vf.TaskData):
    """Letters and their reverse."""

    answer: str


class Reverse(vf.Task[ReverseData]):
    """Asks for letters in reverse order."""

    @vf.reward(weight=1.0)
    async def is_reverse(self, trace: vf.Trace) -> float:
        """Returns 1 if the reply is the answer."""
        return float((trace.last_reply or "").strip() == self.data.answer)


class ReverseLetters(vf.Taskset[Reverse, ReverseConfig]):
    """All words of a length, in an order of their own."""

    def load(self) -> Iterator[Reverse]:
        """Yields the tasks."""
        words = ["".join(letters) for letters in product(self.config.alphabet, repeat=self.config.length)]
        Random(0).shuffle(words)
        for word in islice(words, self.config.tasks):
            yield Reverse(ReverseData(prompt=f"rev {word}=", answer=word[::-1]), self.config.task)


class AskOnceConfig(vf.HarnessConfig):
    """No options."""


class AskOnce(vf.Harness[AskOnceConfig]):
    """Sends the prompt to the model."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Makes one call."""
        content: Any = {"model": ctx.model, "messages": [{"role": "user", "content": data.prompt}]}
        async with httpx.AsyncClient(timeout=600.0) as client:
            reply = await client.post(
                f"{endpoint}/chat/completions", json=content, headers={"Authorization": f"Bearer {secret}"}
            )
        is_ok = reply.status_code == 200
        return vf.ProgramResult(exit_code=0 if is_ok else 1, stdout="", stderr="" if is_ok else reply.text)


__all__ = ["AskOnce", "ReverseLetters"]
