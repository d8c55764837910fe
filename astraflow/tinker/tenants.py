"""Tenants: keys, quotas and the audit log."""

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from astraflow.contract.errors import InvalidInput, NotAuthenticated, NotPermitted, RateLimited
from astraflow.runtime.folders.private_files import write_private
from astraflow.tinker.config import TenantOptions

PREFIX = "tml-"
"""Begin of every key; the SDK refuses others."""
OPERATOR_KEY = "operator-key"
"""File with the key of the operator, for the page."""


class Tenants:
    """Keys of tenants, in files `keys/NAME` that are created where they are missing, and their quotas."""

    def __init__(self, folder: Path, options: Mapping[str, TenantOptions]) -> None:
        """Raises: InvalidInput for a file without a key."""
        self._options = options
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._names = {name: _digest(_read_or_create(folder / name)) for name in options}
        self._operator = _digest(_read_or_create(folder.parent / OPERATOR_KEY))
        if len({self._operator, *self._names.values()}) <= len(self._names):
            raise InvalidInput(
                f"cannot use the keys in {str(folder)!r}: two are equal; delete one of the files",
                code="tinker.equal_keys",
            )

    def authenticate(self, key: str) -> str:
        """Returns the tenant of a key. Raises: NotAuthenticated."""
        digest = _digest(key)
        matching = [name for name, own in self._names.items() if hmac.compare_digest(own, digest)]
        if not matching:
            raise NotAuthenticated(
                "cannot use the server: the key in X-API-Key is missing or unknown; set TINKER_API_KEY",
                code="tinker.unknown_key",
            )
        return matching[0]

    def visible(self, key: str) -> tuple[str, ...]:
        """Returns the tenants that a person with a key may see: all for that of the operator. Raises:
        NotAuthenticated."""
        is_operator = hmac.compare_digest(self._operator, _digest(key))
        return tuple(self._names) if is_operator else (self.authenticate(key),)

    def check_quota(self, tenant: str, *, tokens: int, waiting: int) -> None:
        """Checks the tokens that a tenant has used, and its requests without an answer.

        Raises: NotPermitted when its tokens are used up; RateLimited when too many requests wait.
        """
        options = self._options[tenant]
        if options.max_tokens is not None and tokens >= options.max_tokens:
            raise NotPermitted(
                f"cannot accept the request: tenant {tenant!r} has used its max_tokens, {options.max_tokens}; ask the "
                "operator of the server for more",
                code="tinker.quota_exhausted",
            )
        if waiting >= options.max_waiting:
            raise RateLimited(
                f"cannot accept the request: {options.max_waiting} requests of tenant {tenant!r} wait; send it again "
                "when some are answered",
                code="tinker.too_many_requests",
            )

    def check_disk(self, tenant: str, *, used: int) -> None:
        """Checks the bytes that a tenant keeps. From any thread. Raises: NotPermitted when there are too many."""
        limit = self._options[tenant].max_disk_bytes
        if limit is not None and used >= limit:
            raise NotPermitted(
                f"cannot save: tenant {tenant!r} keeps {used} bytes, its max_disk_bytes is {limit}; delete "
                "checkpoints, close sessions that are over, or ask the operator of the server for more",
                code="tinker.disk_full",
            )


class AuditLog:
    """Actions of tenants, one JSON object a line, in the order in which they happened."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def write(self, tenant: str, action: str, subject: str, *, code: str = "") -> None:
        """Appends an action. code: of the error that refused it."""
        entry = {"at": round(time.time(), 3), "tenant": tenant, "action": action, "subject": subject[:300]}
        self._file.write(json.dumps(entry | ({"refused": code} if code else {})) + "\n")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _read_or_create(path: Path) -> str:
    if not path.exists():
        write_private(path, PREFIX + secrets.token_urlsafe(32) + "\n")
    key = path.read_text().strip()
    if not key.startswith(PREFIX) or len(key) < 16:
        raise InvalidInput(
            f"cannot use the key in {str(path)!r}: it must begin with {PREFIX!r} and have 16 characters or more; "
            "correct it, or delete the file for a new key",
            code="tinker.invalid_key",
        )
    return key


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
