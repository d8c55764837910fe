"""Corpora: files with one document per line, and documents of generated facts."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import field_validator, model_validator

from astraflow.contract.errors import InvalidInput
from astraflow.datasets.generated.facts import FactOptions, FactWorld
from astraflow.models.base import embedders
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.search.base import Document

_FIELDS = ("id", "title", "url", "text")


class CorpusOptions(Config):
    """Documents to search: a file, or generated facts."""

    corpus: Annotated[str, SettableBy.DATA_LOCATION] = ""
    """File with one JSON object per line: `id`, `title`, `url`, `text`. The last one is required."""
    facts: FactOptions | None = None
    """Generated facts, the same as those of the dataset `facts` with these options."""
    index: Annotated[str, SettableBy.DATA_LOCATION] = ""
    """Folder for the index of the file, which is built once; empty: in memory, built at every start."""
    embedder: Annotated[dict[str, Any] | None, SettableBy.RECIPE, embedders] = None
    """Dense retrieval: documents are found by the meaning of their texts, with vectors of this embedder; None: by their
    words, with BM25."""

    @field_validator("embedder")
    @classmethod
    def _check_embedder(cls, spec: dict[str, Any] | None) -> dict[str, Any] | None:
        if spec is not None:
            embedders.check(spec)
        return spec

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.corpus and self.facts:
            raise ValueError("a search has one corpus; give one of `corpus` and `facts`")
        if self.index and not self.corpus:
            raise ValueError("an index folder is for a file; give `corpus`, or leave out `index`")
        return self

    def check(self) -> None:
        """Checks that a corpus is given. Raises: InvalidInput."""
        if not self.corpus and self.facts is None:
            raise InvalidInput(
                "cannot search: no corpus is given; give a file as `corpus`, or generated `facts`",
                code="search.no_corpus",
            )

    def documents(self) -> Iterable[Document]:
        """Returns the documents. Raises: InvalidInput for a file that cannot be read, while iterating."""
        return (
            read_corpus(Path(self.corpus).expanduser()) if self.corpus else fact_documents(self.facts or FactOptions())
        )


def read_corpus(path: Path) -> Iterator[Document]:
    """Yields the documents of a file. Raises: InvalidInput."""
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _document(line, f"{path}, line {number}", str(number))
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(
            f"cannot read the corpus {str(path)!r}: {problem}; give a file with one JSON object per line",
            code="search.unreadable_corpus",
        ) from problem


def fact_documents(options: FactOptions) -> Iterator[Document]:
    """Yields the documents of generated facts."""
    world = FactWorld(options)
    for entity in range(world.entities):
        page = world.page(entity)
        yield Document(id=str(entity), title=page.title, url=page.url, text=page.text)


def _document(line: str, where: str, number: str) -> Document:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise InvalidInput(
            f"cannot read {where}: not JSON: {problem}; correct the line", code="search.invalid_document"
        ) from None
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise InvalidInput(
            f"cannot read {where}: it has no field `text` with a text; correct the line", code="search.invalid_document"
        )
    values = {name: str(row.get(name, "")) for name in _FIELDS}
    return Document(**{**values, "id": values["id"] or number})
