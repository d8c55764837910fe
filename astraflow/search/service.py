"""Search service: `POST /retrieve` finds documents by words or meaning, `POST /access` reads them by address.

    python -m astraflow.search.service --corpus wiki.jsonl --index wiki.index --port 9200

The endpoints are those of the retrieval servers that search agents are trained with: `/retrieve` takes `queries`,
`topk` and `return_scores`, `/access` takes `urls`; both answer with `result`, one entry for each. Listens on loopback
by default; on another address a token is required, in a file or in ASTRAFLOW_SEARCH_TOKEN.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field

from astraflow.runtime.config.base import Config
from astraflow.runtime.http.json_service import ServiceAddress, read_service_token, run_json_service, serving_json
from astraflow.search.base import MAX_QUERIES, MAX_TOP, Document, Hit, Search
from astraflow.search.corpus import CorpusOptions
from astraflow.search.dense import open_search

TOKEN_VARIABLE = "ASTRAFLOW_SEARCH_TOKEN"  # noqa: S105 (the name of the variable, not the token)
MAX_PAGE_CHARACTERS = 250_000
"""Longer documents are cut."""


class RetrieveRequest(Config):
    """Request to `/retrieve`."""

    queries: list[str] = Field(max_length=MAX_QUERIES)
    topk: int = Field(default=5, ge=1, le=MAX_TOP)
    return_scores: bool = False


class AccessRequest(Config):
    """Request to `/access`."""

    urls: list[str] = Field(max_length=MAX_QUERIES)


@asynccontextmanager
async def serving_search(search: Search, address: ServiceAddress) -> AsyncIterator[str]:
    """Serves a search for the block; yields the URL. Raises: InvalidInput when the port is in use."""

    async def retrieve(request: dict[str, Any]) -> Mapping[str, Any]:
        retrieval = RetrieveRequest.parse(request, where="retrieve")
        results = await search.retrieve(retrieval.queries, retrieval.topk)
        return {"result": [[_row(hit, retrieval.return_scores) for hit in hits] for hits in results]}

    async def access(request: dict[str, Any]) -> Mapping[str, Any]:
        pages = await search.access(AccessRequest.parse(request, where="access").urls)
        return {"result": [_page(page) if page else None for page in pages]}

    async with serving_json(address, {"/retrieve": retrieve, "/access": access}) as url:
        yield url


def _row(hit: Hit, with_score: bool) -> dict[str, Any]:
    document = hit.document
    row = {"id": document.id, "title": document.title, "url": document.url, "contents": _cut(document)}
    return {"document": row, "score": hit.score} if with_score else row


def _page(document: Document) -> dict[str, str]:
    return {"id": document.id, "title": document.title, "url": document.url, "page": _cut(document)}


def _cut(document: Document) -> str:
    return document.text[:MAX_PAGE_CHARACTERS]


def main(
    corpus: Annotated[str, typer.Option(help="File with one document per line: id, title, url, text.")] = "",
    index: Annotated[str, typer.Option(help="Folder for the index; empty: in memory.")] = "",
    facts: Annotated[int, typer.Option(min=0, help="Serve this number of generated facts instead of a file.")] = 0,
    facts_seed: Annotated[int, typer.Option(help="Seed of the generated facts.")] = 0,
    embedder: Annotated[str, typer.Option(help="Folder of an encoder for dense retrieval; empty: BM25.")] = "",
    query_prefix: Annotated[str, typer.Option(help="Text that the encoder expects before queries.")] = "",
    document_prefix: Annotated[str, typer.Option(help="Text that the encoder expects before documents.")] = "",
    device: Annotated[str, typer.Option(help="Device of the encoder.")] = "cpu",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 selects a free one.")] = 9200,
    token_file: Annotated[Path | None, typer.Option(help=f"File with the token; default: {TOKEN_VARIABLE}.")] = None,
) -> None:
    """Serve a search in a corpus over HTTP."""

    @asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        token = read_service_token(token_file, variable=TOKEN_VARIABLE)
        address = ServiceAddress(host=host, port=port, token=token)
        generated = {"entities": facts, "seed": facts_seed} if facts else None
        encoder = {"kind": "huggingface", "path": embedder, "device": device}
        encoder |= {"query_prefix": query_prefix, "document_prefix": document_prefix}
        values = {"corpus": corpus, "index": index, "facts": generated, "embedder": encoder if embedder else None}
        options = CorpusOptions.parse(values, where="search")
        options.check()
        search = await asyncio.to_thread(open_search, options)
        async with serving_search(search, address) as url:
            yield url

    raise typer.Exit(run_json_service(serving))


if __name__ == "__main__":
    typer.run(main)
