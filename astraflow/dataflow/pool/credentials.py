"""Who was let in: join tokens and what came of them, kept over restarts. Of secrets, only digests."""

from dataclasses import dataclass, field, replace

from astraflow.access.authority import Authority, key_digest
from astraflow.access.callers import OF_POOLS, Caller, Role
from astraflow.access.credentials import JOIN, OWN, Seal, digest, new_id
from astraflow.access.revocations import Revocations
from astraflow.contract.errors import AstraFlowError, Conflict, InvalidInput, NotAuthenticated, NotPermitted
from astraflow.contract.ids import Name, NodeId, PolicyId, PoolId
from astraflow.dataflow.journal import Journal
from astraflow.dataflow.reporting.events import Events
from astraflow.runtime.clock import Clock

JOIN_TOKEN_S = 15 * 60.0
MOST_JOIN_TOKEN_S = 24 * 3600.0
CREDENTIAL_S = 24 * 3600.0

_SELECT = "select id, kind, state, role, name, pool, until, digest, key from credentials"
_INSERT = "insert or replace into credentials values (?, ?, ?, ?, ?, ?, ?, ?, ?)"


@dataclass(slots=True, kw_only=True)
class _Entry:
    """A join token, or a credential that somebody holds.

    minted ──used by a key──► used          issued
       └────────┬───────────────┘             │
                └──revoked, expired: forgotten┴
    """

    holder: Caller
    digest: str
    """Of its text."""
    state: str
    """minted, used, issued or revoked."""
    key: str = ""
    """Digest of the public key that a join token was used for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A credential of somebody's own."""

    credential: str = field(repr=False)
    certificate: bytes
    """PEM; empty without an authority."""
    expires_at: float


