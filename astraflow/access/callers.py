"""Callers: claims of a credential, access to the current caller in handlers, and the access that a role may grant."""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum

from astraflow.contract.errors import InvalidInput, NotPermitted
from astraflow.contract.ids import adapter_base_of, node_name


class Role(Enum):
    """Role of a caller in a run. `astraflow.wire.routes` lists the permissions of each role."""

    JOINER = "joiner"
    """Holds a join token, which can only be exchanged for a credential."""
    NODE = "node"
    TRAINER = "trainer"
    VIEWER = "viewer"
    OPERATOR = "operator"
    AGENT = "agent"
    """The fleet service and programs that act through it."""
    PAGE = "page"
    """The web page: reads, and acts for its users. It cannot grant access."""
    ADMIN = "admin"
    """Holds the run token."""

    @classmethod
    def parse_grantable(cls, text: str) -> "Role":
        """Parses a role that a join token can be issued for. Raises: InvalidInput."""
        grantable = [role for role in cls if role not in (cls.JOINER, cls.ADMIN)]
        if text not in {role.value for role in grantable}:
            raise InvalidInput(
                f"cannot issue a join token: unknown role {text!r}; "
                f"use one of {', '.join(role.value for role in grantable)}",
                code="role.unknown",
            )
        return cls(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The holder of a credential."""

    id: str
    """Id of the credential, 32 hexadecimal digits, used in revocations and as its certificate's serial number."""
    role: Role
    expires_at: float
    """Unix seconds."""
    grants: Role | None = None
    """For a join token, the role that its holder gets."""
    name: str = ""
    """A node's name (shared by its incarnations), a trainer's policy, or the name of a person or service."""
    pool: str = ""
    """Pool of a node; for an operator or an agent, the only pool that they may change, empty for all."""
    ca: str = ""
    """For a join token, the pin of the authority that verifies the run's services; empty without TLS."""
    issued_from: str = ""
    """Id of the join token that the credential was exchanged for, or of the first credential without one. Renewals keep
    it."""
    is_reusable: bool = False
    """True if any number of nodes may exchange this join token."""

    @property
    def identity(self) -> str:
        """Identity in certificates."""
        return identity(self.role, self.name)

    @property
    def holder(self) -> str:
        """Key of the holder: equal for a credential and its renewals only; empty for the run token."""
        return "" if self.role is Role.ADMIN else f"{self.issued_from or self.id}/{self.pool}/{self.name}"


DELEGATING_ROLES = (Role.PAGE, Role.ADMIN)
"""Roles whose requests name the person they act for; for all others the audit log has the credential's own name."""

_CODE_ROLES = (Role.OPERATOR, Role.ADMIN)
"""Roles whose holders may name a file for a service to import."""

POOL_SCOPED_ROLES = (Role.OPERATOR, Role.AGENT)
"""Roles that may be limited to one pool, besides nodes."""


def identity(role: Role, name: str) -> str:
    """Returns a holder as a URI, the subject alternative name of its certificate."""
    return f"astraflow://{role.value}/{name}"


RUN_TOKEN_CALLER = Caller(id="", role=Role.ADMIN, expires_at=float("inf"))
"""The holder of the run token."""

_current: ContextVar[Caller] = ContextVar("astraflow_caller", default=RUN_TOKEN_CALLER)


def set_caller(caller: Caller) -> None:
    """Sets the caller of the current task; for the server's interceptor."""
    _current.set(caller)


def current_caller() -> Caller:
    """Returns the caller of the current call; the holder of the run token outside of calls."""
    return _current.get()


def audit_actor(claimed: str) -> str:
    """Returns the name for the audit log: the claimed one for a caller that acts for people, else the credential's
    own."""
    caller = current_caller()
    return claimed if caller.role in DELEGATING_ROLES else f"{caller.role.value} {caller.name}"


def check_loads_code(caller: Caller) -> None:
    """Rejects callers that may not name code for a service to import: programs, and the page. Raises: NotPermitted."""
    if caller.role not in _CODE_ROLES:
        raise NotPermitted(
            f"cannot load a plugin file for the role {caller.role.value!r}: the file runs in the service; "
            "let an operator change the plugins with astraflow plugins --file",
            code="caller.loads_code",
        )


def check_own_node(caller: Caller, node: str) -> None:
    """Rejects a node that uses another node's leases. node: an id, `NAME.INCARNATION`. Raises: NotPermitted."""
    _check_own(caller, Role.NODE, node_name(node), f"node {node[:140]!r}")


def check_own_name(caller: Caller, name: str, pool: str) -> None:
    """Rejects a node that joins under a name or into a pool other than its own. Raises: NotPermitted."""
    _check_own(caller, Role.NODE, name, f"node name {name[:140]!r}")
    if caller.role is Role.NODE and pool != caller.pool:
        raise NotPermitted(
            f"cannot join pool {pool[:140]!r}: the credential of node {caller.name!r} is for pool {caller.pool!r}; "
            f"join with --pool {caller.pool}",
            code="caller.wrong_pool",
        )


def check_own_policy(caller: Caller, policy: str) -> None:
    """Rejects a trainer that uses another policy's stream. Raises: NotPermitted."""
    _check_own(caller, Role.TRAINER, policy, f"policy {policy[:140]!r}")


def check_own_weights(caller: Caller, policy: str) -> None:
    """Rejects a trainer that publishes a policy other than its own or the base of its adapters. Raises:
    NotPermitted."""
    if caller.role is not Role.TRAINER or policy != adapter_base_of(caller.name):
        check_own_policy(caller, policy)


def check_own_pool(caller: Caller, pool: str) -> None:
    """Rejects an operator or agent of one pool that uses another. pool: empty for objects of all pools.

    Raises: NotPermitted.
    """
    if caller.role in POOL_SCOPED_ROLES and caller.pool not in ("", pool):
        target = f"pool {pool[:140]!r}" if pool else "all pools"
        raise NotPermitted(
            f"cannot act on {target}: the caller's credential is for pool {caller.pool!r} only; "
            "use one that was issued without --pool",
            code="caller.wrong_pool",
        )


def _check_own(caller: Caller, role: Role, name: str, what: str) -> None:
    if caller.role is role and name != caller.name:
        raise NotPermitted(
            f"cannot act on {what}: the caller's credential is for {role.value} {caller.name!r} only; use its own name",
            code="caller.wrong_name",
        )


_GRANTABLE = frozenset(role for role in Role if role not in (Role.JOINER, Role.ADMIN))

GRANTS: Mapping[Role, frozenset[Role]] = {
    Role.AGENT: frozenset((Role.NODE,)),
    Role.OPERATOR: frozenset((Role.NODE, Role.VIEWER, Role.AGENT, Role.OPERATOR)),
    Role.ADMIN: _GRANTABLE,
}
"""Roles that a caller may issue join tokens for, and revoke; callers not listed may do neither. No role is above the
caller's own. Only the run token may grant trainers, which replace a policy's weights."""


def check_grant(caller: Caller, role: Role, pool: str, *, what: str) -> None:
    """Checks that a caller may issue or revoke access for `role` in `pool` (empty for all pools).

    A caller that is bound to a pool may only do so for that pool. what: `mint ...` or `revoke ...`, for the message.
    Raises: NotPermitted.
    """
    allowed = GRANTS.get(caller.role, frozenset())
    if role not in allowed:
        grantable = ", ".join(sorted(allowed_role.value for allowed_role in allowed)) or "no role"
        raise NotPermitted(
            f"cannot {what}: role {caller.role.value!r} may grant {grantable}, not {role.value!r}; "
            "use a credential of a higher role, or the run token",
            code="grant.role_not_permitted",
        )
    if caller.role is not Role.ADMIN and caller.pool not in ("", pool):
        scope = f"pool {pool[:140]!r}" if pool else "all pools"
        raise NotPermitted(
            f"cannot {what}: it is for {scope}, and the caller's credential is for pool {caller.pool!r} only; use a "
            "credential that was issued without --pool",
            code="grant.pool_not_permitted",
        )
