"""Folders of indexes: each is built once for the state of its corpus; and the sizes of requests."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.search.base import MAX_QUERIES, MAX_TOP

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
