"""Passwords: Argon2id, a few at a time."""

import asyncio

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from astraflow.contract.errors import InvalidInput

SHORTEST = 12
LONGEST = 512
AT_ONCE = 2
"""Each takes 64 MiB and tens of milliseconds of a core; more logins than this wait."""


class Passwords:
    """Hashes and checks them, off the event loop.

    Source: RFC 9106, section 4: the second recommended set of parameters, which is the library's default.
    """

    def __init__(self) -> None:
        self._hasher = PasswordHasher()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._nobody = self._hasher.hash("the password of nobody")

    async def hashed(self, password: str) -> str:
        """What to store. Raises: InvalidInput for one that is too short or too long."""
        if not SHORTEST <= len(password) <= LONGEST:
            raise InvalidInput(f"a password has {SHORTEST} to {LONGEST} characters; a sentence is easy to remember")
        async with self._slots:
            return await asyncio.to_thread(self._hasher.hash, password)

    async def is_right(self, stored: str | None, password: str) -> bool:
        """Whether it is the password; takes as long for a user that there is not, so that nobody can tell."""
        if len(password) > LONGEST:
            return False
        async with self._slots:
            return await asyncio.to_thread(self._matches, stored or self._nobody, password) and stored is not None

    def _matches(self, stored: str, password: str) -> bool:
        try:
            return self._hasher.verify(stored, password)
        except (VerificationError, InvalidHashError):
            return False
