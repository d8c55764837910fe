"""What all of the accounts work with: the database, the clock, the audit, and keyed hashes of secrets."""

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from sqlmodel import Session

from astraflow.runtime.clock import Clock
from web.audit.entries import Trail
from web.db import Database

T = TypeVar("T")


class Changes:
    """Notifies open connections when sessions, tokens, roles or grants may have changed."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """Event that the next change sets. Take it before you look: then no change is missed."""
        return self._next

    def notify(self) -> None:
        """Wakes everything that waits for a change."""
        self._next.set()
        self._next = asyncio.Event()


@dataclass(frozen=True, slots=True, kw_only=True)
class Vault:
    """Only keyed hashes of cookies, links and tokens are ever stored."""

    database: Database
    clock: Clock
    trail: Trail
    changes: Changes = field(default_factory=Changes)

    async def change(self, work: Callable[[Session], T]) -> T:
        """Runs work that changes what a session, token or user may do, then notifies open connections."""
        done = await self.database.do(work)
        self.changes.notify()
        return done

    def digest(self, text: str) -> str:
        """A hash that only this installation can make."""
        return hmac.new(self.database.secret, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()
