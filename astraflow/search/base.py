"""Interface of searches, which have an index in the process or use a service."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from astraflow.contract.errors import InvalidInput

MAX_QUERIES = 64
"""Queries or addresses in a request."""
MAX_TOP = 100
"""Documents in the answer to a query."""
MAX_QUERY_CHARACTERS = 2000
"""Longer queries are cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Document of a corpus."""

    id: str
    title: str
    url: str
    """Address by which the whole text is read; empty when it has none."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """Document that matches a query."""

    document: Document
    score: float
    """BM25 score, or inner product of the embeddings; larger is better."""


class Search(Protocol):
    """Finds documents by words or by meaning, and reads documents by address."""

    async def retrieve(self, queries: Sequence[str], top: int) -> list[list[Hit]]:
        """Returns the `top` best documents for each query, best first. Raises: InvalidInput, Unavailable."""

    async def access(self, urls: Sequence[str]) -> list[Document | None]:
        """Returns the document of each address; None for an unknown one. Raises: InvalidInput, Unavailable."""


_FORMAT = 1
_SOURCE = "corpus.json"


@contextmanager
def rebuilt_folder(folder: Path, source: str) -> Iterator[Path | None]:
    """Provides the path of a folder to build, which then replaces the index; None if the folder has this source.

    source: description of corpus and options, as JSON.
    """
    if (folder / _SOURCE).is_file() and (folder / _SOURCE).read_text() == source:
        yield None
        return
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    yield partial
    (partial / _SOURCE).write_text(source)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def source_of(corpus: Path) -> dict[str, Any]:
    """Returns what identifies the state of a file. Raises: InvalidInput when it cannot be read."""
    try:
        status = corpus.stat()
    except OSError as problem:
        raise InvalidInput(
            f"cannot read the corpus {str(corpus)!r}: {problem.strerror}; check the path",
            code="search.unreadable_corpus",
        ) from problem
    return {"format": _FORMAT, "size": status.st_size, "modified_ns": status.st_mtime_ns}


def check_sizes(count: int, top: int) -> None:
    """Checks the size of a request. Raises: InvalidInput."""
    if count > MAX_QUERIES or not 1 <= top <= MAX_TOP:
        raise InvalidInput(
            f"cannot search: {count} queries for {top} documents each; use at most {MAX_QUERIES} and 1 to {MAX_TOP}",
            code="search.too_large",
        )
