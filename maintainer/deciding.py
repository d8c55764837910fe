"""One wake's conversation: a model asks for tools until it has nothing more to ask, or may ask no more.

Whatever goes wrong in it (the service, the answer, the budget), nothing is done because of it.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from astraflow.contract.maintenance import Budget
from astraflow.runtime.clock import Clock
from maintainer.budget import Budgets
from maintainer.llm.base import (
    Failure,
    Llm,
    Message,
    ModelFailed,
    Opaque,
    Part,
    Reply,
    Request,
    Said,
    ToolCall,
    ToolReply,
    Usage,
)
from maintainer.prompt import PROMPT_HASH, SPECS, SYSTEM, TOOLS_HASH
from maintainer.toolbox.ports import Record
from maintainer.toolbox.toolbox import Toolbox
from maintainer.tools.base import Kind as ToolKind
from maintainer.transcript import Kind

MOST_BLUNDERS = 3
"""Calls in one wake that are none (an unknown tool, bad JSON, several changes at once): then it is over."""
CHARACTERS_PER_TOKEN = 3.0
"""Of JSON, about: for what a turn will need before it is known."""
LEAST_ANSWER = 64
"""Tokens."""
MILLION = 1_000_000
"""Tokens that prices are of."""
_MAY_HAVE_WORKED = (Failure.TIMEOUT, Failure.DROPPED)
"""Failures of a service that had the request."""


class Ending(Enum):
    """How a conversation ended."""

    DONE = "done"
    FAILED = "failed"
    """The model's service, or the model."""
    OVER_BUDGET = "over_budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What came of a conversation."""

    ending: Ending
    note: str = ""
    """The model's own last words."""
    failed: ModelFailed | None = None
    spent: Budget | None = None


