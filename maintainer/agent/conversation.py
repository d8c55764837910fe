"""Conversation of one wake: a model calls tools until it makes no more calls or a budget is spent.

No failure (of the service, the answer or the budget) leads to an action.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from astraflow.contract.fleet.maintainer import Budget
from astraflow.runtime.clock import Clock
from maintainer.agent.budget import Budgets
from maintainer.agent.llm.interface import (
    Failure,
    Llm,
    Message,
    ModelFailed,
    OpaqueBlock,
    Part,
    Reply,
    Request,
    TextPart,
    ToolCall,
    ToolReply,
    Usage,
)
from maintainer.agent.prompt import PROMPT_HASH, SPECS, SYSTEM, TOOLS_HASH
from maintainer.agent.tools.base import Kind as ToolKind
from maintainer.agent.tools.interfaces import Record
from maintainer.agent.tools.toolbox import Toolbox
from maintainer.agent.transcript.transcript import Kind

MAX_INVALID_CALLS = 3
"""Invalid calls (unknown tool, bad JSON, several changes at once) that end a wake."""
CHARACTERS_PER_TOKEN = 3.0
"""Approximate characters of JSON per token; estimates a turn before it is counted."""
MIN_ANSWER_TOKENS = 64
TOKENS_PER_PRICE = 1_000_000
"""Tokens to which a price applies."""
_POSSIBLY_BILLED = (Failure.TIMEOUT, Failure.DROPPED)
"""Failures after which the service may bill the request."""


class Ending(Enum):
    """Reason why a conversation ended."""

    DONE = "done"
    FAILED = "failed"
    """The model's service or the model failed."""
    OVER_BUDGET = "over_budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationResult:
    """Result of a conversation."""

    ending: Ending
    note: str = ""
    """Final text of the model."""
    failed: ModelFailed | None = None
    exhausted: Budget | None = None


