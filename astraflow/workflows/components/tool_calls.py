"""Tool calls of an episode: generates whole ones, runs those of a turn at once, within limits, and counts them."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TypeVar

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, joined
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.tokenizers import ChatTokenizer, ToolSchema
from astraflow.runtime.plugins import plugin_cause
from astraflow.runtime.tracing import span
from astraflow.tools.base import Tool, ToolError, ToolSource
from astraflow.tools.call_parsers import closing_strings, ends_inside_call
from astraflow.tools.calls import CallFormat, ParsedCall, ToolCall, UnreadableCall

_T = TypeVar("_T")

MAX_CONTINUATIONS = 16
"""Closing strings inside the texts of a turn's calls after which the turn goes on; one more ends it. Count."""
_STOP_TOKEN_CHARACTERS = 32
"""Characters that the last token of a generation may have behind its stop string."""

_HOW_TO_CALL: Mapping[CallFormat, str] = {
    CallFormat.HERMES: 'Call a tool with <tool_call>{"name": "...", "arguments": {...}}</tool_call>.',
    CallFormat.XML: "Call a tool by its argument between tags of its name: <NAME>argument</NAME>.",
    CallFormat.PYTHON: "Call tools in a block that begins with ```tool_code, one NAME(argument=value) on each line.",
}


async def open_tools(
    sources: Sequence[ToolSource], prompt: Prompt, seed: int, resources: AsyncExitStack
) -> tuple[Tool, ...]:
    """Opens the tools of an episode; `resources` closes them.

    Raises: InvalidInput when two have the same name; RolloutFailed at the boundary `environment`.
    """
    tools: list[Tool] = []
    for source in sources:
        try:
            tools += await resources.enter_async_context(source.open(prompt, seed))
        except (RolloutFailed, InvalidInput):
            raise
        except Exception as problem:  # a tool source may raise anything
            raise _failed("open the tools", problem) from problem
    names = Counter(tool.name for tool in tools)
    repeated = sorted(name for name, count in names.items() if count > 1)
    if repeated:
        raise InvalidInput(
            f"cannot use the tools {', '.join(repeated)}: several sources have one of this name; leave all but one out",
            code="workflow.duplicate_tool",
        )
    return tuple(tools)


def schema_of(tool: Tool) -> ToolSchema:
    """Returns a tool as chat templates expect it."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def written_tools(tools: Sequence[ToolSchema], form: CallFormat) -> str:
    """Returns a description of the tools and of the form of calls, for policies whose chat template has none."""
    schemas = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return f"You can call these tools:\n{schemas}\n{_HOW_TO_CALL[form]} You then read the results."


async def generate_whole_calls(
    generate: Callable[[Int32Array, Sampling], Awaitable[Generation]],
    tokenizer: ChatTokenizer,
    prompt: Int32Array,
    sampling: Sampling,
    *,
    form: CallFormat,
    tools: Sequence[Tool] = (),
) -> Generation:
    """Returns a generation that ends after its first call: a closing string inside a text of the call is a part of the
    text, so that the same turn is continued there.

    sampling: its stop strings are the closing strings of calls, and others, which always end it. Raises: what
    `generate` raises.
    """
    closing = closing_strings(form, tools)
    others = [text for text in sampling.stop_strings if text not in closing]
    generation = await generate(prompt, sampling)
    for _ in range(MAX_CONTINUATIONS):
        room = sampling.max_new_tokens - len(generation.tokens)
        if room <= 0 or sampling.json_schema or sampling.regex or not _is_at_string(generation, sampling):
            break
        text = tokenizer.decode(generation.tokens)
        end = text[-max(map(len, (*closing, *others))) - _STOP_TOKEN_CHARACTERS :] if closing else ""
        if any(other in end for other in others) or not any(stop in end for stop in closing):
            break
        if not ends_inside_call(text, form, tools):
            break
        rest = await generate(np.concatenate([prompt, generation.tokens]), replace(sampling, max_new_tokens=room))
        generation = joined(generation, rest)
        if not len(rest.tokens):
            break
    return generation


def _is_at_string(generation: Generation, sampling: Sampling) -> bool:
    """Returns whether a stop string ended the generation, not a stop token."""
    tokens = generation.tokens
    return generation.finish is Finish.STOP and len(tokens) > 0 and int(tokens[-1]) not in sampling.stop_tokens


class ToolCalls:
    """Runs the calls of one episode."""

    def __init__(self, tools: Sequence[Tool], *, max_per_turn: int) -> None:
        self.counts: Counter[str] = Counter()
        """Calls by tool, of existing tools."""
        self.errors = 0
        """Calls that ended with an error of the tool, those of unknown tools and after a timeout included. Count."""
        self.malformed = 0
        """Unreadable calls. Count."""
        self._tools = {tool.name: tool for tool in tools}
        self._max_per_turn = max_per_turn

    async def run(self, calls: Sequence[ParsedCall], *, limit_s: float) -> list[str]:
        """Runs the calls of a turn at the same time; returns texts for the policy in the order of the calls.

        limit_s: time limit besides those of the tools. Raises: RolloutFailed at the boundary `environment` when a tool
        does not work.
        """
        run, rest = calls[: self._max_per_turn], calls[self._max_per_turn :]
        texts = await all_results([self._text(call, limit_s) for call in run])
        note = f"Error: {len(rest)} more calls were not run; at most {self._max_per_turn} calls run in a turn."
        return [*texts, note] if rest else texts

    async def _text(self, call: ParsedCall, limit_s: float) -> str:
        if isinstance(call, UnreadableCall):
            self.malformed += 1
            return f"Error: {call.problem}"
        try:
            return await self._result(call, limit_s)
        except ToolError as problem:
            self.errors += 1
            return f"Error: {problem}"

    async def _result(self, call: ToolCall, limit_s: float) -> str:
        """Raises: ToolError for what the policy sees; RolloutFailed."""
        tool = self._tools.get(call.name)
        if tool is None:
            raise ToolError(f"there is no tool {call.name[:64]!r}; use {', '.join(self._tools)}", code="tool.unknown")
        self.counts[tool.name] += 1
        timeout_s = min(tool.timeout_s, limit_s)
        try:
            with span("rl.tool", tool=tool.name):
                async with asyncio.timeout(timeout_s) as limit:
                    return await tool.call(call.arguments)
        except (ToolError, RolloutFailed):
            raise
        except Exception as problem:  # a tool may raise anything
            if isinstance(problem, TimeoutError) and limit.expired():
                raise ToolError(f"no result after {timeout_s:.3g} s", code="tool.timeout") from None
            raise _failed(f"call the tool {tool.name!r}", problem) from problem


def _failed(action: str, problem: Exception) -> RolloutFailed:
    return RolloutFailed(
        f"cannot {action}: {plugin_cause(problem)}; raise ToolError for what the policy should see",
        boundary=Boundary.ENVIRONMENT,
        code="rollout.tool_failed",
    )


async def all_results(calls: Sequence[Awaitable[_T]]) -> list[_T]:
    """Awaits all at the same time and returns their results in order; the first error cancels the others.

    Raises: that error itself, not a group of errors.
    """
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
