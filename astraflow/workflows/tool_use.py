"""Workflow of one policy that calls tools before it answers."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.limits import EpisodeBounds
from astraflow.contract.rollouts.tasks import Prompt, Task
from astraflow.contract.rollouts.trajectories import Ending, Trajectory
from astraflow.models.tokenizers import Message
from astraflow.rewards.base import Score
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.plugins import start_managed
from astraflow.tools import tool_sources
from astraflow.tools.base import Tool
from astraflow.tools.call_parsers import closing_strings, parse_calls
from astraflow.tools.calls import CallFormat, ParsedCall
from astraflow.workflows import workflows
from astraflow.workflows.base import OnePolicy, PolicyClient, PolicyClients, RewardScorer, episode_seed
from astraflow.workflows.components.answers import question_of
from astraflow.workflows.components.conversation import Conversation, ConversationOptions, Turn, shortened
from astraflow.workflows.components.tool_calls import (
    ToolCalls,
    generate_whole_calls,
    open_tools,
    schema_of,
    written_tools,
)

_SPEAKER = "tool"
MAX_COUNTED_TOOLS = 32
"""Tools with a metric of their own in an episode: those that were called most."""


class ToolUseOptions(ConversationOptions):
    """Policy, tools, and limits of the workflow."""

    tools: Annotated[tuple[dict[str, Any], ...], tool_sources] = Field(min_length=1)
    """Sources of tools: each its kind and options."""
    policy: Annotated[str, SettableBy.AGENT] = "solver"
    """Policy that calls tools and answers."""
    system: Annotated[str, SettableBy.AGENT] = ""
    """System message before the question; the description of the tools follows it."""
    call_format: Annotated[CallFormat, SettableBy.AGENT] = CallFormat.HERMES
    """Form of a call: `hermes` (`<tool_call>{...}</tool_call>`), `xml` (`<search>...</search>`) or `python`."""
    stop_after_call: Annotated[bool, SettableBy.AGENT] = False
    """Ends a turn after its first call, for policies that would write the result themselves. With `hermes` and `xml`.
    """
    result_tag: Annotated[str, SettableBy.AGENT] = Field(default="tool_response", pattern=r"^[a-z_]{1,32}$")
    """Tag around results where the chat template has no form for them."""
    max_calls_per_turn: int = Field(default=8, ge=1)
    """Maximum number of calls in a turn; further calls are not executed, and the policy is informed."""
    max_calls: int = Field(default=64, ge=1)
    """Calls of an episode; further ones end it with `budget`."""
    max_seconds: float = Field(default=0.0, ge=0)
    """Time after which an episode ends with `budget`, instead of a failure at the node's `episode_timeout_s`; 0: no
    limit."""
    max_result_characters: int = Field(default=8000, ge=1)
    """Longer results are cut."""
    scored_text: Annotated[Literal["last", "all"], SettableBy.AGENT] = "last"
    """Text that the reward reads: the last turn, or all turns of the policy joined by line breaks."""
    unfinished_reward: float = Field(default=0.0, ge=-1e6, le=1e6)
    """Reward of an episode that a limit ended before an answer; the reward is not called."""


@workflows.register("tool_use", options=ToolUseOptions)
class ToolUse(OnePolicy):
    """Question, turns with tool calls and their results, and an answer, which is a turn without a call.

    An episode is one trajectory. The calls of a turn run at the same time. An error of a tool is text for the policy; a
    tool that does not work fails the episode at the boundary `environment`.
    """

    def __init__(self, options: ToolUseOptions) -> None:
        super().__init__(options.policy)
        self._options = options
        self._sources = tuple(tool_sources.build(spec) for spec in options.tools)
        self._resources = AsyncExitStack()

    @property
    def bounds(self) -> EpisodeBounds:
        return self._options.conversation_bounds(conversations=1)

    async def start(self) -> None:
        await start_managed(self._sources, self._resources)

    async def close(self) -> None:
        await self._resources.aclose()

    async def run(self, task: Task, policies: PolicyClients, scorer: RewardScorer) -> tuple[Trajectory, ...]:
        """Runs turns until an answer or a limit, and scores the answer."""
        async with AsyncExitStack() as resources:
            tools = await open_tools(self._sources, task.prompt, episode_seed(task), resources)
            episode = _Episode(self._options, tools, policies[self._policy], task.prompt)
            ending = await episode.run()
        return (await episode.trajectory(ending, scorer),)


class _Episode:
    def __init__(self, options: ToolUseOptions, tools: Sequence[Tool], client: PolicyClient, prompt: Prompt) -> None:
        self._options = options
        self._tools = tools
        self._client = client
        self._prompt = prompt
        self._calls = ToolCalls(tools, max_per_turn=options.max_calls_per_turn)
        self._turns: list[Turn] = []
        is_hermes = options.call_format is CallFormat.HERMES
        self._has_template = is_hermes and client.tokenizer.has_tools
        self._conversation = Conversation(
            PolicyId(options.policy),
            client,
            options,
            self._first_messages(),
            tools=[schema_of(tool) for tool in tools] if self._has_template else (),
        )
        self._now = asyncio.get_running_loop().time
        self._ends_at = self._now() + options.max_seconds if options.max_seconds else float("inf")

    async def run(self) -> Ending:
        """Runs the turns; returns the reason for their end."""
        options, conversation = self._options, self._conversation
        while True:
            turn = await self._turn()
            self._turns.append(turn)
            calls = parse_calls(turn.text, options.call_format, self._tools)
            if not calls:
                is_cut = turn.finish is Finish.LENGTH and conversation.room <= 0
                return Ending.CONTEXT if is_cut else Ending.DONE
            ending = conversation.ending(self._calls.malformed) or self._budget_ending(calls)
            if ending is not None:
                return ending
            texts = await self._calls.run(calls, limit_s=self._ends_at - self._now())
            ending = conversation.ending(self._calls.malformed) or self._budget_ending(())
            if ending is not None:
                return ending
            if not conversation.append(self._result_messages(texts), speaker=_SPEAKER):
                return Ending.CONTEXT

    async def _turn(self) -> Turn:
        options = self._options
        if not options.stop_after_call:
            return await self._conversation.answer()
        generate = partial(
            generate_whole_calls,
            self._client.generate,
            self._client.tokenizer,
            form=options.call_format,
            tools=self._tools,
        )
        return await self._conversation.answer(closing_strings(options.call_format, self._tools), generate=generate)

    async def trajectory(self, ending: Ending, scorer: RewardScorer) -> Trajectory:
        """Returns the scored trajectory. Raises: RolloutFailed at the boundary `reward`."""
        score = Score(value=self._options.unfinished_reward)
        if ending is Ending.DONE:
            turns = self._turns if self._options.scored_text == "all" else self._turns[-1:]
            text, tokens = "\n".join(turn.text for turn in turns), sum(turn.tokens for turn in turns)
            score = await scorer.score(self._prompt, text, turns[-1].finish, tokens=tokens)
        calls = self._calls
        most_called = calls.counts.most_common(MAX_COUNTED_TOOLS)
        return self._conversation.builder.build(
            score,
            metrics={
                "turns": self._conversation.turns,
                "tool_calls": calls.counts.total(),
                "tool_errors": calls.errors,
                "malformed": calls.malformed,
                **{f"tool_calls.{name}": count for name, count in most_called},
            },
            labels={"tools": ", ".join(sorted(name for name, _ in most_called))} if most_called else {},
            ending=ending,
        )

    def _budget_ending(self, calls: Sequence[ParsedCall]) -> Ending | None:
        """Returns BUDGET when these calls exceed the number of calls, or the time is over."""
        wanted = min(len(calls), self._options.max_calls_per_turn)
        is_over = self._calls.counts.total() + wanted > self._options.max_calls or self._now() >= self._ends_at
        return Ending.BUDGET if is_over else None

    def _first_messages(self) -> list[Message]:
        options = self._options
        schemas = [] if self._has_template else [schema_of(tool) for tool in self._tools]
        described = written_tools(schemas, options.call_format) if schemas else ""
        system = "\n\n".join(part for part in (options.system, described) if part)
        messages = [{"role": "system", "content": system}] if system else []
        return [*messages, {"role": "user", "content": question_of(self._prompt)}]

    def _result_messages(self, texts: Sequence[str]) -> list[Message]:
        options = self._options
        cut = [shortened(text, options.max_result_characters) for text in texts]
        if self._has_template:
            return [{"role": "tool", "content": text} for text in cut]
        tag = options.result_tag
        return [{"role": "user", "content": "\n".join(f"<{tag}>\n{text}\n</{tag}>" for text in cut)}]
