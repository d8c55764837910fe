"""Credentials: a line of text with the holder's claims, sealed with the run token, so that every service of a run can
verify it locally. Revocations are separate (`revocations`).

    afj.CLAIMS.SEAL    a join token: exchanged for one credential, or for one per exchange if it is reusable
    afc.CLAIMS.SEAL    a credential of one holder

CLAIMS is a JSON object, SEAL an HMAC-SHA256 over prefix and claims, both in URL-safe base64. The key of the seal is
derived from the run token, which must therefore have high entropy.
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

JOIN_TOKEN_PREFIX, CREDENTIAL_PREFIX = "afj", "afc"

_DOMAIN = b"astraflow credentials 1"
_MAX_CHARS = 2048


class CredentialSigner:
    """Signs and verifies the credentials of one run."""

    def __init__(self, run_token: str) -> None:
        self._key = hmac.digest(run_token.encode(), _DOMAIN, hashlib.sha256)
        self.read = lru_cache(maxsize=4096)(self._read)
        """Returns the holder of a credential, expired or not. Raises: NotAuthenticated."""

    def sign(self, caller: Caller) -> str:
        """Returns the credential of a caller, a secret."""
        prefix = JOIN_TOKEN_PREFIX if caller.role is Role.JOINER else CREDENTIAL_PREFIX
        claims = {
            "id": caller.id,
            "role": (caller.grants or caller.role).value,
            "until": caller.expires_at,
            "name": caller.name,
            "pool": caller.pool,
            "ca": caller.ca,
            "origin": caller.issued_from,
            "reusable": caller.is_reusable or "",
        }
        present_claims = {key: value for key, value in claims.items() if value != ""}
        body = f"{prefix}.{_encode(json.dumps(present_claims, separators=(',', ':')).encode())}"
        return f"{body}.{_encode(self._sealed(body))}"

    def _read(self, text: str) -> Caller:
        body, _, seal = text.rpartition(".")
        if not hmac.compare_digest(_encode(self._sealed(body)).encode(), seal.encode()):
            raise NotAuthenticated(
                "cannot authenticate: the credential is not of this run; join with a token of this run",
                code="credential.invalid",
            )
        return read_claims(text)

    def _sealed(self, body: str) -> bytes:
        return hmac.digest(self._key, body.encode(), hashlib.sha256)


def is_credential(text: str) -> bool:
    """Returns whether a token is a credential, rather than a run token."""
    return text.startswith((f"{JOIN_TOKEN_PREFIX}.", f"{CREDENTIAL_PREFIX}.")) and len(text) <= _MAX_CHARS


def is_join_token(text: str) -> bool:
    """Returns whether a token is a join token."""
    return text.startswith(f"{JOIN_TOKEN_PREFIX}.")


def read_claims(text: str) -> Caller:
    """Returns the claims of a credential without verifying its seal, which only services can do. Raises:
    NotAuthenticated."""
    try:
        prefix, claims, _ = text.split(".")
        fields: dict[str, Any] = json.loads(_decode(claims))
        role = Role(fields["role"])
        is_join = prefix == JOIN_TOKEN_PREFIX
        return Caller(
            id=str(fields["id"]),
            role=Role.JOINER if is_join else role,
            grants=role if is_join else None,
            expires_at=float(fields["until"]),
            name=str(fields.get("name", "")),
            pool=str(fields.get("pool", "")),
            ca=str(fields.get("ca", "")),
            issued_from=str(fields.get("origin", "")),
            is_reusable=fields.get("reusable") is True,
        )
    except (ValueError, KeyError, TypeError, binascii.Error, RecursionError):
        raise NotAuthenticated(
            "cannot read the token: it is malformed, perhaps truncated; copy the whole line, or get a new one",
            code="credential.malformed",
        ) from None


def digest(text: str) -> str:
    """Returns the digest that is stored instead of a credential."""
    return hashlib.sha256(text.encode()).hexdigest()


def new_id() -> str:
    """Returns a random credential id that is also a valid certificate serial number (positive, at most 20 bytes)."""
    return f"{secrets.randbits(127) | 1 << 126:032x}"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
