"""Credentials: a line of text that says who holds it, sealed with the run token, so that every service of a run can
read one without asking anybody. What was revoked is told apart (`revocations`).

    afj.CLAIMS.SEAL    a join token: exchanged for one credential, or for one per exchange if it is reusable
    afc.CLAIMS.SEAL    a credential of its own

CLAIMS is a JSON object, SEAL an HMAC-SHA256 over prefix and claims, both in URL-safe base64. The key of the seal is
derived from the run token, which therefore must not be one that can be guessed.
"""

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from functools import lru_cache
from typing import Any

from astraflow.access.callers import Caller, Role
from astraflow.contract.errors import NotAuthenticated

JOIN, OWN = "afj", "afc"

_DOMAIN = b"astraflow credentials 1"
_MOST_LETTERS = 2048


class Seal:
    """Makes and reads credentials of one run."""

    def __init__(self, run_token: str) -> None:
        self._key = hmac.digest(run_token.encode(), _DOMAIN, hashlib.sha256)
        self.read = lru_cache(maxsize=4096)(self._read)
        """The holder of a credential, whether or not it has expired. Raises: NotAuthenticated."""

    def text(self, caller: Caller) -> str:
        """A caller's credential, a secret."""
        prefix = JOIN if caller.role is Role.JOINER else OWN
        claims = {
            "id": caller.id,
            "role": (caller.grants or caller.role).value,
            "until": caller.expires_at,
            "name": caller.name,
            "pool": caller.pool,
            "ca": caller.ca,
            "origin": caller.origin,
            "reusable": caller.is_reusable or "",
        }
        known = {key: value for key, value in claims.items() if value != ""}
        body = f"{prefix}.{_encode(json.dumps(known, separators=(',', ':')).encode())}"
        return f"{body}.{_encode(self._sealed(body))}"

    def _read(self, text: str) -> Caller:
        body, _, seal = text.rpartition(".")
        if not hmac.compare_digest(_encode(self._sealed(body)).encode(), seal.encode()):
            raise NotAuthenticated("the credential is not of this run: join it with a token that it minted")
        return claims_of(text)

    def _sealed(self, body: str) -> bytes:
        return hmac.digest(self._key, body.encode(), hashlib.sha256)


def is_credential(text: str) -> bool:
    """Whether a token is a credential, rather than a run token."""
    return text.startswith((f"{JOIN}.", f"{OWN}.")) and len(text) <= _MOST_LETTERS


def is_join_token(text: str) -> bool:
    """Whether a token is good for joining only."""
    return text.startswith(f"{JOIN}.")


def claims_of(text: str) -> Caller:
    """What a credential says, for its holder to read: only services can tell a true one. Raises: NotAuthenticated."""
    try:
        prefix, claims, _ = text.split(".")
        found: dict[str, Any] = json.loads(_decode(claims))
        role = Role(found["role"])
        is_join = prefix == JOIN
        return Caller(
            id=str(found["id"]),
            role=Role.JOINER if is_join else role,
            grants=role if is_join else None,
            expires_at=float(found["until"]),
            name=str(found.get("name", "")),
            pool=str(found.get("pool", "")),
            ca=str(found.get("ca", "")),
            origin=str(found.get("origin", "")),
            is_reusable=found.get("reusable") is True,
        )
    except (ValueError, KeyError, TypeError, binascii.Error, RecursionError):
        raise NotAuthenticated(
            "the token cannot be read: was it cut off? Copy the whole line, or mint another"
        ) from None


def digest(text: str) -> str:
    """What is kept of a credential instead of itself."""
    return hashlib.sha256(text.encode()).hexdigest()


def new_id() -> str:
    """Of a credential: random, and a serial number that certificates may have (positive, at most 20 bytes)."""
    return f"{secrets.randbits(127) | 1 << 126:032x}"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
