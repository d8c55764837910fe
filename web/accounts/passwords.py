"""Passwords: Argon2id with limited concurrency."""

import asyncio

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from astraflow.contract.errors import InvalidInput

MIN_LETTERS = 12
MAX_LETTERS = 512
MAX_CONCURRENT_HASHES = 2
"""Concurrent hashes; each takes 64 MiB and tens of milliseconds of a core, further logins wait."""


class Passwords:
    """Hashes and verifies passwords off the event loop.

    Source: RFC 9106, section 4: the second recommended set of parameters, which is the library's default.
    """

    def __init__(self) -> None:
        self._hasher = PasswordHasher()
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_HASHES)
        self._dummy_hash = self._hasher.hash("dummy password")

    async def hash_password(self, password: str) -> str:
        """Hash to store. Raises: InvalidInput for a password that is too short or too long."""
        if not MIN_LETTERS <= len(password) <= MAX_LETTERS:
            raise InvalidInput(
                f"cannot set the password: its length is invalid; use {MIN_LETTERS} to {MAX_LETTERS} characters, "
                "such as a sentence",
                code="account.invalid_password",
            )
        async with self._slots:
            return await asyncio.to_thread(self._hasher.hash, password)

    async def is_correct(self, stored: str | None, password: str) -> bool:
        """Verifies a password; takes equally long for an unknown user, so that user names are not revealed."""
        if len(password) > MAX_LETTERS:
            return False
        async with self._slots:
            return await asyncio.to_thread(self._matches, stored or self._dummy_hash, password) and stored is not None

    def _matches(self, stored: str, password: str) -> bool:
        try:
            return self._hasher.verify(stored, password)
        except (VerificationError, InvalidHashError):
            return False
