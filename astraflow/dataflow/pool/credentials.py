"""Mints join tokens, exchanges them for credentials, and renews and revokes credentials."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from astraflow.access.authority import Authority, key_digest
from astraflow.access.callers import POOL_SCOPED_ROLES, Caller, Role, check_grant, current_caller
from astraflow.access.credentials import CredentialSigner, digest, new_id
from astraflow.access.revocations import Revocations
from astraflow.contract.errors import AstraFlowError, Conflict, InvalidInput, NotAuthenticated, NotPermitted
from astraflow.contract.ids import Name, NodeId, PolicyId, PoolId
from astraflow.contract.nodes import KnownJoinToken
from astraflow.contract.record_kinds import RecordKind
from astraflow.dataflow.history.events import Events
from astraflow.dataflow.pool.credential_ledger import CredentialEntry, CredentialLedger
from astraflow.runtime.clock import Clock

DEFAULT_JOIN_TOKEN_S = 15 * 60.0
MAX_JOIN_TOKEN_S = 24 * 3600.0
DEFAULT_REUSABLE_TOKEN_S = 7 * 24 * 3600.0
MAX_REUSABLE_TOKEN_S = 30 * 24 * 3600.0
MAX_USES = 1_000_000
CREDENTIAL_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedCredential:
    """A credential issued to its holder."""

    credential: str = field(repr=False)
    certificate: bytes
    """PEM; empty without a certificate authority."""
    expires_at: float
    replaced: frozenset[str] = frozenset()
    """Holders (`Caller.holder`) whose credentials were revoked in favour of this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationResult:
    """Result of a revocation."""

    message: str
    holders: frozenset[str] = frozenset()
    """Holders (`Caller.holder`) whose credentials are revoked."""