class Conversation:
    """Conversation of one wake."""

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
        self._recorded_messages = 0
        """Messages that are already in the transcript. Count."""
        self._turn = 0
        self._invalid_calls = 0
        self._needs = 0
        """Estimated input of the next turn, tokens."""

    async def run(self, opening: str) -> ConversationResult:
        """Runs from the first message to the end."""
        self._messages = [Message(role="user", parts=(TextPart(text=opening),))]
        self._needs = _estimate(SYSTEM) + _estimate(json.dumps([asdict(spec) for spec in SPECS])) + _estimate(opening)
        while True:
            usd = self._usd(self._needs) + MIN_ANSWER_TOKENS * self._usd_per_token
            spent = self._budgets.exhausted_for_turn(needs_tokens=self._needs + MIN_ANSWER_TOKENS, needs_usd=usd)
            if spent is not None:
                return ConversationResult(ending=Ending.OVER_BUDGET, exhausted=spent)
            try:
                reply = await self._next_reply()
                if not reply.calls:
                    return ConversationResult(ending=Ending.DONE, note=reply.text)
                if self._budgets.left_calls < len(reply.calls):
                    return ConversationResult(ending=Ending.OVER_BUDGET, exhausted=self._budgets.tightest("tool_calls"))
                await self._run_calls(reply)
            except ModelFailed as problem:
                return ConversationResult(ending=Ending.FAILED, failed=problem)
            except TimeoutError:
                return ConversationResult(ending=Ending.OVER_BUDGET, exhausted=self._budgets.tightest("seconds"))

    async def _next_reply(self) -> Reply:
        """Requests the next turn; records it before it is acted on."""
        self._turn += 1
        max_tokens = min(self._max_output_tokens, self._budgets.left_tokens - self._needs, self._affordable_tokens)
        request = Request(
            system=SYSTEM,
            tools=SPECS,
            messages=tuple(self._messages),
            max_tokens=max(MIN_ANSWER_TOKENS, max_tokens),
            timeout_s=self._budgets.left_s,
        )
        await self._record(Kind.REQUEST, self._request_body(request))
        began_at = self._clock.now()
        try:
            reply = await self._reply_within_time(request)
        except ModelFailed as problem:
            problem.said = request.partial_reply.text
            problem.usage, problem.is_estimated = self._estimate_usage(request, problem)
            self._count(problem.usage)
            raise
        except TimeoutError:
            await self._record_interrupted_turn(
                request, "out_of_time", "the time budget of the wake ended before the answer was complete"
            )
            raise
        except asyncio.CancelledError:
            await self._record_interrupted_turn(
                request, "stopped", "the wake was stopped before the answer was complete"
            )
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
        self._recorded_messages += 1  # the response recorded above
        self._needs = reply.usage.total
        return reply

    async def _reply_within_time(self, request: Request) -> Reply:
        """Awaits the reply for at most the wake's remaining time, measured by the injected clock."""
        reply_task = asyncio.ensure_future(self._llm.reply(request))
        timer_task = asyncio.ensure_future(self._clock.sleep(max(request.timeout_s, 0.001)))
        try:
            await asyncio.wait({reply_task, timer_task}, return_when=asyncio.FIRST_COMPLETED)
            if not reply_task.done():
                raise TimeoutError
            return reply_task.result()
        finally:
            timer_task.cancel()
            reply_task.cancel()
            await asyncio.gather(reply_task, timer_task, return_exceptions=True)

    async def _record_interrupted_turn(self, request: Request, failure: str, problem: str) -> None:
        """Counts and records a turn that was interrupted."""
        usage, is_estimated = self._estimate_usage(request)
        body = {
            "turn": self._turn,
            "failure": failure,
            "problem": problem,
            "rest_s": 0.0,
            "usage": asdict(usage) if usage is not None else {},
            "usd": self._count(usage),
            "is_estimated": is_estimated,
            "said": request.partial_reply.text,
        }
        await self._record(Kind.FAILURE, body)

    def _estimate_usage(self, request: Request, problem: ModelFailed | None = None) -> tuple[Usage | None, bool]:
        """Usage of a turn without an answer, and whether it is an estimate.

        Counts the usage that the service reported plus the characters that it streamed since. If it reported none and
        may have worked, everything that was requested counts: a budget is better overestimated than exceeded.
        """
        partial_reply = request.partial_reply
        reported = (problem.usage if problem is not None else None) or partial_reply.usage
        if reported is not None and reported.total:
            streamed_tokens = int(partial_reply.characters / CHARACTERS_PER_TOKEN)
            return replace(reported, output=max(reported.output, streamed_tokens)), streamed_tokens > reported.output
        if problem is not None and problem.failure not in _POSSIBLY_BILLED:
            return reported, False
        return Usage(input=self._needs, output=request.max_tokens), True

    def _usd(self, tokens: int) -> float:
        """Upper bound of the cost of input tokens: the uncached or the cache-write price, whichever is higher."""
        return max(self._llm.usd(Usage(input=tokens)), self._llm.usd(Usage(cache_write=tokens)))

    @property
    def _usd_per_token(self) -> float:
        """Price of one output token, US dollars."""
        return self._llm.usd(Usage(output=TOKENS_PER_PRICE)) / TOKENS_PER_PRICE

    @property
    def _affordable_tokens(self) -> int:
        """Output tokens that the remaining budget pays for."""
        price, left = self._usd_per_token, self._budgets.left_usd - self._usd(self._needs)
        return int(left / price) if price > 0 else self._max_output_tokens

    async def _run_calls(self, reply: Reply) -> None:
        """Executes the requested calls; allows one change at a time."""
        has_concurrent_changes = len(reply.calls) > 1 and any(self._is_change(call) for call in reply.calls)
        replies = [await self._run_call(call, has_other_changes=has_concurrent_changes) for call in reply.calls]
        self._messages.append(Message(role="user", parts=tuple(replies)))
        self._needs += sum(_estimate(reply_part.content) for reply_part in replies)
        if has_concurrent_changes:
            self._count_invalid_call()

    async def _run_call(self, call: ToolCall, *, has_other_changes: bool) -> ToolReply:
        self._budgets.count_tool_call()
        if has_other_changes:
            content, error = (
                json.dumps(
                    {
                        "error": "one_at_a_time",
                        "advice": "no call was executed; call one tool at a time when a call is not a read",
                    }
                ),
                "crowd",
            )
        elif call.arguments is None:
            content, error = (
                json.dumps({"error": "bad_arguments", "advice": "the arguments are not valid JSON; correct them"}),
                "bad_json",
            )
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
            self._count_invalid_call()
        return ToolReply(call=call.id, content=content, is_error=bool(error))

    def _count_invalid_call(self) -> None:
        self._invalid_calls += 1
        if self._invalid_calls >= MAX_INVALID_CALLS:
            raise ModelFailed(
                Failure.GARBAGE,
                f"cannot continue the wake: {self._invalid_calls} tool calls were invalid; check the model",
            )

    def _is_change(self, call: ToolCall) -> bool:
        tool = self._toolbox.tools.get(call.name)
        return tool is None or tool.kind is not ToolKind.READ

    def _count(self, usage: Usage | None) -> float:
        if usage is None:
            return 0.0
        usd = self._llm.usd(usage)
        self._budgets.count_turn(usage, usd)
        return usd

    def _request_body(self, request: Request) -> dict[str, Any]:
        unrecorded, self._recorded_messages = self._messages[self._recorded_messages :], len(self._messages)
        return {
            "turn": self._turn,
            "messages": [message_json(message) for message in unrecorded],
            "max_tokens": request.max_tokens,
            "prompt_hash": PROMPT_HASH,
            "tools_hash": TOOLS_HASH,
        }


def message_json(message: Message) -> dict[str, Any]:
    """Message as the transcript stores it."""
    return {"role": message.role, "parts": [part_json(part) for part in message.parts]}


def part_json(part: Part) -> dict[str, Any]:
    """Part of a message as the transcript stores it."""
    match part:
        case TextPart():
            return {"said": part.text}
        case ToolCall():
            arguments: Mapping[str, Any] | None = part.arguments
            return {"call": part.id, "name": part.name, "arguments": dict(arguments) if arguments is not None else None}
        case ToolReply():
            return {"reply": part.call, "content": part.content, "is_error": part.is_error}
        case OpaqueBlock():
            return {"opaque": dict(part.block)}


def _estimate(text: str) -> int:
    return int(len(text) / CHARACTERS_PER_TOKEN) + 1
