"""Ledger of join tokens and credentials, stored over restarts. It holds digests of secrets, never the secrets."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from astraflow.access.callers import Caller, Role
from astraflow.access.credentials import CREDENTIAL_PREFIX, JOIN_TOKEN_PREFIX
from astraflow.dataflow.storage.journal import Journal
from astraflow.runtime.clock import Clock

_COLUMNS = "id, kind, state, role, name, pool, until, digest, key, origin, is_reusable, uses, most_uses"
_SELECT = f"select {_COLUMNS} from credentials"  # noqa: S608 (a constant)
_INSERT = f"insert or replace into credentials ({_COLUMNS}) values ({', '.join('?' * 13)})"  # noqa: S608 (the same)


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialEntry:
    """A join token or a credential.

    minted ──exchanged, if for single use──► used            issued
       └────────────────┬───────────────────────┘                │
                        └──revoked; deleted on expiry────────────┘
    """

    holder: Caller
    digest: str
    """Digest of the token's or credential's text."""
    state: str
    """"minted", "used", "issued" or "revoked"."""
    key: str = ""
    """Digest of the public key: of a credential, or of the exchange that used a join token."""
    uses: int = 0
    """Number of exchanges of a join token."""
    max_uses: int = 1
    """Exchanges after which a join token is refused; 0: no limit."""


class CredentialLedger:
    """Unexpired entries by id; every change is journaled."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._entries = {entry.holder.id: entry for entry in self._saved()}

    def __iter__(self) -> Iterator[CredentialEntry]:
        return iter(list(self._entries.values()))

    def get(self, id_: str) -> CredentialEntry | None:
        """Returns the entry of this id; None when it is unknown or expired."""
        return self._entries.get(id_)

    def valid_credentials(self, role: Role, name: str) -> list[CredentialEntry]:
        """Returns the credentials of this role and name that are neither expired nor revoked."""
        now = self._clock.wall()
        return [
            entry
            for entry in self._entries.values()
            if entry.state == "issued"
            and (entry.holder.role, entry.holder.name) == (role, name)
            and entry.holder.expires_at > now
        ]

    def put(self, entry: CredentialEntry) -> None:
        """Adds or replaces an entry, and deletes expired entries."""
        holder, now = entry.holder, self._clock.wall()
        self._entries = {id_: saved for id_, saved in self._entries.items() if saved.holder.expires_at > now}
        self._entries[holder.id] = entry
        self._journal.put("delete from credentials where until <= ?", now)
        self._journal.put(
            _INSERT,
            holder.id,
            JOIN_TOKEN_PREFIX if holder.role is Role.JOINER else CREDENTIAL_PREFIX,
            entry.state,
            (holder.grants or holder.role).value,
            holder.name,
            holder.pool,
            holder.expires_at,
            entry.digest,
            entry.key,
            holder.issued_from,
            int(holder.is_reusable),
            entry.uses,
            entry.max_uses,
        )

    def _saved(self) -> list[CredentialEntry]:
        """Returns the stored entries. The holder of one that cannot be read has to join again."""
        delete = "delete from credentials where id = ?"
        return self._journal.decoded(_SELECT, _entry, what="credential", delete=delete)


def _entry(row: tuple[Any, ...]) -> CredentialEntry:
    id_, kind, state, role, name, pool, until, digest, key, origin, is_reusable, uses, max_uses = row
    is_token = kind == JOIN_TOKEN_PREFIX
    holder = Caller(
        id=id_,
        role=Role.JOINER if is_token else Role(role),
        grants=Role(role) if is_token else None,
        expires_at=float(until),
        name=name,
        pool=pool,
        issued_from=origin,
        is_reusable=bool(is_reusable),
    )
    return CredentialEntry(holder=holder, digest=digest, state=state, key=key, uses=int(uses), max_uses=int(max_uses))
