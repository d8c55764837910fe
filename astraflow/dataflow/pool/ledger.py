"""The ledger of join tokens and credentials, kept over restarts. It holds digests of secrets, never the secrets."""

from collections.abc import Iterator
from dataclasses import dataclass

from astraflow.access.callers import Caller, Role
from astraflow.access.credentials import JOIN, OWN
from astraflow.dataflow.journal import Journal
from astraflow.runtime.clock import Clock

_COLUMNS = "id, kind, state, role, name, pool, until, digest, key, origin, is_reusable, uses, most_uses"
_SELECT = f"select {_COLUMNS} from credentials"  # noqa: S608 (a constant)
_INSERT = f"insert or replace into credentials ({_COLUMNS}) values ({', '.join('?' * 13)})"  # noqa: S608 (the same)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A join token, or a credential.

    minted ──exchanged, if it is for one use──► used          issued
       └────────────────┬───────────────────────┘                │
                        └──revoked, expired: forgotten───────────┘
    """

    holder: Caller
    digest: str
    """Digest of its text."""
    state: str
    """minted, used, issued or revoked."""
    key: str = ""
    """Digest of the public key: of a credential, or of the exchange that used up a join token."""
    uses: int = 0
    """Of a join token: how often it was exchanged."""
    most_uses: int = 1
    """Of a join token: exchanges after which it is refused; 0 for no limit."""


class Ledger:
    """Entries that have not expired, by id; every change goes to the journal."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._entries = {entry.holder.id: entry for entry in self._saved()}

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def get(self, id_: str) -> Entry | None:
        """The entry of this id; None when it is not known (any more)."""
        return self._entries.get(id_)

    def live(self, role: Role, name: str) -> list[Entry]:
        """Credentials of this role and name that are neither expired nor revoked."""
        now = self._clock.wall()
        return [
            entry
            for entry in self._entries.values()
            if entry.state == "issued"
            and (entry.holder.role, entry.holder.name) == (role, name)
            and entry.holder.expires_at > now
        ]

    def keep(self, entry: Entry) -> None:
        """Adds or replaces an entry, and forgets those that have expired."""
        holder, now = entry.holder, self._clock.wall()
        self._entries = {one: kept for one, kept in self._entries.items() if kept.holder.expires_at > now}
        self._entries[holder.id] = entry
        self._journal.put("delete from credentials where until <= ?", now)
        self._journal.put(
            _INSERT,
            holder.id,
            JOIN if holder.role is Role.JOINER else OWN,
            entry.state,
            (holder.grants or holder.role).value,
            holder.name,
            holder.pool,
            holder.expires_at,
            entry.digest,
            entry.key,
            holder.origin,
            int(holder.is_reusable),
            entry.uses,
            entry.most_uses,
        )

    def _saved(self) -> Iterator[Entry]:
        for id_, kind, state, role, name, pool, until, known_by, key, origin, is_reusable, *uses in self._journal.rows(
            _SELECT
        ):
            is_token = kind == JOIN
            holder = Caller(
                id=id_,
                role=Role.JOINER if is_token else Role(role),
                grants=Role(role) if is_token else None,
                expires_at=until,
                name=name,
                pool=pool,
                origin=origin,
                is_reusable=bool(is_reusable),
            )
            yield Entry(holder=holder, digest=known_by, state=state, key=key, uses=uses[0], most_uses=uses[1])
