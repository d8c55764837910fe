"""Dense index of a corpus: exact search by inner products of embeddings, with numpy."""

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from astraflow.contract.errors import InvalidInput
from astraflow.models.base import Embedder, TextKind, Vectors, embedders
from astraflow.search.base import MAX_QUERY_CHARACTERS, Document, Hit, Search, check_sizes, rebuilt_folder, source_of
from astraflow.search.corpus import CorpusOptions
from astraflow.search.index import check_installed, open_index

T = TypeVar("T")

_BLOCK_BYTES = 64 * 2**20
"""Vectors in one matrix product: a block is read from disk once for all queries of a request."""
_EMBEDDED_AT_ONCE = 4096
_VECTORS = "vectors.npy"


class DenseIndex:
    """Documents by meaning and by address. Compares a query with every document, so that none is missed; documents
    with equal scores keep the order of the corpus. Needs memory for the documents; vectors in a folder are mapped."""

    def __init__(self, documents: Sequence[Document], vectors: Vectors, embedder: Embedder) -> None:
        """vectors: float32 `[documents, width]`, each of length 1."""
        self._documents = documents
        self._vectors = vectors
        self._embedder = embedder
        self._embedding = asyncio.Lock()
        self._by_url: dict[str, Document] = {}
        for document in documents:
            self._by_url.setdefault(document.url, document)

    @property
    def size(self) -> int:
        return len(self._documents)

    async def retrieve(self, queries: Sequence[str], top: int) -> list[list[Hit]]:
        """See `Search.retrieve`. Runs in a thread; queries without a letter have no hits."""
        check_sizes(len(queries), top)
        async with self._embedding:
            return await asyncio.to_thread(
                self._found, [query[:MAX_QUERY_CHARACTERS].strip() for query in queries], top
            )

    async def access(self, urls: Sequence[str]) -> list[Document | None]:
        """See `Search.access`."""
        check_sizes(len(urls), 1)
        return [self._by_url.get(url) if url else None for url in urls]

    def _found(self, queries: Sequence[str], top: int) -> list[list[Hit]]:
        nonempty_queries = [query for query in queries if query]
        if not nonempty_queries:
            return [[] for _ in queries]
        indices, scores = nearest(self._embedder.embed(nonempty_queries, TextKind.QUERY), self._vectors, top)
        rows = iter(zip(indices, scores, strict=True))
        return [self._hits(*next(rows)) if query else [] for query in queries]

    def _hits(self, indices: npt.NDArray[np.int64], scores: Vectors) -> list[Hit]:
        return [
            Hit(document=self._documents[index], score=float(score))
            for index, score in zip(indices, scores, strict=True)
        ]


def nearest(queries: Vectors, vectors: Vectors, top: int) -> tuple[npt.NDArray[np.int64], Vectors]:
    """Returns the rows of `vectors` with the largest inner products with each query, largest first, equal ones by
    index, and the products: `[queries, min(top, rows)]` each."""
    best_scores = np.empty((len(queries), 0), np.float32)
    best_rows = np.empty((len(queries), 0), np.int64)
    block = max(1, _BLOCK_BYTES // (4 * vectors.shape[1]))
    for begin in range(0, len(vectors), block):
        scores = queries @ vectors[begin : begin + block].T
        rows = np.broadcast_to(np.arange(begin, begin + scores.shape[1]), scores.shape)
        if scores.shape[1] > top:
            scores, rows = _largest(scores, rows, top)
        merged, merged_rows = np.hstack([best_scores, scores]), np.hstack([best_rows, rows])
        order = np.lexsort((merged_rows, -merged), axis=-1)[:, :top]
        best_scores, best_rows = np.take_along_axis(merged, order, 1), np.take_along_axis(merged_rows, order, 1)
    return best_rows, best_scores


def _largest(scores: Vectors, rows: npt.NDArray[np.int64], top: int) -> tuple[Vectors, npt.NDArray[np.int64]]:
    """Returns the `top` largest scores of each row in any order; of equal ones those with the smallest index."""
    boundary = -np.partition(-scores, top - 1, axis=1)[:, top - 1 : top]
    above = scores > boundary
    missing = top - above.sum(axis=1, keepdims=True)
    equal = scores == boundary
    is_selected = above | (equal & (np.cumsum(equal, axis=1) <= missing))
    return scores[is_selected].reshape(len(scores), top), rows[is_selected].reshape(len(scores), top)


def check_search(options: CorpusOptions) -> None:
    """Checks that the index which the options ask for can be used here. Raises: InvalidInput."""
    if options.embedder is None:
        check_installed()


def open_search(options: CorpusOptions) -> Search:
    """Returns the index that the options ask for, by words or by meaning. Raises: InvalidInput."""
    return open_index(options) if options.embedder is None else open_dense_index(options)


def open_dense_index(options: CorpusOptions) -> DenseIndex:
    """Returns the dense index of a corpus. Embeds all documents, unless the folder of the index has the vectors.

    Raises: InvalidInput for an empty corpus or one that cannot be read, and without an embedder.
    """
    spec = options.embedder or {}
    embedder, documents = embedders.build(spec), tuple(options.documents())
    if not documents:
        raise InvalidInput(
            "cannot search the corpus: it has no documents; give a file with one JSON object per line",
            code="search.empty_corpus",
        )
    if not options.index:
        return DenseIndex(documents, _embedded(documents, embedder), embedder)
    source = json.dumps({**source_of(Path(options.corpus).expanduser()), "embedder": spec}, sort_keys=True)
    folder = Path(options.index).expanduser()
    with rebuilt_folder(folder, source) as partial:
        if partial is not None:
            partial.mkdir(parents=True)
            np.save(partial / _VECTORS, _embedded(documents, embedder))
    return DenseIndex(documents, np.load(folder / _VECTORS, mmap_mode="r", allow_pickle=False), embedder)


def _embedded(documents: Iterable[Document], embedder: Embedder) -> Vectors:
    texts = (f"{document.title}\n{document.text}".strip() for document in documents)
    return np.concatenate([embedder.embed(part, TextKind.DOCUMENT) for part in _parts(texts, _EMBEDDED_AT_ONCE)])


def _parts(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while part := list(islice(items, size)):
        yield part