class Credentials:
    """Mints join tokens, exchanges each for one credential, renews and revokes those."""

    def __init__(
        self,
        *,
        seal: Seal,
        revoked: Revocations,
        authority: Authority | None,
        pin: str,
        policies: frozenset[str],
        journal: Journal,
        events: Events,
        clock: Clock,
    ) -> None:
        """pin: of the authority, for those who join over TLS; empty for a service without."""
        self._seal = seal
        self._revoked = revoked
        self._authority = authority
        self._pin = pin
        self._policies = policies
        self._journal = journal
        self._events = events
        self._clock = clock
        self._entries = {entry.holder.id: entry for entry in self._saved()}
        self._revoke_again()

    def mint(self, role: Role, *, name: str, pool: str, valid_s: float, actor: str, reason: str) -> tuple[str, Caller]:
        """A join token and what it says. Raises: InvalidInput for what nobody could join as."""
        _check(role, name, pool, policies=self._policies, is_name_needed=role is not Role.NODE)
        if not 0 <= valid_s <= MOST_JOIN_TOKEN_S:
            raise InvalidInput(f"a join token cannot be good for {valid_s:g} s: give up to {MOST_JOIN_TOKEN_S:g}")
        if not reason.strip():
            raise InvalidInput("a join token needs the reason for which it is minted")
        holder = Caller(
            id=new_id(),
            role=Role.JOINER,
            grants=role,
            expires_at=float(round(self._clock.wall() + (valid_s or JOIN_TOKEN_S))),
            name=name,
            pool=pool,
            ca=self._pin,
        )
        text = self._seal.text(holder)
        self._keep(_Entry(holder=holder, digest=digest(text), state="minted"))
        where = ", ".join(filter(None, (name if role is not Role.NODE else "", f"pool {pool}" if pool else "")))
        self._events.act(
            "join_token_minted", holder.id, actor=actor, reason=reason, what=f"for a {role.value}, {where}"
        )
        return text, holder

    def enroll(self, caller: Caller, request: bytes, *, role: str, name: str, pool: str) -> Issued:
        """A credential of its own, for the key of this signing request.

        Raises: NotAuthenticated, NotPermitted for a join token that is not good (any more); Conflict when another one
        holds the name; InvalidInput.
        """
        if caller.role is Role.JOINER:
            try:
                return self._use(caller, request, role=role, name=name, pool=pool)
            except AstraFlowError as problem:
                self._events.add("join_token_refused", caller.id, str(problem))
                raise
        if caller.role is not Role.ADMIN:
            return self._issue(caller, request)
        granted = Role.granted(role)
        _check(granted, name, pool, policies=self._policies, is_name_needed=True)
        return self._issue(Caller(id="", role=granted, expires_at=0.0, name=name, pool=pool), request)

    def revoke_token(self, token: str, *, actor: str, reason: str) -> str:
        """A join token is good no more; returns a sentence. Raises: InvalidInput for one that is not known."""
        entry = self._entries.get(token)
        if entry is None or entry.holder.role is not Role.JOINER:
            raise InvalidInput(f"no join token {token[:80]!r} is good now: it has expired, or was never minted here")
        if entry.state == "used":
            return (
                f"join token {token} was used already: revoke what it was used for (astraflow token --revoke-node NAME)"
            )
        self._keep(replace(entry, state="revoked"))
        self._events.act("join_token_revoked", token, actor=actor, reason=reason)
        return f"join token {token} is good no more"

    def revoke(self, role: Role, name: str, *, actor: str, reason: str) -> str:
        """Whoever holds this name is let in no more; returns a sentence. Raises: InvalidInput when nobody does."""
        count = self._revoke(role, name)
        if not count:
            raise InvalidInput(f"no {role.value} {name[:140]!r} holds a credential")
        self._events.act("credential_revoked", name, actor=actor, reason=reason, what=role.value)
        return f"{role.value} {name} is let in no more"

    def left(self, caller: Caller) -> None:
        """A node said goodbye: its credential goes with it."""
        if caller.role is Role.NODE and self._revoke(Role.NODE, caller.name):
            self._events.add("credential_revoked", caller.name, "its node left")

    def _use(self, caller: Caller, request: bytes, *, role: str, name: str, pool: str) -> Issued:
        granted = caller.grants
        entry = self._entries.get(caller.id)
        if caller.expires_at <= self._clock.wall() or entry is None or granted is None:
            raise NotAuthenticated("the join token has expired: mint another one with `astraflow token`")
        if entry.state == "revoked":
            raise NotPermitted("the join token was revoked: ask whoever minted it")
        key = key_digest(request)
        if entry.state == "used" and entry.key != key:
            raise NotPermitted("the join token was used, and is good once: mint another one with `astraflow token`")
        told = {"role": (role, granted.value), "name": (name, entry.holder.name), "pool": (pool, caller.pool)}
        for what, (asked, given) in told.items():
            if asked and given and asked != given:
                raise NotPermitted(f"the join token is for {what} {given}, not for {asked[:140]}")
        holder = Caller(id="", role=granted, expires_at=0.0, name=entry.holder.name or name, pool=caller.pool)
        _check(granted, holder.name, holder.pool, policies=self._policies, is_name_needed=True)
        if entry.state == "minted":
            if self._live(granted, holder.name):
                raise Conflict(
                    f"a {granted.value} named {holder.name} holds a credential: choose another --name, or revoke that"
                )
            self._keep(replace(entry, holder=replace(caller, name=holder.name), state="used", key=key))
            self._events.add("join_token_used", caller.id, f"by {granted.value} {holder.name}")
        return self._issue(holder, request)

    def _issue(self, holder: Caller, request: bytes) -> Issued:
        key_digest(request)  # also where no certificate is made of it
        until = float(round(self._clock.wall() + CREDENTIAL_S))
        made = replace(holder, id=new_id(), expires_at=until)
        text = self._seal.text(made)
        self._keep(_Entry(holder=made, digest=digest(text), state="issued"))
        certificate = self._authority.for_caller(request, made, clock=self._clock) if self._authority else b""
        return Issued(credential=text, certificate=certificate, expires_at=until)

    def _live(self, role: Role, name: str) -> list[_Entry]:
        now = self._clock.wall()
        return [
            entry
            for entry in self._entries.values()
            if entry.state == "issued"
            and (entry.holder.role, entry.holder.name) == (role, name)
            and entry.holder.expires_at > now
        ]

    def _revoke(self, role: Role, name: str) -> int:
        """Also the join tokens that were used for it: the key that they were used for may come back otherwise."""
        found = self._live(role, name)
        used = [entry for entry in self._entries.values() if entry.state == "used" and entry.holder.name == name]
        for entry in (*found, *(one for one in used if one.holder.grants is role)):
            self._keep(replace(entry, state="revoked"))
        if found:
            self._revoke_again()
        return len(found)

    def _revoke_again(self) -> None:
        """Tell every service."""
        gone = {
            entry.holder.id: entry.holder.expires_at for entry in self._entries.values() if entry.state == "revoked"
        }
        if gone:
            self._revoked.add(gone, now=self._clock.wall())

    def _keep(self, entry: _Entry) -> None:
        holder, now = entry.holder, self._clock.wall()
        self._entries = {one: kept for one, kept in self._entries.items() if kept.holder.expires_at > now}
        self._entries[holder.id] = entry
        role = (holder.grants or holder.role).value
        kind = JOIN if holder.role is Role.JOINER else OWN
        until, known_by = holder.expires_at, entry.digest
        columns = (holder.id, kind, entry.state, role, holder.name, holder.pool, until, known_by, entry.key)
        self._journal.put("delete from credentials where until <= ?", now)
        self._journal.put(_INSERT, *columns)

    def _saved(self) -> list[_Entry]:
        entries = []
        for id_, kind, state, role, name, pool, until, known_by, key in self._journal.rows(_SELECT):
            is_token = kind == JOIN
            holder = Caller(
                id=id_,
                role=Role.JOINER if is_token else Role(role),
                grants=Role(role) if is_token else None,
                expires_at=until,
                name=name,
                pool=pool,
            )
            entries.append(_Entry(holder=holder, digest=known_by, state=state, key=key))
        return entries


def _check(role: Role, name: str, pool: str, *, policies: frozenset[str], is_name_needed: bool) -> None:
    """Raises: InvalidInput for a name or pool that nobody of this role can have."""
    if role is Role.NODE:
        PoolId(pool)
        if name or is_name_needed:
            NodeId(f"{name}.0")
    elif pool and role not in OF_POOLS:
        raise InvalidInput(f"a {role.value} joins no pool: leave it out")
    elif role is Role.TRAINER and name not in policies:
        raise InvalidInput(f"this run has no policy {name[:140]!r} to train; it has {', '.join(sorted(policies))}")
    elif role is Role.TRAINER:
        PolicyId(name)
    else:
        Name(name)
        if pool:
            PoolId(pool)
