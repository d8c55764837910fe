"""Cost of a call of an agent by the length of its conversation: match, bridge and prompt, and rendering it anew.

    python -m benchmarks.agent_prompts [--contexts 4096 32768] [--calls 200]

Each conversation of a session has turns of about 500 tokens; a call appends a result of about 100 tokens. Conversations
of both lengths alternate, so that a change of the machine's load meets both. The tokenizer is byte-level BPE with the
chat template of Qwen 2.5; the policy answers at once.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from astraflow.agents.calls import AgentMessage
from astraflow.agents.prompts import PolicyPrompts, Prompt
from astraflow.agents.renderers import Renderer
from astraflow.agents.traces import Reply
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.generation import Finish, Generation, VersionSpan
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.tokenizers import ChatTokenizer
from tests.agents.messages import assistant, call, system, user
from tests.fakes.chat_templates import CHATML, tokenizer
from tests.fakes.policy import FakePolicy

_T = TypeVar("_T")
WORDS = "the answer is what user tool response "


class _Policy(FakePolicy):
    def __init__(self, source: ChatTokenizer) -> None:
        super().__init__()
        self._source = source

    @property
    def tokenizer(self) -> ChatTokenizer:
        return self._source


class _Conversation:
    """Conversation of one session that has about `context` tokens."""

    @property
    def allows_grammars(self) -> bool:
        """True."""
        return True

    def __init__(self, source: ChatTokenizer, context: int) -> None:
        self.prompts = PolicyPrompts(PolicyId("solver"), _Policy(source), Renderer(source), thinking="keep")
        self.messages: list[AgentMessage] = [system("You are helpful."), user(WORDS * 10)]
        self.parts: dict[str, list[float]] = {}
        self._source = source
        self._count = 0
        self.length = 0
        while self.length < context:
            asyncio.run(self.extend(WORDS * 60))

    async def extend(self, answer: str) -> None:
        """Continues the conversation by an answer and a result."""
        prompt = await self.prompts.of_messages(self._count, call(*self.messages))
        tokens = np.append(self._source.encode(f"{self._count} {answer}"), np.int32(self._source.stop_tokens[0]))
        message = assistant(f"{self._count} {answer}")
        self._commit(prompt, tokens.astype(np.int32), message)
        self.messages += [message, user(WORDS * 15)]
        self._count += 1
        self.length = len(prompt.tokens()) + len(tokens)

    def _commit(self, prompt: Prompt, tokens: Int32Array, message: AgentMessage) -> None:
        assert prompt.conversation is not None
        self.prompts.tree.add(
            Reply(
                id=f"reply_{self._count}",
                parent=prompt.parent,
                bridge=prompt.bridge,
                generation=Generation(
                    tokens=tokens,
                    logprobs=np.zeros(len(tokens), dtype=np.float32),
                    spans=(VersionSpan(version=Version(0), length=len(tokens)),),
                    finish=Finish.STOP,
                ),
                digest=prompt.conversation.digest_with(message),
                prompt_digest=prompt.digest,
                messages=prompt.messages,
                message=message,
            ),
            prompt.conversation,
        )

    def measure(self) -> None:
        """Measures one call that continues the conversation; commits nothing."""
        next_call = call(*(replace(message, content=f"{message.content} "[:-1]) for message in self.messages))  # anew
        match = self._timed("match", lambda: self.prompts.tree.match(next_call.messages, next_call.tools))
        parent = match.parent
        assert parent is not None and len(match.messages) == 1
        renderer = self.prompts.renderer
        self._timed("bridge", lambda: renderer.bridge(parent.bridge, parent.generation.tokens, match.messages, ()))
        self._timed("prompt", parent.tokens)
        self._timed("render", lambda: renderer.render(next_call.messages, ()))

    def _timed(self, name: str, run: Callable[[], _T]) -> _T:
        began = time.perf_counter()
        result = run()
        self.parts.setdefault(name, []).append(1000 * (time.perf_counter() - began))
        return result


def main() -> None:
    """Prints milliseconds of each part by context."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contexts", type=int, nargs="+", default=[4096, 32768])
    parser.add_argument("--calls", type=int, default=200)
    options = parser.parse_args()
    source = tokenizer(CHATML)
    conversations = [_Conversation(source, context) for context in options.contexts]
    for _ in range(options.calls):
        for conversation in conversations:
            conversation.measure()
    for conversation in conversations:
        parts = ", ".join(f"{name} {statistics.median(values):.3f}" for name, values in conversation.parts.items())
        print(f"{conversation.length} tokens: median ms: {parts}")  # noqa: T201


if __name__ == "__main__":
    main()
