"""The export as one HTML file: the document rendered without scripts, its data, its charts, and a hash of the whole."""

import base64
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from web.components.rendering import STATIC, rendered

ASSETS = Path(__file__).parent / "assets"

EMPTY_HASH = "0" * 64
"""Stands in the file for its hash while the hash is computed."""


def export_html(content: Mapping[str, Any]) -> bytes:
    """Returns the file. Its hash is that of its bytes with zeros in place of the hash."""
    data = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":")).replace("<", "\\u003c")
    style, scripts = _style(), _scripts()
    text = rendered(
        "exports/export.html",
        content=content,
        data=data,
        style=style,
        scripts=scripts,
        policy=_policy(style, scripts),
        hash=EMPTY_HASH,
        time_text=lambda at: "" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC",
    )
    digest = hashlib.sha256(text.encode()).hexdigest()
    return text.replace(EMPTY_HASH, digest).encode()


def hash_of(file: bytes) -> str:
    """Returns the hash in a file that `export_html` made."""
    return file.partition(b'name="astraflow-sha256" content="')[2][:64].decode("ascii", "replace")


@cache
def _style() -> str:
    vendored = STATIC / "vendor" / "uPlot-1.6.32.min.css"
    return f"{vendored.read_text()}\n{(ASSETS / 'export.css').read_text()}"


@cache
def _scripts() -> tuple[str, ...]:
    files = (STATIC / "vendor" / "uPlot-1.6.32.iife.min.js", ASSETS / "export.js")
    return tuple(file.read_text() for file in files)


def _policy(style: str, scripts: tuple[str, ...]) -> str:
    """Returns the content security policy: only these scripts and this style, and no request at all."""
    allowed = " ".join(map(_source, scripts))
    return f"default-src 'none'; script-src {allowed}; style-src {_source(style)}; base-uri 'none'; form-action 'none'"


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
