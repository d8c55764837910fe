"""Names for the outside: pools, nodes and the rest go to a model as tokens, and come back as what they are.

A token is a keyed hash: it tells nothing, is the same in every wake of a run, and cannot be made up by whoever chooses
names. Only what was told can be named: a token that was never given out is refused.
"""

import hashlib
import re
import secrets
from pathlib import Path

from astraflow.contract.errors import InvalidInput

KEY_BYTES = 16
_TOKEN = re.compile(r"\b(?:pool|node|provider|type|region)-[0-9a-f]{8,16}\b")
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,47}")
"""A name that may be shown where names are: one word, no sentence."""


class Names:
    """A two-way map, kept in this process."""

    def __init__(self, key: bytes, *, shows_names: bool = False) -> None:
        """shows_names: of everything but nodes, whose names are theirs to choose."""
        self._key = key
        self._shows_names = shows_names
        self._names: dict[str, tuple[str, str]] = {}
        """Token -> kind and name."""
        self._tokens: dict[tuple[str, str], str] = {}

    def token(self, kind: str, name: str) -> str:
        """What a model is told instead of a name; empty for an empty one. kind: pool, node, provider, type, region."""
        if not name:
            return ""
        known = self._tokens.get((kind, name))
        return known if known is not None else self._made(kind, name)

    def name(self, kind: str, token: str) -> str:
        """What a token stands for. Raises: InvalidInput for one that was not given out."""
        found = self._names.get(token)
        if found is None or found[0] != kind:
            raise InvalidInput(f"no {kind} has that token: take one from a report")
        return found[1]

    def reveal(self, text: str) -> str:
        """A model's text for people: tokens become names again, and nothing in it moves a cursor or a line."""
        plain = "".join(letter if letter.isprintable() else " " for letter in text)
        return _TOKEN.sub(lambda match: self._names.get(match[0], ("", match[0]))[1], plain).strip()

    def hash(self, text: str) -> str:
        """Of any text, for telling whether two are alike."""
        return hashlib.blake2b(text.encode(), key=self._key, digest_size=4).hexdigest()

    def _made(self, kind: str, name: str) -> str:
        token = name if self._shows_names and kind != "node" and _PLAIN.fullmatch(name) else ""
        digest = hashlib.blake2b(f"{kind} {name}".encode(), key=self._key, digest_size=8).hexdigest()
        for length in (8, 12, 16):
            token = token or f"{kind}-{digest[:length]}"
            if self._names.get(token, (kind, name)) == (kind, name):
                break
            token = ""
        self._names[token] = (kind, name)
        self._tokens[kind, name] = token
        return token


def kept_key(path: Path) -> bytes:
    """The key of a run, made at first; readable by its owner only. Raises: InvalidInput."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.touch(mode=0o600)
            path.write_bytes(secrets.token_bytes(KEY_BYTES))
        key = path.read_bytes()
    except OSError as problem:
        raise InvalidInput(f"the key of names {path} cannot be used: {problem.strerror}") from None
    if len(key) != KEY_BYTES:
        raise InvalidInput(f"{path} is no key of names: remove it, and a new one is made")
    return key
