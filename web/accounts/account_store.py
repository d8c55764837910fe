"""Shared parts of the accounts: database, clock, audit log, and keyed hashes of secrets."""

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from sqlmodel import Session

from astraflow.runtime.clock import Clock
from web.database.db import Database
from web.security.audit_log import AuditLog

T = TypeVar("T")


class Changes:
    """Notifies open connections when sessions, tokens, roles or grants may have changed."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """Event that the next change sets. Take it before reading the state: then no change is missed."""
        return self._next

    def notify(self) -> None:
        """Wakes all waiters."""
        self._next.set()
        self._next = asyncio.Event()


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountStore:
    """Shared parts of the accounts. Only keyed hashes of cookies, links and tokens are stored."""

    database: Database
    clock: Clock
    audit_log: AuditLog
    changes: Changes = field(default_factory=Changes)

    async def change(self, work: Callable[[Session], T]) -> T:
        """Runs work that changes what a session, token or user may do, then notifies open connections."""
        result = await self.database.write(work)
        self.changes.notify()
        return result

    def digest(self, text: str) -> str:
        """Keyed hash that only this installation can compute."""
        return hmac.new(self.database.secret, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()
