"""The files that pages load: read, put together and packed once, when the process starts.

A release's files never change while it runs, and their address names the release, so that browsers keep them for ever.
Styles are written one file a component and travel as one: browsers show nothing until they have every style, and would
have to follow each `@import` of `app.css` before that.
"""

import gzip
import mimetypes
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

FILES = "/static/"
"""What their addresses begin with, before the name of the release."""

KEPT = "public, max-age=31536000, immutable"

PACKED_FROM_BYTES = 500
"""Smaller ones are sent as they are."""

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_BETWEEN_LINES = re.compile(r"\s*\n\s*")

_IMPORT = re.compile(r'@import url\("(?P<path>[^"]+)"\)(?: layer\((?P<layer>[\w-]+)\))?;')


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One of them."""

    kind: str
    """Media type."""
    content: bytes
    packed: bytes | None
    """The same in gzip; None where that is not worth it."""


class Files:
    """All that is in a folder, by path below it."""

    def __init__(self, folder: Path) -> None:
        mimetypes.add_type("text/javascript", ".js")
        paths = [path for path in folder.rglob("*") if path.is_file()]
        self._files = {path.relative_to(folder).as_posix(): _read(path) for path in paths}

    def answer(self, request: Request, path: str) -> Response:
        """The file. Raises: HTTPException 404 for one that there is not."""
        file = self._files.get(path)
        if file is None:
            raise HTTPException(404)
        headers = {"content-type": file.kind, "cache-control": KEPT, "vary": "accept-encoding"}
        if file.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.packed, headers=headers | {"content-encoding": "gzip"})
        return Response(file.content, headers=headers)


@cache
def files(folder: Path) -> Files:
    """Those of a folder, read once."""
    return Files(folder)


def whole_style(path: Path) -> str:
    """A style sheet with what it imports in place of each import, in its layer."""

    def imported(found: re.Match[str]) -> str:
        text = whole_style(path.parent / found["path"])
        return f"@layer {found['layer']} {{\n{text}}}" if found["layer"] else text

    return _IMPORT.sub(imported, path.read_text(encoding="utf-8"))


def terse(style: str) -> str:
    """A style sheet without what only its readers need: comments, indentation, empty lines. A seventh of it."""
    return _BETWEEN_LINES.sub("\n", _COMMENT.sub("", style)).lstrip()


def _read(path: Path) -> File:
    content = terse(whole_style(path)).encode() if path.suffix == ".css" else path.read_bytes()
    kind = mimetypes.guess_type(path.name)[0] or "text/plain"
    packed = gzip.compress(content, mtime=0) if len(content) >= PACKED_FROM_BYTES else None
    is_text = kind.startswith("text/")
    return File(kind=f"{kind}; charset=utf-8" if is_text else kind, content=content, packed=packed)
