"""Passwords: Argon2id with limited concurrency."""

import asyncio

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from astraflow.contract.errors import InvalidInput

MIN_LETTERS = 12
MAX_LETTERS = 512
MAX_CONCURRENT_HASHES = 2
"""Maximum number of concurrent hashes; further logins wait. A hash takes 64 MiB and tens of milliseconds of a core."""


class Passwords:
    """Hashes and verifies passwords off the event loop.

    Source: RFC 9106, section 4: the second recommended set of parameters, which is the library's default.
    """

    def __init__(self) -> None:
        self._hasher = PasswordHasher()
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_HASHES)
        self._dummy_hash = self._hasher.hash("dummy password")

    async def hash_password(self, password: str) -> str:
        """Returns the hash to store. Raises: InvalidInput for a password that is too short or too long."""
        if not MIN_LETTERS <= len(password) <= MAX_LETTERS:
            raise InvalidInput(
                f"cannot set the password: its length is invalid; use {MIN_LETTERS} to {MAX_LETTERS} characters, "
                "such as a sentence",
                code="account.invalid_password",
            )
        async with self._slots:
            return await asyncio.to_thread(self._hasher.hash, password)

    async def is_correct(self, stored: str | None, password: str) -> bool:
        """Returns whether a password is correct. It takes equally long for unknown users, to reveal no user names."""
        if len(password) > MAX_LETTERS:
            return False
        async with self._slots:
            return await asyncio.to_thread(self._matches, stored or self._dummy_hash, password) and stored is not None

    def _matches(self, stored: str, password: str) -> bool:
        try:
            return self._hasher.verify(stored, password)
        except (VerificationError, InvalidHashError):
            return False
