"""Replaces names (pools, nodes, providers, types, regions) with tokens for a model, and resolves them again.

A token is a keyed hash: it reveals nothing, is the same in every wake of a run, and cannot be forged by choosing a
name. Only issued tokens can be resolved.
"""

import hashlib
import re
import secrets
from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.folders.private_files import write_private

KEY_BYTES = 16
_TOKEN = re.compile(r"\b(?:pool|node|provider|type|region|run|flow|policy)-[0-9a-f]{8,16}\b")
SINGLE_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,47}")
"""Names that may be shown: a single word, never a sentence."""


class Names:
    """Two-way map of names and tokens, in memory."""

    def __init__(self, key: bytes, *, shows_names: bool = False) -> None:
        """shows_names: shows real names, except of nodes, which choose their own."""
        self._key = key
        self._shows_names = shows_names
        self._names: dict[str, tuple[str, str]] = {}
        """Token -> kind and name."""
        self._tokens: dict[tuple[str, str], str] = {}

    def token(self, kind: str, name: str) -> str:
        """Token for a name; empty for an empty name. kind: pool, node, provider, type, region, run, flow,
        policy."""
        if not name:
            return ""
        issued = self._tokens.get((kind, name))
        return issued if issued is not None else self._token_for(kind, name)

    def name(self, kind: str, token: str) -> str:
        """Name of a token. Raises: InvalidInput for a token that was not issued."""
        entry = self._names.get(token)
        if entry is None or entry[0] != kind:
            raise InvalidInput(
                f"cannot resolve the {kind} token: it was not issued; take one from a report",
                code="maintainer.unknown_token",
            )
        return entry[1]

    def reveal(self, text: str) -> str:
        """Text of a model for people: tokens become names, unprintable characters become spaces."""
        printable = "".join(letter if letter.isprintable() else " " for letter in text)
        return _TOKEN.sub(lambda match: self._names.get(match[0], ("", match[0]))[1], printable).strip()

    def hash(self, text: str) -> str:
        """Keyed hash of a text, for comparing texts without showing them."""
        return hashlib.blake2b(text.encode(), key=self._key, digest_size=4).hexdigest()

    def _token_for(self, kind: str, name: str) -> str:
        token = name if self._shows_names and kind != "node" and SINGLE_WORD.fullmatch(name) else ""
        digest = hashlib.blake2b(f"{kind} {name}".encode(), key=self._key, digest_size=8).hexdigest()
        for length in (8, 12, 16):
            token = token or f"{kind}-{digest[:length]}"
            if self._names.get(token, (kind, name)) == (kind, name):
                break
            token = ""
        self._names[token] = (kind, name)
        self._tokens[kind, name] = token
        return token


def load_or_create_key(path: Path) -> bytes:
    """Key of the names of a run, created on first use, readable by its owner only. Raises: InvalidInput."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_private(path, secrets.token_bytes(KEY_BYTES))
        key = path.read_bytes()
    except OSError as problem:
        raise InvalidInput(
            f"cannot use the names key {str(path)!r}: {problem.strerror}; check the path and its permissions",
            code="maintainer.names_key_unusable",
        ) from None
    if len(key) != KEY_BYTES:
        raise InvalidInput(
            f"cannot use the names key {str(path)!r}: {len(key)} bytes instead of {KEY_BYTES}; remove it to create one",
            code="maintainer.names_key_unusable",
        )
    return key
