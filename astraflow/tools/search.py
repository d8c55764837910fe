"""Tools `search` and `access`: find documents of a corpus, and read them piece by piece.

The limits are those of the search recipe: five documents of 5,000 letters each, and pages in pieces of 25,000 letters,
each of which is shown once.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Self

from pydantic import Field, model_validator

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.http.json_service import JsonClient
from astraflow.search.base import Search
from astraflow.search.client import SearchClient
from astraflow.search.corpus import CorpusOptions
from astraflow.search.dense import check_search, open_search
from astraflow.search.service import TOKEN_VARIABLE
from astraflow.tools import tool_sources
from astraflow.tools.base import Tool, ToolError


class SearchToolOptions(CorpusOptions):
    """Corpus or service, and limits of what the policy sees."""

    url: Annotated[str, SettableBy.RECIPE] = ""
    """Address of a search service, such as `http://127.0.0.1:9200`; empty: an index in the process of the node."""
    token_variable: Annotated[str, SettableBy.RECIPE] = TOKEN_VARIABLE
    """Environment variable of the node with the service's token; unset: none is sent."""
    top: int = Field(default=5, ge=1, le=20)
    """Documents in an answer."""
    document_characters: int = Field(default=5000, ge=100, le=100_000)
    """Characters of each document."""
    piece_characters: int = Field(default=25_000, ge=100, le=100_000)
    """Characters of a piece of a page."""
    pieces: int = Field(default=10, ge=1, le=100)
    """Pieces of a page that can be read."""
    repeated_characters: int = Field(default=100, ge=0)
    """Characters of a piece that was read before in the episode."""
    has_access: Annotated[bool, SettableBy.AGENT] = True
    """Offer the tool `access`."""

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        if bool(self.url) == bool(self.corpus or self.facts):
            raise ValueError("give one of `url`, `corpus` and `facts`")
        if self.url and self.embedder is not None:
            raise ValueError("a service has its own embedder; leave out `embedder`, or give `corpus` or `facts`")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError("`url` starts with http:// or https://")
        return self


@tool_sources.register("search", options=SearchToolOptions)
class SearchTools:
    """Tools that search a corpus, in the process of the node or by a service."""

    def __init__(self, options: SearchToolOptions) -> None:
        self._options = options
        self._resources = AsyncExitStack()
        self._search: Search | None = None
        if not options.url:
            check_search(options)

    async def start(self) -> None:
        """Builds or opens the index, or checks the service. Raises: InvalidInput, Unavailable."""
        options = self._options
        if not options.url:
            self._search = await asyncio.to_thread(open_search, options)
            return
        token = os.environ.get(options.token_variable, "")
        client = await self._resources.enter_async_context(JsonClient(options.url, token=token))
        self._search = SearchClient(client)
        await self._search.retrieve(["test"], 1)

    async def close(self) -> None:
        """Closes the connections."""
        self._search = None
        await self._resources.aclose()

    @asynccontextmanager
    async def open(self, _prompt: Prompt, _seed: int) -> AsyncIterator[tuple[Tool, ...]]:
        """Opens the tools of an episode, which remember the pieces that the policy has read. Raises: InvalidInput
        before `start`."""
        if self._search is None:
            raise InvalidInput(
                "cannot open the search tools: they are not started; start the source first", code="search.not_started"
            )
        episode = _SearchEpisode(self._search, self._options)
        yield (_search_tool(episode), _access_tool(episode)) if self._options.has_access else (_search_tool(episode),)


class _SearchEpisode:
    def __init__(self, search: Search, options: SearchToolOptions) -> None:
        self._search = search
        self._options = options
        self._read: set[tuple[str, int]] = set()

    async def search(self, arguments: Mapping[str, Json]) -> str:
        query = _text(arguments, "query")
        try:
            (hits,) = await self._search.retrieve([query], self._options.top)
        except Unavailable as problem:
            raise _failed(problem) from problem
        limit = self._options.document_characters
        texts = [
            f"[{number}] {hit.document.title}\nURL: {hit.document.url}\n{hit.document.text[:limit]}"
            for number, hit in enumerate(hits, start=1)
        ]
        return "\n\n".join(texts) or "No document matches."

    async def access(self, arguments: Mapping[str, Json]) -> str:
        url, piece = _text(arguments, "url"), arguments.get("piece", 1)
        if not isinstance(piece, int) or isinstance(piece, bool):
            raise ToolError("`piece` must be a whole number", code="tool.invalid_arguments")
        try:
            (page,) = await self._search.access([url])
        except Unavailable as problem:
            raise _failed(problem) from problem
        if page is None:
            raise ToolError(f"there is no page {url[:200]!r}; use a URL of a search result", code="search.unknown_page")
        size = self._options.piece_characters
        pieces = max(1, min(-(-len(page.text) // size), self._options.pieces))
        if not 1 <= piece <= pieces:
            raise ToolError(f"the page has {pieces} pieces; give 1 to {pieces}", code="search.unknown_piece")
        text = page.text[(piece - 1) * size : piece * size]
        if (url, piece) in self._read:
            text = f"{text[: self._options.repeated_characters]}... (you read this piece before)"
        self._read.add((url, piece))
        return f"{page.title} (piece {piece} of {pieces})\n{text}"


def _search_tool(episode: _SearchEpisode) -> Tool:
    return Tool(
        name="search",
        description="Finds documents by words and returns their titles, URLs and beginnings.",
        parameters=_schema({"query": {"type": "string", "description": "Words to find."}}, required=["query"]),
        call=episode.search,
    )


def _access_tool(episode: _SearchEpisode) -> Tool:
    properties: dict[str, Json] = {
        "url": {"type": "string", "description": "URL of a search result."},
        "piece": {"type": "integer", "description": "Piece of a long page, from 1; 1 if omitted."},
    }
    return Tool(
        name="access",
        description="Reads the page of a URL, a long one piece by piece.",
        parameters=_schema(properties, required=["url"]),
        call=episode.access,
    )


def _schema(properties: dict[str, Json], *, required: list[Json]) -> dict[str, Json]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _text(arguments: Mapping[str, Json], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ToolError(f"`{name}` must be a text that is not empty", code="tool.invalid_arguments")
    return value


def _failed(problem: Unavailable) -> RolloutFailed:
    return RolloutFailed(
        f"cannot search: {problem}; check the search service",
        boundary=Boundary.ENVIRONMENT,
        code="search.service_failed",
    )
