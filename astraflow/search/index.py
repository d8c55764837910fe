"""Full-text index of a corpus with BM25, by the package `tantivy`."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.imports import needs_extra
from astraflow.search.base import MAX_QUERY_CHARACTERS, Document, Hit, check_sizes, rebuilt_folder, source_of
from astraflow.search.corpus import CorpusOptions

if TYPE_CHECKING:
    import tantivy

_TOKENIZER = "astraflow_english"
_MAX_TERMS = 32
"""Different words of a query that count."""
_FREQUENT_DOCUMENTS, _FREQUENT_SHARE = 10_000, 0.1
"""A word in more documents than both is frequent: its postings cost milliseconds, and it hardly changes the order."""
_MAX_URL_CHARACTERS = 2000
"""Longer addresses are not found."""
_HEAP_BYTES = 256 * 2**20


class SearchIndex:
    """Documents by words and by address. The order of equal scores is the order of the corpus, for an index that was
    built in one piece: a corpus of a few hundred megabytes, or the same index folder on all nodes."""

    def __init__(self, index: "tantivy.Index", analyzer: "tantivy.TextAnalyzer") -> None:
        self._index = index
        self._analyzer = analyzer
        self._searcher = index.searcher()

    @property
    def size(self) -> int:
        """Number of documents."""
        return self._searcher.num_docs

    def search(self, query: str, top: int) -> list[Hit]:
        """Returns the best documents, best first. Words are reduced to their stem; the most frequent English words do
        not count, and those that are frequent in a large corpus count only in a query without others."""
        terms = self._terms(query)
        if not terms or top < 1:
            return []
        tantivy = _tantivy()
        clauses = [
            (tantivy.Occur.Should, tantivy.Query.term_query(self._index.schema, "content", term, "freq"))
            for term in terms
        ]
        hits = self._searcher.search(tantivy.Query.boolean_query(clauses), top, count=False).hits
        return [Hit(document=self._document(address), score=float(score)) for score, address in hits]

    def _terms(self, query: str) -> list[str]:
        words = list(dict.fromkeys(self._analyzer.analyze(query[:MAX_QUERY_CHARACTERS])))[:_MAX_TERMS]
        documents = {word: self._searcher.doc_freq("content", word) for word in words}
        limit = max(_FREQUENT_DOCUMENTS, _FREQUENT_SHARE * self.size)
        indexed_words = [word for word in words if documents[word]]
        return [word for word in indexed_words if documents[word] <= limit] or indexed_words

    def page(self, url: str) -> Document | None:
        """Returns the first document with this address; None without one."""
        if not 0 < len(url) <= _MAX_URL_CHARACTERS:
            return None
        query = _tantivy().Query.term_query(self._index.schema, "url", url, "basic")
        hits = self._searcher.search(query, 1, count=False).hits
        return self._document(hits[0][1]) if hits else None

    async def retrieve(self, queries: Sequence[str], top: int) -> list[list[Hit]]:
        """See `Search.retrieve`. Runs in a thread."""
        check_sizes(len(queries), top)
        return await asyncio.to_thread(lambda: [self.search(query, top) for query in queries])

    async def access(self, urls: Sequence[str]) -> list[Document | None]:
        """See `Search.access`."""
        check_sizes(len(urls), 1)
        return await asyncio.to_thread(lambda: [self.page(url) for url in urls])

    def _document(self, address: "tantivy.DocAddress") -> Document:
        stored: Any = self._searcher.doc(address).get_first("document")
        return Document(**json.loads(stored))


def check_installed() -> None:
    """Checks that the index can be used here. Raises: InvalidInput."""
    _tantivy()


def open_index(options: CorpusOptions) -> SearchIndex:
    """Returns the index of a corpus. Reads all documents, unless the folder of the index has it.

    Raises: InvalidInput for a corpus that cannot be read, or without the package `tantivy`.
    """
    if not options.index:
        return build_index(options.documents())
    folder = Path(options.index).expanduser()
    with rebuilt_folder(folder, json.dumps(source_of(Path(options.corpus).expanduser()))) as partial:
        if partial is not None:
            build_index(options.documents(), folder=partial)
    return _opened(_tantivy().Index(_schema(), path=str(folder)))


def build_index(documents: Iterable[Document], *, folder: Path | None = None) -> SearchIndex:
    """Returns the index of documents, in memory or in a new folder. Raises: InvalidInput for an empty corpus."""
    tantivy = _tantivy()
    if folder is not None:
        folder.mkdir(parents=True)
    index = tantivy.Index(_schema(), path=str(folder)) if folder else tantivy.Index(_schema())
    index.register_tokenizer(_TOKENIZER, _analyzer())
    writer = index.writer(heap_size=_HEAP_BYTES, num_threads=1)  # one thread keeps the order of the corpus
    for document in documents:
        content = f"{document.title}\n{document.text}"
        stored = json.dumps(asdict(document), ensure_ascii=False).encode()
        writer.add_document(
            tantivy.Document(document=stored, url=document.url[: _MAX_URL_CHARACTERS + 1], content=content)
        )
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    opened = _opened(index)
    if not opened.size:
        raise InvalidInput(
            "cannot search the corpus: it has no documents; give a file with one JSON object per line",
            code="search.empty_corpus",
        )
    return opened


def _opened(index: "tantivy.Index") -> SearchIndex:
    analyzer = _analyzer()
    index.register_tokenizer(_TOKENIZER, analyzer)
    return SearchIndex(index, analyzer)


def _schema() -> "tantivy.Schema":
    builder: tantivy.SchemaBuilder = _tantivy().SchemaBuilder()
    builder.add_bytes_field("document", stored=True)
    builder.add_text_field("url", stored=False, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("content", stored=False, tokenizer_name=_TOKENIZER, index_option="freq")
    return builder.build()


def _analyzer() -> "tantivy.TextAnalyzer":
    library = _tantivy()
    filters = (
        library.Filter.remove_long(40),
        library.Filter.lowercase(),
        library.Filter.ascii_fold(),
        library.Filter.stopword("english"),
        library.Filter.stemmer("english"),
    )
    builder: tantivy.TextAnalyzerBuilder = library.TextAnalyzerBuilder(library.Tokenizer.simple())
    for step in filters:
        builder = builder.filter(step)
    return builder.build()


def _tantivy() -> Any:
    with needs_extra("search", to="search"):
        import tantivy
    return tantivy
