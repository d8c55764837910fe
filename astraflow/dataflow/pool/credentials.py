"""Who was let in: mints join tokens, exchanges them for credentials, renews and revokes those."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from astraflow.access.authority import Authority, key_digest
from astraflow.access.callers import OF_POOLS, Caller, Role, current_caller
from astraflow.access.credentials import Seal, digest, new_id
from astraflow.access.grants import check_grant
from astraflow.access.revocations import Revocations
from astraflow.contract.access import KnownJoinToken
from astraflow.contract.errors import AstraFlowError, Conflict, InvalidInput, NotAuthenticated, NotPermitted
from astraflow.contract.ids import Name, NodeId, PolicyId, PoolId
from astraflow.dataflow.pool.ledger import Entry, Ledger
from astraflow.dataflow.reporting.events import Events
from astraflow.runtime.clock import Clock

JOIN_TOKEN_S = 15 * 60.0
MOST_JOIN_TOKEN_S = 24 * 3600.0
REUSABLE_TOKEN_S = 7 * 24 * 3600.0
MOST_REUSABLE_TOKEN_S = 30 * 24 * 3600.0
MOST_USES = 1_000_000
CREDENTIAL_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A credential for its holder."""

    credential: str = field(repr=False)
    certificate: bytes
    """PEM; empty without an authority."""
    expires_at: float
    replaced: frozenset[str] = frozenset()
    """Holders (`Caller.holder`) whose credentials it took the place of, which are revoked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """What a revocation did."""

    message: str
    holders: frozenset[str] = frozenset()
    """Holders (`Caller.holder`) that are refused from now on."""


class Credentials:
    """Mints join tokens, exchanges them for credentials, renews and revokes those."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        seal: Seal,
        revoked: Revocations,
        authority: Authority | None,
        pin: str,
        policies: frozenset[str],
        silent_s: Callable[[str], float | None],
        alive_s: float,
        events: Events,
        clock: Clock,
    ) -> None:
        """pin: of the authority, for those who join over TLS; empty for a service without. silent_s: seconds since the
        node of a name that takes part reported, None when there is none. alive_s: a node that reported within this
        time keeps its name."""
        self._ledger = ledger
        self._seal = seal
        self._revoked = revoked
        self._authority = authority
        self._pin = pin
        self._policies = policies
        self._silent_s = silent_s
        self._alive_s = alive_s
        self._events = events
        self._clock = clock
        self._revoke_again()

    def mint(
        self,
        role: Role,
        *,
        name: str,
        pool: str,
        valid_s: float,
        actor: str,
        reason: str,
        is_reusable: bool = False,
        most_uses: int = 0,
    ) -> tuple[str, Caller]:
        """A join token and what it says.

        is_reusable: nodes of `pool` may exchange it any number of times, at most `most_uses` times if that is not 0.
        Raises: NotPermitted for a role or pool that is not the caller's to grant; InvalidInput.
        """
        _check(role, name, pool, policies=self._policies, is_name_needed=role is not Role.NODE)
        _check_use(role, name, valid_s, is_reusable=is_reusable, most_uses=most_uses)
        what = f"for a {role.value}" + "".join(f", {part}" for part in _described(role, name, pool, is_reusable))
        check_grant(current_caller(), role, pool, what=f"mint a join token {what}")
        if not reason.strip():
            raise InvalidInput("a join token needs the reason for which it is minted")
        default_s = REUSABLE_TOKEN_S if is_reusable else JOIN_TOKEN_S
        holder = Caller(
            id=new_id(),
            role=Role.JOINER,
            grants=role,
            expires_at=float(round(self._clock.wall() + (valid_s or default_s))),
            name=name,
            pool=pool,
            ca=self._pin,
            is_reusable=is_reusable,
        )
        text = self._seal.text(holder)
        limit = most_uses if is_reusable else 1
        self._ledger.keep(Entry(holder=holder, digest=digest(text), state="minted", most_uses=limit))
        self._events.act("join_token_minted", holder.id, actor=actor, reason=reason, what=what)
        return text, holder

    def tokens(self) -> tuple[KnownJoinToken, ...]:
        """The join tokens that have not expired, the one that expires last at the end."""
        now = self._clock.wall()
        known = [entry for entry in self._ledger if entry.holder.role is Role.JOINER and entry.holder.expires_at > now]
        return tuple(_known(entry) for entry in sorted(known, key=lambda entry: entry.holder.expires_at))

    def enroll(self, caller: Caller, request: bytes, *, role: str, name: str, pool: str) -> Issued:
        """A credential for the key of this signing request.

        With a join token: exchanges it. With the run token: for the holder that the request names. With a credential:
        renews it.
        Raises: NotAuthenticated, NotPermitted for a join token that is not good (any more); Conflict when another
        holder has the name; InvalidInput.
        """
        if caller.role is Role.JOINER:
            try:
                return self._exchange(caller, request, role=role, name=name, pool=pool)
            except AstraFlowError as problem:
                self._events.add("join_token_refused", caller.id, str(problem))
                raise
        if caller.role is not Role.ADMIN:
            return self._issue(replace(caller, origin=caller.origin or caller.id), request)
        granted = Role.granted(role)
        _check(granted, name, pool, policies=self._policies, is_name_needed=True)
        key_digest(request)
        replaced = self._replace(name, self._ledger.live(granted, name)) if granted is Role.NODE else frozenset()
        return replace(
            self._issue(Caller(id="", role=granted, expires_at=0.0, name=name, pool=pool, origin=new_id()), request),
            replaced=replaced,
        )

    def revoke_token(self, token: str, *, actor: str, reason: str) -> Revoked:
        """Refuses a join token from now on, and with a reusable one every credential that came from it.

        Raises: NotPermitted; InvalidInput for one that is not known.
        """
        entry = self._ledger.get(token)
        if entry is None or entry.holder.role is not Role.JOINER or entry.holder.grants is None:
            raise InvalidInput(f"no join token {token[:80]!r} is good now: it has expired, or was never minted here")
        check_grant(current_caller(), entry.holder.grants, entry.holder.pool, what=f"revoke join token {token}")
        if entry.state == "used":
            return Revoked(
                message=f"join token {token} was used already: "
                "revoke what it was used for (astraflow token --revoke node/NAME)"
            )
        self._ledger.keep(replace(entry, state="revoked"))
        issued = [one for one in self._ledger if one.state == "issued" and one.holder.origin == token]
        holders = self._revoke(issued)
        self._events.act("join_token_revoked", token, actor=actor, reason=reason)
        also = f", and {len(holders)} credentials that came from it" if holders else ""
        return Revoked(message=f"join token {token} is good no more{also}", holders=holders)

    def revoke(self, role: Role, name: str, *, actor: str, reason: str) -> Revoked:
        """Refuses the holder of this role and name from now on.

        Raises: NotPermitted for a holder that is not the caller's to revoke; InvalidInput when there is none.
        """
        caller, what = current_caller(), f"revoke {role.value} {name[:140]}"
        check_grant(caller, role, caller.pool, what=what)
        live = self._ledger.live(role, name)
        for entry in live:
            check_grant(caller, role, entry.holder.pool, what=what)
        if not live:
            raise InvalidInput(f"no {role.value} {name[:140]!r} holds a credential")
        holders = self._revoke(live)
        self._events.act("credential_revoked", name, actor=actor, reason=reason, what=role.value)
        return Revoked(message=f"{role.value} {name} is let in no more", holders=holders)

    def left(self, caller: Caller) -> None:
        """A node said goodbye: its credential goes with it."""
        if caller.role is not Role.NODE:
            return
        if self._revoke([one for one in self._ledger.live(Role.NODE, caller.name) if _is_of(one, caller)]):
            self._events.add("credential_revoked", caller.name, "its node left")

    def _exchange(self, caller: Caller, request: bytes, *, role: str, name: str, pool: str) -> Issued:
        granted, entry = caller.grants, self._ledger.get(caller.id)
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
        holder = Caller(
            id="", role=granted, expires_at=0.0, name=entry.holder.name or name, pool=caller.pool, origin=caller.id
        )
        _check(granted, holder.name, holder.pool, policies=self._policies, is_name_needed=True)
        if caller.is_reusable:
            return self._exchange_again(entry, holder, request, key)
        if entry.state == "minted":
            self._check_name(granted, holder.name)
            used = replace(entry, holder=replace(entry.holder, name=holder.name), state="used", key=key, uses=1)
            self._ledger.keep(used)
            self._events.add("join_token_used", caller.id, f"by {granted.value} {holder.name}")
        return self._issue(holder, request)

    def _exchange_again(self, entry: Entry, holder: Caller, request: bytes, key: str) -> Issued:
        """With a reusable token. A node that comes back under its name takes the place of its earlier credential."""
        live = self._ledger.live(holder.role, holder.name)
        own = [one for one in live if one.holder.origin == entry.holder.id]
        if any(one.key == key for one in own):
            return self._issue(holder, request)  # the answer was lost
        if entry.most_uses and entry.uses >= entry.most_uses:
            raise NotPermitted(
                f"cannot exchange the join token: it was exchanged {entry.uses} times, which is its limit; mint "
                "another one with `astraflow token --reusable`"
            )
        if own:
            replaced = self._replace(holder.name, live)
        else:
            self._check_name(holder.role, holder.name)
            replaced = frozenset()
        self._ledger.keep(replace(entry, uses=entry.uses + 1))
        self._events.add("join_token_used", entry.holder.id, f"by {holder.role.value} {holder.name}")
        return replace(self._issue(holder, request), replaced=replaced)

    def _check_name(self, role: Role, name: str) -> None:
        """Raises: Conflict when a credential, or a node that takes part, has this name."""
        if self._ledger.live(role, name):
            raise Conflict(f"a {role.value} named {name} holds a credential: choose another --name, or revoke that")
        if role is Role.NODE and self._silent_s(name) is not None:
            raise Conflict(f"a node named {name} takes part in the run: choose another --name, or stop that node")

    def _replace(self, name: str, earlier: Collection[Entry]) -> frozenset[str]:
        """Revokes what an earlier process of a node held. Raises: Conflict while that process still reports."""
        silent_s = self._silent_s(name)
        if silent_s is not None and silent_s <= self._alive_s:
            raise Conflict(
                f"cannot let in node {name}: a node of this name reported {silent_s:.1f} s ago; stop that node, or "
                "choose another --name"
            )
        if earlier:
            self._events.add("credential_revoked", name, "its node started again")
        return self._revoke(earlier)

    def _issue(self, holder: Caller, request: bytes) -> Issued:
        key = key_digest(request)  # also where no certificate is made of it
        until = float(round(self._clock.wall() + CREDENTIAL_S))
        made = replace(holder, id=new_id(), expires_at=until)
        text = self._seal.text(made)
        self._ledger.keep(Entry(holder=made, digest=digest(text), state="issued", key=key))
        certificate = self._authority.for_caller(request, made, clock=self._clock) if self._authority else b""
        return Issued(credential=text, certificate=certificate, expires_at=until)

    def _revoke(self, entries: Collection[Entry]) -> frozenset[str]:
        """Also the join tokens that were used for them: the key that they were used for may come back otherwise."""
        origins = {entry.holder.origin for entry in entries}
        used = [one for one in self._ledger if one.state == "used" and one.holder.id in origins]
        for entry in (*entries, *used):
            self._ledger.keep(replace(entry, state="revoked"))
        if entries:
            self._revoke_again()
        return frozenset(entry.holder.holder for entry in entries)

    def _revoke_again(self) -> None:
        """Tells every service."""
        gone = {entry.holder.id: entry.holder.expires_at for entry in self._ledger if entry.state == "revoked"}
        if gone:
            self._revoked.add(gone, now=self._clock.wall())


