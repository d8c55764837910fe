"""Interface of searches, which have an index in the process or use a service."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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
