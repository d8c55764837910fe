"""What all of the accounts work with: the database, the clock, the audit, and keyed hashes of secrets."""

import hashlib
import hmac
from dataclasses import dataclass

from astraflow.runtime.clock import Clock
from web.audit.entries import Trail
from web.db import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Vault:
    """Only keyed hashes of cookies, links and tokens are ever stored."""

    database: Database
    clock: Clock
    trail: Trail

    def digest(self, text: str) -> str:
        """A hash that only this installation can make."""
        return hmac.new(self.database.secret, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()
