"""A source of tools that a test controls."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.runtime.config.base import Config
from astraflow.tools import tool_sources
from astraflow.tools.base import Tool, ToolError
from astraflow.tools.functions import tool, tool_of


@tool
async def double(number: int) -> str:
    """Doubles a number."""
    return str(2 * number)


class EpisodeToolsOptions(Config):
    """Result of the tool `say`, and the time limit of `wait`."""

    says: str = "hello"
    wait_s: float = 30.0
    fault: str = ""
    """`open` to raise when an episode opens the tools."""


@tool_sources.register("test_episode", options=EpisodeToolsOptions)
class EpisodeTools:
    """Tools with a notebook per episode, and tools that fail."""

    latest: "EpisodeTools"

    def __init__(self, options: EpisodeToolsOptions) -> None:
        self._options = options
        self.open_episodes = 0
        self.running = self.most_running = 0
        self.seeds: list[int] = []
        self.is_started = False
        EpisodeTools.latest = self

    async def start(self) -> None:
        self.is_started = True

    async def close(self) -> None:
        self.is_started = False

    @asynccontextmanager
    async def open(self, prompt: Prompt, seed: int) -> AsyncIterator[tuple[Tool, ...]]:
        if self._options.fault == "open":
            raise ConnectionError("no service")
        self.open_episodes += 1
        self.seeds.append(seed)
        notes: list[str] = []

        async def note(text: str) -> str:
            """Notes a text; returns all notes."""
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.running -= 1
            notes.append(text)
            return ", ".join(notes)

        try:
            wait = Tool(name="wait", description="Waits.", parameters={}, call=_wait, timeout_s=self._options.wait_s)
            further = (self._tool("say"), self._tool("refuse"), self._tool("break"), wait, double)
            yield (tool_of(note, timeout_s=30), *further)
        finally:
            self.open_episodes -= 1

    def _tool(self, name: str) -> Tool:
        async def call(arguments: Mapping[str, Json]) -> str:
            if name == "break":
                raise ConnectionError("the service is gone")
            if name == "refuse":
                raise ToolError("not today", code="test.refused")
            return self._options.says

        parameters: Json = {"type": "object", "properties": {"text": {"type": "string"}}}
        assert isinstance(parameters, dict)
        return Tool(name=name, description=name, parameters=parameters, call=call)


async def _wait(arguments: Mapping[str, Json]) -> str:
    await asyncio.Event().wait()
    return ""
