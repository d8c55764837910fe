"""Query times of the search in a large corpus of short documents: `python -m benchmarks.search`.

Prints seconds and memory for building the index, and milliseconds of a query (median, 95th and 99th percentile) in the
process and by the service.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from time import perf_counter

import psutil

from astraflow.datasets.generated.facts import FactOptions, FactWorld
from astraflow.runtime.http.json_service import JsonClient, ServiceAddress
from astraflow.search.client import SearchClient
from astraflow.search.corpus import fact_documents
from astraflow.search.index import SearchIndex, build_index
from astraflow.search.service import serving_search

TOP = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFigures:
    """Results for one corpus."""

    documents: int
    build_s: float
    index_bytes: int
    memory_bytes: int
    """Memory of the process after the queries. Bytes."""
    process_ms: tuple[float, float, float]
    service_ms: tuple[float, float, float]


def measure(documents: int, queries: int) -> SearchFigures:
    """Builds an index in a folder and asks questions about its facts, one after another."""
    options = FactOptions(entities=documents)
    world = FactWorld(options)
    questions = [world.question(index, 1 + index % 2).question for index in range(queries)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        began = perf_counter()
        index = build_index(fact_documents(options), folder=path)
        build_s = perf_counter() - began
        process_ms, service_ms = asyncio.run(_times(index, questions))
        return SearchFigures(
            documents=index.size,
            build_s=round(build_s, 1),
            index_bytes=sum(file.stat().st_size for file in path.iterdir()),
            memory_bytes=psutil.Process().memory_info().rss,
            process_ms=process_ms,
            service_ms=service_ms,
        )


async def _times(
    index: SearchIndex, questions: Sequence[str]
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    async def in_process(question: str) -> object:
        return await index.retrieve([question], TOP)

    async with serving_search(index, ServiceAddress()) as url, JsonClient(url) as client:
        search = SearchClient(client)

        async def by_service(question: str) -> object:
            return await search.retrieve([question], TOP)

        return await _milliseconds(in_process, questions), await _milliseconds(by_service, questions)


async def _milliseconds(
    ask: Callable[[str], Awaitable[object]], questions: Sequence[str]
) -> tuple[float, float, float]:
    times = []
    for question in questions:
        began = perf_counter()
        await ask(question)
        times.append(1000 * (perf_counter() - began))
    cuts = quantiles(times, n=100)
    return round(cuts[49], 2), round(cuts[94], 2), round(cuts[98], 2)


def main(write: Callable[[str], object] = print) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=2000)
    options = parser.parse_args()
    figures = measure(options.documents, options.queries)
    write(
        f"{figures.documents:,} documents: index of {figures.index_bytes / 1e6:,.0f} MB in {figures.build_s} s, "
        f"process {figures.memory_bytes / 1e6:,.0f} MB; ms a query (median, p95, p99): "
        f"in process {figures.process_ms}, service {figures.service_ms}"
    )


if __name__ == "__main__":
    main()