class Credentials:
    """Mints join tokens, exchanges them for credentials, and renews and revokes credentials."""

    def __init__(
        self,
        ledger: CredentialLedger,
        *,
        signer: CredentialSigner,
        revoked: Revocations,
        authority: Authority | None,
        pin: str,
        policies: frozenset[str],
        silent_s: Callable[[str], float | None],
        alive_s: float,
        events: Events,
        clock: Clock,
    ) -> None:
        """pin: digest of the authority, for clients that join over TLS; empty without TLS. silent_s: returns the
        seconds since the last report of the live node of a name, None if there is none. alive_s: a node that reported
        within this time keeps its name."""
        self._ledger = ledger
        self._signer = signer
        self._revoked = revoked
        self._authority = authority
        self._pin = pin
        self._policies = policies
        self._silent_s = silent_s
        self._alive_s = alive_s
        self._events = events
        self._clock = clock
        self._publish_revocations()

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
        max_uses: int = 0,
    ) -> tuple[str, Caller]:
        """Mints a join token; returns its text and its content.

        is_reusable: nodes of `pool` may exchange it any number of times, or at most `max_uses` times if that is not 0.
        Raises: NotPermitted for a role or pool that the caller may not grant; InvalidInput.
        """
        _check(role, name, pool, policies=self._policies, is_name_needed=role is not Role.NODE)
        _check_use(role, name, valid_s, is_reusable=is_reusable, max_uses=max_uses)
        what = f"for a {role.value}" + "".join(f", {part}" for part in _described(role, name, pool, is_reusable))
        check_grant(current_caller(), role, pool, what=f"mint a join token {what}")
        if not reason.strip():
            raise InvalidInput(
                "cannot mint a join token: the reason is empty; give a reason", code="join_token.no_reason"
            )
        default_s = DEFAULT_REUSABLE_TOKEN_S if is_reusable else DEFAULT_JOIN_TOKEN_S
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
        text = self._signer.sign(holder)
        limit = max_uses if is_reusable else 1
        self._ledger.put(CredentialEntry(holder=holder, digest=digest(text), state="minted", max_uses=limit))
        self._events.record_action(RecordKind.JOIN_TOKEN_MINTED, holder.id, actor=actor, reason=reason, grant=what)
        return text, holder

    def tokens(self) -> tuple[KnownJoinToken, ...]:
        """Returns the unexpired join tokens, in order of expiry."""
        now = self._clock.wall()
        entries = [
            entry for entry in self._ledger if entry.holder.role is Role.JOINER and entry.holder.expires_at > now
        ]
        return tuple(_known(entry) for entry in sorted(entries, key=lambda entry: entry.holder.expires_at))

    def enroll(self, caller: Caller, request: bytes, *, role: str, name: str, pool: str) -> IssuedCredential:
        """Issues a credential for the key of this signing request.

        With a join token: exchanges it. With the run token: for the holder that the request names. With a credential:
        renews it.
        Raises: NotAuthenticated, NotPermitted for a join token that is not valid; Conflict when another
        holder has the name; InvalidInput.
        """
        if caller.role is Role.JOINER:
            try:
                return self._exchange(caller, request, role=role, name=name, pool=pool)
            except AstraFlowError as problem:
                self._events.add(RecordKind.JOIN_TOKEN_REFUSED, caller.id, error=str(problem))
                raise
        if caller.role is not Role.ADMIN:
            return self._issue(replace(caller, issued_from=caller.issued_from or caller.id), request)
        granted = Role.parse_grantable(role)
        _check(granted, name, pool, policies=self._policies, is_name_needed=True)
        key_digest(request)
        replaced = (
            self._replace(name, self._ledger.valid_credentials(granted, name)) if granted is Role.NODE else frozenset()
        )
        return replace(
            self._issue(
                Caller(id="", role=granted, expires_at=0.0, name=name, pool=pool, issued_from=new_id()), request
            ),
            replaced=replaced,
        )

    def revoke_token(self, token: str, *, actor: str, reason: str) -> RevocationResult:
        """Revokes a join token, and with a reusable one every credential that was issued for it.

        Raises: NotPermitted; InvalidInput for an unknown token.
        """
        entry = self._ledger.get(token)
        if entry is None or entry.holder.role is not Role.JOINER or entry.holder.grants is None:
            raise InvalidInput(
                f"cannot revoke join token {token[:80]!r}: it has expired, or this service did not mint it; list the "
                "valid tokens first",
                code="join_token.unknown",
            )
        check_grant(current_caller(), entry.holder.grants, entry.holder.pool, what=f"revoke join token {token}")
        if entry.state == "used":
            return RevocationResult(
                message=f"join token {token} was used already; "
                "revoke the credential that it was used for (astraflow token --revoke node/NAME)"
            )
        self._ledger.put(replace(entry, state="revoked"))
        issued = [
            credential
            for credential in self._ledger
            if credential.state == "issued" and credential.holder.issued_from == token
        ]
        holders = self._revoke(issued)
        self._events.record_action(RecordKind.JOIN_TOKEN_REVOKED, token, actor=actor, reason=reason)
        also = f", and {len(holders)} credentials that were issued for it" if holders else ""
        return RevocationResult(message=f"join token {token} revoked{also}", holders=holders)

    def revoke(self, role: Role, name: str, *, actor: str, reason: str) -> RevocationResult:
        """Revokes the credentials of the holder with this role and name.

        Raises: NotPermitted for a holder that the caller may not revoke; InvalidInput when there is none.
        """
        caller, what = current_caller(), f"revoke {role.value} {name[:140]}"
        check_grant(caller, role, caller.pool, what=what)
        live = self._ledger.valid_credentials(role, name)
        for entry in live:
            check_grant(caller, role, entry.holder.pool, what=what)
        if not live:
            raise InvalidInput(
                f"cannot revoke {role.value} {name[:140]!r}: it holds no valid credential; check role and name",
                code="credential.unknown",
            )
        holders = self._revoke(live)
        self._events.record_action(RecordKind.CREDENTIAL_REVOKED, name, actor=actor, reason=reason, role=role.value)
        return RevocationResult(message=f"credential of {role.value} {name} revoked", holders=holders)

    def revoke_departed(self, caller: Caller) -> None:
        """Revokes the credential of a node that left."""
        if caller.role is not Role.NODE:
            return
        if self._revoke(
            [
                entry
                for entry in self._ledger.valid_credentials(Role.NODE, caller.name)
                if entry.holder.holder == caller.holder
            ]
        ):
            self._events.add(RecordKind.CREDENTIAL_REVOKED, caller.name, cause="left")

    @property
    def problem(self) -> str:
        """Why other services do not know all revocations, with a remedy; empty while they do."""
        return self._revoked.problem

    def tick(self) -> None:
        """Publishes revocations again that could not be published."""
        self._revoked.publish(now=self._clock.wall())

    def _exchange(self, caller: Caller, request: bytes, *, role: str, name: str, pool: str) -> IssuedCredential:
        granted, entry = caller.grants, self._ledger.get(caller.id)
        if caller.expires_at <= self._clock.wall() or entry is None or granted is None:
            raise NotAuthenticated(
                "cannot exchange the join token: it has expired; mint another one with `astraflow token`",
                code="join_token.expired",
            )
        if entry.state == "revoked":
            raise NotPermitted(
                "cannot exchange the join token: it was revoked; ask its issuer for another one",
                code="join_token.revoked",
            )
        key = key_digest(request)
        if entry.state == "used" and entry.key != key:
            raise NotPermitted(
                "cannot exchange the join token: it is for a single use and was used; mint another one with "
                "`astraflow token`",
                code="join_token.used",
            )
        fields = {"role": (role, granted.value), "name": (name, entry.holder.name), "pool": (pool, caller.pool)}
        for field_name, (requested, bound) in fields.items():
            if requested and bound and requested != bound:
                raise NotPermitted(
                    f"cannot exchange the join token: it is for {field_name} {bound!r}, not for {requested[:140]!r}; "
                    "use a token for that, or leave it out",
                    code="join_token.other_holder",
                )
        holder = Caller(
            id="", role=granted, expires_at=0.0, name=entry.holder.name or name, pool=caller.pool, issued_from=caller.id
        )
        _check(granted, holder.name, holder.pool, policies=self._policies, is_name_needed=True)
        if caller.is_reusable:
            return self._exchange_reusable(entry, holder, request, key)
        if entry.state == "minted":
            self._check_name(granted, holder.name)
            used = replace(entry, holder=replace(entry.holder, name=holder.name), state="used", key=key, uses=1)
            self._ledger.put(used)
            self._events.add(RecordKind.JOIN_TOKEN_USED, caller.id, role=granted.value, name=holder.name)
        return self._issue(holder, request)

    def _exchange_reusable(self, entry: CredentialEntry, holder: Caller, request: bytes, key: str) -> IssuedCredential:
        """Exchanges a reusable token. A node that returns under its name replaces its earlier credential."""
        live = self._ledger.valid_credentials(holder.role, holder.name)
        own = [credential for credential in live if credential.holder.issued_from == entry.holder.id]
        if any(credential.key == key for credential in own):
            return self._issue(holder, request)  # an earlier answer was lost
        if entry.max_uses and entry.uses >= entry.max_uses:
            raise NotPermitted(
                f"cannot exchange the join token: it reached its limit of {entry.max_uses} exchanges; mint another "
                "one with `astraflow token --reusable`",
                code="join_token.used_up",
            )
        if own:
            replaced = self._replace(holder.name, live)
        else:
            self._check_name(holder.role, holder.name)
            replaced = frozenset()
        self._ledger.put(replace(entry, uses=entry.uses + 1))
        self._events.add(RecordKind.JOIN_TOKEN_USED, entry.holder.id, role=holder.role.value, name=holder.name)
        return replace(self._issue(holder, request), replaced=replaced)

    def _check_name(self, role: Role, name: str) -> None:
        """Checks that no credential and no live node has this name. Raises: Conflict."""
        if self._ledger.valid_credentials(role, name):
            raise Conflict(
                f"cannot let in {role.value} {name!r}: a {role.value} of this name holds a credential; choose another "
                "--name, or revoke that credential",
                code="credential.name_taken",
            )
        if role is Role.NODE and self._silent_s(name) is not None:
            raise Conflict(
                f"cannot let in node {name!r}: a node of this name is part of the run; choose another --name, or stop "
                "that node",
                code="node.name_taken",
            )

    def _replace(self, name: str, earlier: Collection[CredentialEntry]) -> frozenset[str]:
        """Revokes the credentials of a node's earlier process. Raises: Conflict while that process still reports."""
        silent_s = self._silent_s(name)
        if silent_s is not None and silent_s <= self._alive_s:
            raise Conflict(
                f"cannot let in node {name!r}: a node of this name reported {silent_s:.1f} s ago; stop that node, or "
                "choose another --name",
                code="node.name_taken",
            )
        if earlier:
            self._events.add(RecordKind.CREDENTIAL_REVOKED, name, cause="restarted")
        return self._revoke(earlier)

    def _issue(self, holder: Caller, request: bytes) -> IssuedCredential:
        key = key_digest(request)  # checks the request even where no certificate is issued for it
        expires_at = float(round(self._clock.wall() + CREDENTIAL_S))
        identified = replace(holder, id=new_id(), expires_at=expires_at)
        text = self._signer.sign(identified)
        self._ledger.put(CredentialEntry(holder=identified, digest=digest(text), state="issued", key=key))
        certificate = self._authority.for_caller(request, identified, clock=self._clock) if self._authority else b""
        return IssuedCredential(credential=text, certificate=certificate, expires_at=expires_at)

    def _revoke(self, entries: Collection[CredentialEntry]) -> frozenset[str]:
        """Revokes credentials and the join tokens used for them, whose keys could otherwise be enrolled again."""
        origins = {entry.holder.issued_from for entry in entries}
        used = [entry for entry in self._ledger if entry.state == "used" and entry.holder.id in origins]
        for entry in (*entries, *used):
            self._ledger.put(replace(entry, state="revoked"))
        if entries:
            self._publish_revocations()
        return frozenset(entry.holder.holder for entry in entries)

    def _publish_revocations(self) -> None:
        """Publishes the revocations to every service, or leaves them to `tick`."""
        revoked = {entry.holder.id: entry.holder.expires_at for entry in self._ledger if entry.state == "revoked"}
        if revoked:
            self._revoked.add(revoked, now=self._clock.wall())


