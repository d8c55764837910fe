"""Scripted handler of agents' calls, for tests of the proxy."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from astraflow.agents.calls import (
    AgentMessage,
    CallHandler,
    CallRefused,
    FunctionCall,
    ModelCall,
    ModelReply,
    Refusal,
    ReplyFinish,
    Role,
    TokenCall,
    TokenReply,
)
from astraflow.agents.proxy.server import AgentProxy, ProxyOptions, SessionAccess

Answer = Callable[[ModelCall], Awaitable[AgentMessage] | AgentMessage]


def text_reply(text: str, *, reasoning: str | None = None) -> AgentMessage:
    """Returns an assistant message without function calls."""
    return AgentMessage(role=Role.ASSISTANT, content=text, reasoning=reasoning)


def calls_reply(*calls: tuple[str, str, str], text: str = "", reasoning: str | None = None) -> AgentMessage:
    """Returns an assistant message with function calls. calls: id, name and arguments of each."""
    return AgentMessage(
        role=Role.ASSISTANT,
        content=text,
        reasoning=reasoning,
        function_calls=tuple(FunctionCall(id=i, name=name, arguments=arguments) for i, name, arguments in calls),
    )


@dataclass
class ScriptedHandler:
    """Answers calls with a function and keeps what it was asked; joins retries by their key, as a session does."""

    answer: Answer = lambda call: text_reply("Hello")
    names: Sequence[str] = ("policy", "critic")
    finish: ReplyFinish | None = None
    tokens: TokenReply | None = None
    calls: list[ModelCall] = field(default_factory=list)
    token_calls: list[TokenCall] = field(default_factory=list)
    cancelled: int = 0
    waiting: int = 0
    conversations: dict[str, tuple[AgentMessage, ...]] = field(default_factory=dict)
    replies: dict[str, ModelReply] = field(default_factory=dict)

    @property
    def models(self) -> Sequence[str]:
        """Names of the policies."""
        return self.names

    async def complete(self, call: ModelCall) -> ModelReply:
        """Returns the scripted message."""
        known = self.replies.get(call.options.retry_key)
        if known is not None and call.options.is_retry:
            return known
        self.calls.append(call)
        self.waiting += 1
        try:
            answer = self.answer(call)
            message = answer if isinstance(answer, AgentMessage) else await answer
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1
        return self._commit(call, message)

    def _commit(self, call: ModelCall, message: AgentMessage) -> ModelReply:
        finish = ReplyFinish.FUNCTION_CALLS if message.function_calls else ReplyFinish.STOP
        reply = ModelReply(
            id=f"r{len(self.conversations)}",
            message=message,
            finish=self.finish or finish,
            prompt_tokens=sum(len(part.content) for part in call.messages),
            cached_tokens=len(call.messages[0].content) if len(call.messages) > 1 else 0,
            completion_tokens=len(message.content),
        )
        self.conversations[reply.id] = (*call.messages, replace(message))
        self.replies[call.options.retry_key] = reply
        return reply

    async def generate(self, call: TokenCall) -> TokenReply:
        """Returns the scripted tokens; by default the last token of the prompt twice."""
        self.token_calls.append(call)
        tokens = np.repeat(call.prompt[-1:], 2)
        logprobs = np.array([-0.5, -1.25], dtype=np.float32)
        return self.tokens or TokenReply(
            id=f"t{len(self.token_calls)}", tokens=tokens, logprobs=logprobs, finish=ReplyFinish.STOP
        )

    async def count_tokens(self, call: ModelCall) -> int:
        """Returns the characters of the messages."""
        return sum(len(message.content) for message in call.messages)

    def conversation(self, reply_id: str) -> tuple[AgentMessage, ...]:
        """Returns the messages of an earlier reply."""
        if reply_id not in self.conversations:
            raise CallRefused(
                f"cannot continue the response {reply_id!r}: unknown", refusal=Refusal.NOT_FOUND, code="test.unknown"
            )
        return self.conversations[reply_id]


@asynccontextmanager
async def serving(handler: CallHandler, options: ProxyOptions | None = None) -> AsyncIterator[SessionAccess]:
    """Serves one session of a proxy."""
    proxy = AgentProxy(options)
    await proxy.start()
    try:
        async with proxy.session(handler) as access:
            yield access
    finally:
        await proxy.close()


async def eventually(condition: Callable[[], bool]) -> None:
    """Waits until a condition holds. Raises: TimeoutError."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 (of another component)
            await asyncio.sleep(0.01)
