"""Static files: read, bundled and compressed once, when the process starts.

A release's files never change while it runs, and their URLs contain the build stamp, so browsers cache them
indefinitely. Styles are written one file per component and sent as one: browsers render nothing until they have all
styles, and would have to follow each `@import` of `app.css` before that.
"""

import gzip
import mimetypes
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jsmin import jsmin
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

FILES = "/static/"
"""Prefix of their paths, before the build stamp."""

CACHE_CONTROL = "public, max-age=31536000, immutable"

MIN_GZIP_BYTES = 500
"""Minimum size for compression."""

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_BETWEEN_LINES = re.compile(r"\s*\n\s*")

_IMPORT = re.compile(r'@import url\("(?P<path>[^"]+)"\)(?: layer\((?P<layer>[\w-]+)\))?;')


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFile:
    """Static file."""

    kind: str
    """Media type."""
    content: bytes
    gzipped: bytes | None
    """Content compressed with gzip; None if it is too small."""


class StaticFiles:
    """Static files of a folder, by relative path."""

    def __init__(self, folder: Path) -> None:
        mimetypes.add_type("text/javascript", ".js")
        paths = [path for path in folder.rglob("*") if path.is_file()]
        self._files = {path.relative_to(folder).as_posix(): _read(path) for path in paths}

    def response(self, request: Request, path: str) -> Response:
        """Response with the file. Raises: HTTPException 404 for an unknown path."""
        file = self._files.get(path)
        if file is None:
            raise HTTPException(404)
        headers = {"content-type": file.kind, "cache-control": CACHE_CONTROL, "vary": "accept-encoding"}
        if file.gzipped is not None and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.gzipped, headers=headers | {"content-encoding": "gzip"})
        return Response(file.content, headers=headers)


@cache
def files(folder: Path) -> StaticFiles:
    """Static files of a folder, read once."""
    return StaticFiles(folder)


def bundle_css(path: Path) -> str:
    """Style sheet with its imports inlined, each in its layer."""

    def imported(match: re.Match[str]) -> str:
        text = bundle_css(path.parent / match["path"])
        return f"@layer {match['layer']} {{\n{text}}}" if match["layer"] else text

    return _IMPORT.sub(imported, path.read_text(encoding="utf-8"))


def minify_css(style: str) -> str:
    """Style sheet without comments, indentation and empty lines; saves a seventh."""
    return _BETWEEN_LINES.sub("\n", _COMMENT.sub("", style)).lstrip()


def minify_js(script: str) -> str:
    """Script without comments and superfluous space. Its template literals have none inside their expressions, which
    the minifier would take for the end of the outer one."""
    return str(jsmin(script, quote_chars="'\"`"))


def _read(path: Path) -> StaticFile:
    if path.suffix == ".css":
        content = minify_css(bundle_css(path)).encode()
    elif path.suffix == ".js" and ".min." not in path.name:
        content = minify_js(path.read_text(encoding="utf-8")).encode()
    else:
        content = path.read_bytes()
    kind = mimetypes.guess_type(path.name)[0] or "text/plain"
    gzipped = gzip.compress(content, mtime=0) if len(content) >= MIN_GZIP_BYTES else None
    is_text = kind.startswith("text/")
    return StaticFile(kind=f"{kind}; charset=utf-8" if is_text else kind, content=content, gzipped=gzipped)