class Conversation:
    """One wake's."""

    def __init__(
        self, llm: Llm, toolbox: Toolbox, budgets: Budgets, *, record: Record, clock: Clock, max_output_tokens: int
    ) -> None:
        self._llm = llm
        self._toolbox = toolbox
        self._budgets = budgets
        self._record = record
        self._clock = clock
        self._max_output_tokens = max_output_tokens
        self._messages: list[Message] = []
        self._told = 0
        """Messages that the transcript has."""
        self._turn = 0
        self._blunders = 0
        self._needs = 0
        """Tokens that the next turn will take in, about."""

    async def run(self, opening: str) -> Decided:
        """From the first message to the end."""
        self._messages = [Message(role="user", parts=(Said(text=opening),))]
        self._needs = _estimate(SYSTEM) + _estimate(json.dumps([asdict(spec) for spec in SPECS])) + _estimate(opening)
        while True:
            usd = self._usd(self._needs) + LEAST_ANSWER * self._usd_per_token
            spent = self._budgets.spent(needs_tokens=self._needs + LEAST_ANSWER, needs_usd=usd)
            if spent is not None:
                return Decided(ending=Ending.OVER_BUDGET, spent=spent)
            try:
                reply = await self._asked()
                if not reply.calls:
                    return Decided(ending=Ending.DONE, note=reply.text)
                if self._budgets.left_calls < len(reply.calls):
                    return Decided(ending=Ending.OVER_BUDGET, spent=self._budgets.nearest("tool_calls"))
                await self._answered(reply)
            except ModelFailed as problem:
                return Decided(ending=Ending.FAILED, failed=problem)
            except TimeoutError:
                return Decided(ending=Ending.OVER_BUDGET, spent=self._budgets.nearest("seconds"))

    async def _asked(self) -> Reply:
        """The next turn, written down before it is acted on."""
        self._turn += 1
        most = min(self._max_output_tokens, self._budgets.left_tokens - self._needs, self._affordable)
        request = Request(
            system=SYSTEM,
            tools=SPECS,
            messages=tuple(self._messages),
            max_tokens=max(LEAST_ANSWER, most),
            timeout_s=self._budgets.left_s,
        )
        await self._record(Kind.REQUEST, self._request_body(request))
        began_at = self._clock.now()
        try:
            reply = await self._within_time(request)
        except ModelFailed as problem:
            problem.said = request.heard.text
            problem.usage, problem.is_estimated = self._used(request, problem)
            self._count(problem.usage)
            raise
        except TimeoutError:
            await self._cut(request, "out_of_time", "the time of the wake was over before the answer was whole")
            raise
        except asyncio.CancelledError:
            await self._cut(request, "stopped", "the wake was stopped before the answer was whole")
            raise
        usd = self._count(reply.usage)
        await self._record(
            Kind.RESPONSE,
            {
                "turn": self._turn,
                "parts": [part_json(part) for part in reply.parts],
                "usage": asdict(reply.usage),
                "usd": usd,
                "model": reply.model,
                "duration_s": round(self._clock.now() - began_at, 3),
            },
        )
        self._messages.append(Message(role="assistant", parts=reply.parts))
        self._told += 1  # the response that was just written
        self._needs = reply.usage.total
        return reply

    async def _within_time(self, request: Request) -> Reply:
        """A wake's time is the clock's: a test's passes without waiting."""
        asking = asyncio.ensure_future(self._llm.reply(request))
        timer = asyncio.ensure_future(self._clock.sleep(max(request.timeout_s, 0.001)))
        try:
            await asyncio.wait({asking, timer}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise TimeoutError
            return asking.result()
        finally:
            timer.cancel()
            asking.cancel()
            await asyncio.gather(asking, timer, return_exceptions=True)

    async def _cut(self, request: Request, failure: str, problem: str) -> None:
        """A turn is over in the middle: it was begun, so it is counted and written down."""
        usage, is_estimated = self._used(request)
        body = {
            "turn": self._turn,
            "failure": failure,
            "problem": problem,
            "rest_s": 0.0,
            "usage": asdict(usage) if usage is not None else {},
            "usd": self._count(usage),
            "is_estimated": is_estimated,
            "said": request.heard.text,
        }
        await self._record(Kind.FAILURE, body)

    def _used(self, request: Request, problem: ModelFailed | None = None) -> tuple[Usage | None, bool]:
        """What a turn without an answer has used, and whether that is a guess.

        What the service said counts, and what it wrote since, by its characters. Where it said nothing and may have
        been at work, all counts that it was asked for: a budget is to be too small rather than too large.
        """
        heard = request.heard
        said = (problem.usage if problem is not None else None) or heard.usage
        if said is not None and said.total:
            written = int(heard.characters / CHARACTERS_PER_TOKEN)
            return replace(said, output=max(said.output, written)), written > said.output
        if problem is not None and problem.failure not in _MAY_HAVE_WORKED:
            return said, False
        return Usage(input=self._needs, output=request.max_tokens), True

    def _usd(self, tokens: int) -> float:
        """What it costs to take so many in: anew, or into a cache, whichever is more."""
        return max(self._llm.usd(Usage(input=tokens)), self._llm.usd(Usage(cache_write=tokens)))

    @property
    def _usd_per_token(self) -> float:
        """Of what is written."""
        return self._llm.usd(Usage(output=MILLION)) / MILLION

    @property
    def _affordable(self) -> int:
        """Tokens of an answer for which there is money."""
        price, left = self._usd_per_token, self._budgets.left_usd - self._usd(self._needs)
        return int(left / price) if price > 0 else self._max_output_tokens

    async def _answered(self, reply: Reply) -> None:
        """Carry out what it asked for; changes one at a time."""
        is_crowd = len(reply.calls) > 1 and any(self._changes(call) for call in reply.calls)
        replies = [await self._called(call, is_crowd=is_crowd) for call in reply.calls]
        self._messages.append(Message(role="user", parts=tuple(replies)))
        self._needs += sum(_estimate(one.content) for one in replies)
        if is_crowd:
            self._blundered()

    async def _called(self, call: ToolCall, *, is_crowd: bool) -> ToolReply:
        self._budgets.called()
        if is_crowd:
            content, error = (
                json.dumps({"error": "one_at_a_time", "advice": "nothing was done: call one tool"}),
                "crowd",
            )
        elif call.arguments is None:
            content, error = json.dumps({"error": "bad_arguments", "advice": "the arguments were no JSON"}), "bad_json"
        else:
            result = await self._toolbox.call(call.name, call.arguments)
            content, error = result.content, result.error
        body = {
            "turn": self._turn,
            "call": call.id,
            "name": call.name[:80],
            "arguments": dict(call.arguments) if call.arguments is not None else None,
            "is_error": bool(error),
            "result": content,
        }
        await self._record(Kind.TOOL, body)
        if error in ("unknown_tool", "bad_json", "bad_arguments"):
            self._blundered()
        return ToolReply(call=call.id, content=content, is_error=bool(error))

    def _blundered(self) -> None:
        self._blunders += 1
        if self._blunders >= MOST_BLUNDERS:
            raise ModelFailed(Failure.GARBAGE, f"{self._blunders} calls of tools in this wake were none")

    def _changes(self, call: ToolCall) -> bool:
        tool = self._toolbox.tools.get(call.name)
        return tool is None or tool.kind is not ToolKind.READ

    def _count(self, usage: Usage | None) -> float:
        if usage is None:
            return 0.0
        usd = self._llm.usd(usage)
        self._budgets.asked(usage, usd)
        return usd

    def _request_body(self, request: Request) -> dict[str, Any]:
        fresh, self._told = self._messages[self._told :], len(self._messages)
        return {
            "turn": self._turn,
            "messages": [message_json(message) for message in fresh],
            "max_tokens": request.max_tokens,
            "prompt_hash": PROMPT_HASH,
            "tools_hash": TOOLS_HASH,
        }


def message_json(message: Message) -> dict[str, Any]:
    """A message as the transcript has it."""
    return {"role": message.role, "parts": [part_json(part) for part in message.parts]}


def part_json(part: Part) -> dict[str, Any]:
    """A part of a message as the transcript has it."""
    match part:
        case Said():
            return {"said": part.text}
        case ToolCall():
            arguments: Mapping[str, Any] | None = part.arguments
            return {"call": part.id, "name": part.name, "arguments": dict(arguments) if arguments is not None else None}
        case ToolReply():
            return {"reply": part.call, "content": part.content, "is_error": part.is_error}
        case Opaque():
            return {"opaque": dict(part.block)}


def _estimate(text: str) -> int:
    return int(len(text) / CHARACTERS_PER_TOKEN) + 1
