"""Who calls: what a credential says about its holder, and how handlers learn it."""

from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum

from astraflow.contract.errors import InvalidInput, NotPermitted
from astraflow.contract.ids import name_of


class Role(Enum):
    """What somebody is to a run. `astraflow.wire.routes` says what each may do."""

    JOINER = "joiner"
    """Holds a join token: may ask for a credential of its own, once, and nothing else."""
    NODE = "node"
    TRAINER = "trainer"
    VIEWER = "viewer"
    OPERATOR = "operator"
    AGENT = "agent"
    """The fleet service and whoever acts through it."""
    PAGE = "page"
    """The web page: looks, and acts for the people who use it. It grants no access."""
    ADMIN = "admin"
    """Holds the run token."""

    @classmethod
    def granted(cls, text: str) -> "Role":
        """A role that a join token can be minted for. Raises: InvalidInput."""
        known = [role for role in cls if role not in (cls.JOINER, cls.ADMIN)]
        if text not in {role.value for role in known}:
            raise InvalidInput(f"{text!r} is no role to join as: {', '.join(role.value for role in known)} are")
        return cls(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The holder of a credential."""

    id: str
    """Of the credential, 32 hexadecimal digits: what revocations name, and the serial number of its certificate."""
    role: Role
    expires_at: float
    """Unix seconds."""
    grants: Role | None = None
    """Of a join token: what its holder becomes."""
    name: str = ""
    """A node's name (all incarnations of it are its own), a trainer's policy, a person's or a service's name."""
    pool: str = ""
    """A node's; of an operator or an agent the only one that they may touch, empty for all of them."""
    ca: str = ""
    """Of a join token: the pin of the authority that the run's services are checked against; empty without TLS."""
    origin: str = ""
    """Id of the join token that a credential was exchanged for, or of the first credential where there was none.
    Renewals keep it."""
    is_reusable: bool = False
    """Whether any number of nodes may exchange this join token."""

    @property
    def identity(self) -> str:
        """As certificates carry it."""
        return identity(self.role, self.name)

    @property
    def holder(self) -> str:
        """Which holder this is, equal for a credential and its renewals and for no other; empty for the run token."""
        return "" if self.role is Role.ADMIN else f"{self.origin or self.id}/{self.pool}/{self.name}"


SPEAKERS = (Role.PAGE, Role.ADMIN)
"""Roles whose requests name the person they act for; of all others the credential's own name is recorded."""

OF_POOLS = (Role.OPERATOR, Role.AGENT)
"""Who may be bound to one pool, besides nodes."""


def identity(role: Role, name: str) -> str:
    """A holder as a URI, the subject alternative name of its certificate."""
    return f"astraflow://{role.value}/{name}"


RUN_TOKEN = Caller(id="", role=Role.ADMIN, expires_at=float("inf"))
"""Who holds the run token."""

_current: ContextVar[Caller] = ContextVar("astraflow_caller", default=RUN_TOKEN)


def set_caller(caller: Caller) -> None:
    """For the door: the call that this task carries out is this caller's."""
    _current.set(caller)


def current_caller() -> Caller:
    """Who makes the call that is being carried out; within this process, whoever holds all its secrets anyway."""
    return _current.get()


def actor(claimed: str) -> str:
    """The name for the journal: the claimed one from a caller that acts for people, else the credential's own."""
    caller = current_caller()
    return claimed if caller.role in SPEAKERS else f"{caller.role.value} {caller.name}"


def own_node(caller: Caller, node: str) -> None:
    """Refuse a node that touches another's leases. node: an id, `NAME.INCARNATION`. Raises: NotPermitted."""
    _own(caller, Role.NODE, name_of(node), f"node {node[:140]}")


def own_name(caller: Caller, name: str, pool: str) -> None:
    """Refuse a node that joins under another name or into another pool than its own. Raises: NotPermitted."""
    _own(caller, Role.NODE, name, f"node name {name[:140]}")
    if caller.role is Role.NODE and pool != caller.pool:
        raise NotPermitted(
            f"node {caller.name} was let into pool {caller.pool}, not into {pool[:140]}: join with --pool {caller.pool}"
        )


def own_policy(caller: Caller, policy: str) -> None:
    """Refuse a trainer that touches another policy's stream. Raises: NotPermitted."""
    _own(caller, Role.TRAINER, policy, f"policy {policy[:140]}")


def own_pool(caller: Caller, pool: str) -> None:
    """Refuse an operator or an agent of one pool who touches another. pool: empty for what is of all pools.

    Raises: NotPermitted.
    """
    if caller.role in OF_POOLS and caller.pool not in ("", pool):
        what = f"pool {pool[:140]} is not" if pool else "what is of all pools is not"
        raise NotPermitted(
            f"{what} this caller's: its credential is for pool {caller.pool} only; one minted without --pool is for all"
        )


def _own(caller: Caller, role: Role, name: str, what: str) -> None:
    if caller.role is role and name != caller.name:
        raise NotPermitted(f"{what} is not this caller's: its credential is for {role.value} {caller.name} only")