def _known(entry: CredentialEntry) -> KnownJoinToken:
    holder = entry.holder
    return KnownJoinToken(
        id=holder.id,
        role=holder.grants.value if holder.grants else "",
        name=holder.name,
        pool=holder.pool,
        expires_at=holder.expires_at,
        is_reusable=holder.is_reusable,
        uses=entry.uses,
        max_uses=entry.max_uses,
        state=entry.state,
    )


def _described(role: Role, name: str, pool: str, is_reusable: bool) -> list[str]:
    parts = [name if role is not Role.NODE else "", f"pool {pool}" if pool else "", "reusable" if is_reusable else ""]
    return [part for part in parts if part]


def _check_use(role: Role, name: str, valid_s: float, *, is_reusable: bool, max_uses: int) -> None:
    """Checks the lifetime and the number of uses of a token. Raises: InvalidInput."""
    most_s = MAX_REUSABLE_TOKEN_S if is_reusable else MAX_JOIN_TOKEN_S
    if not 0 <= valid_s <= most_s:
        raise InvalidInput(
            f"cannot mint a join token for {valid_s:g} s: the lifetime is out of range; give up to {most_s:g} s",
            code="join_token.invalid_lifetime",
        )
    if is_reusable and (role is not Role.NODE or name):
        raise InvalidInput(
            f"cannot mint a reusable join token for {role.value} {name[:140]!r}: reusable tokens are for the nodes of "
            "a pool, each under its own name; give a pool, and no role or name",
            code="join_token.not_reusable",
        )
    if not is_reusable and max_uses not in (0, 1):
        raise InvalidInput(
            f"cannot mint a join token for {max_uses} uses: only reusable tokens have several uses; make it reusable",
            code="join_token.invalid_uses",
        )
    if max_uses > MAX_USES:
        raise InvalidInput(
            f"cannot mint a join token for {max_uses} uses: too many; give up to {MAX_USES}, or 0 for no limit",
            code="join_token.invalid_uses",
        )


def _check(role: Role, name: str, pool: str, *, policies: frozenset[str], is_name_needed: bool) -> None:
    """Checks that name and pool are allowed for this role. Raises: InvalidInput."""
    if role is Role.NODE:
        PoolId(pool)
        if name or is_name_needed:
            NodeId(f"{name}.0")
    elif pool and role not in POOL_SCOPED_ROLES:
        raise InvalidInput(
            f"cannot let in a {role.value} for pool {pool[:140]!r}: the role {role.value} belongs to no pool; leave "
            "the pool out",
            code="credential.pool_not_allowed",
        )
    elif role is Role.TRAINER and name not in policies:
        raise InvalidInput(
            f"cannot let in a trainer for policy {name[:140]!r}: this run has no such policy; choose from "
            f"{', '.join(sorted(policies))}",
            code="credential.unknown_policy",
        )
    elif role is Role.TRAINER:
        PolicyId(name)
    else:
        Name(name)
        if pool:
            PoolId(pool)