def _is_of(entry: Entry, caller: Caller) -> bool:
    return entry.holder.holder == caller.holder


def _known(entry: Entry) -> KnownJoinToken:
    holder = entry.holder
    return KnownJoinToken(
        id=holder.id,
        role=holder.grants.value if holder.grants else "",
        name=holder.name,
        pool=holder.pool,
        expires_at=holder.expires_at,
        is_reusable=holder.is_reusable,
        uses=entry.uses,
        most_uses=entry.most_uses,
        state=entry.state,
    )


def _described(role: Role, name: str, pool: str, is_reusable: bool) -> list[str]:
    parts = [name if role is not Role.NODE else "", f"pool {pool}" if pool else "", "reusable" if is_reusable else ""]
    return [part for part in parts if part]


def _check_use(role: Role, name: str, valid_s: float, *, is_reusable: bool, most_uses: int) -> None:
    """Raises: InvalidInput for a lifetime or a number of uses that a token cannot have."""
    most_s = MOST_REUSABLE_TOKEN_S if is_reusable else MOST_JOIN_TOKEN_S
    if not 0 <= valid_s <= most_s:
        raise InvalidInput(f"a join token cannot be good for {valid_s:g} s: give up to {most_s:g}")
    if is_reusable and (role is not Role.NODE or name):
        raise InvalidInput(
            f"cannot mint a reusable join token for {role.value} {name[:140]!r}: reusable tokens are for nodes of a "
            "pool, each under its own name; give a pool, and no role or name"
        )
    if not is_reusable and most_uses not in (0, 1):
        raise InvalidInput(f"cannot mint a join token for {most_uses} uses: only reusable tokens have several uses")
    if most_uses > MOST_USES:
        raise InvalidInput(f"cannot mint a join token for {most_uses} uses: give up to {MOST_USES}, or 0 for no limit")


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
