"""Who may call what: one table for every route of every plane, read by the door of every server (`wire.server`).

A route that is not in it is closed to everybody. The holder of the run token (`ADMIN`) may call all of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from astraflow.access.callers import Caller, Role, own_name, own_node, own_policy, own_pool
from astraflow.access.limits import Rate
from astraflow.contract.errors import NotPermitted
from astraflow.wire.frames import split
from astraflow.wire.pb import data_plane_pb2 as data

Scope: TypeAlias = Callable[[Caller, Any], None]
"""Refuses a request (each, of a stream) that is about what is not the caller's own. Raises: NotPermitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Who may call a method, and about what."""

    roles: frozenset[Role]
    scope: Scope | None = None
    rate: Rate | None = None
    """Of one peer's calls; None for any number."""


def _open_to(*roles: Role, scope: Scope | None = None, rate: Rate | None = None) -> Route:
    return Route(roles=frozenset((*roles, Role.ADMIN)), scope=scope, rate=rate)


def _node_of(caller: Caller, request: Any) -> None:
    own_node(caller, request.node)


def _node_of_push(caller: Caller, request: bytes) -> None:
    if caller.role is Role.NODE:  # a push is parsed for nobody else
        own_node(caller, split(data.PushRequest, request)[0].node)


def _who_joins(caller: Caller, request: Any) -> None:
    own_name(caller, request.name, request.pool)


def _policy_of(caller: Caller, request: Any) -> None:
    own_policy(caller, request.policy)


def _policy_published(caller: Caller, piece: Any) -> None:
    if piece.WhichOneof("piece") == "head":
        own_policy(caller, piece.head.manifest.policy)


def _pool_of(caller: Caller, request: Any) -> None:
    own_pool(caller, request.pool)


def _all_pools(caller: Caller, _: Any) -> None:
    own_pool(caller, "")


_NODE = (Role.NODE,)
_TRAINER = (Role.TRAINER,)
_READERS = (Role.NODE, Role.TRAINER)
_LOOKERS = (Role.VIEWER, Role.OPERATOR, Role.AGENT, Role.PAGE)
_FLEET = (Role.OPERATOR, Role.AGENT)
_PEOPLE = (*_FLEET, Role.PAGE)
"""What operators do, and the page for them."""

_CHANGERS = (Role.OPERATOR, Role.AGENT)
"""Of pools: which of them may do what, the fleet service's guard says. What names a node or a plan and no pool is held
to the caller's pool by the service, which knows of which pool those are."""

_ENROLL = Rate(burst=300, per_minute=300.0)
"""Each is a signature and a write: so many machines behind one address may start at once."""

_JOIN = Rate(burst=1000, per_minute=600.0)
"""After a restart of dataflow all nodes of a site come at once; a node by itself joins once a second at most."""

_REHEARSE = Rate(burst=20, per_minute=20.0)
"""Each is several calls of a cloud's API, which has limits of its own that launches need."""

_SERVICES: Mapping[str, Mapping[str, Route]] = {
    "Enrollment": {"Enroll": _open_to(Role.JOINER, *_READERS, *_LOOKERS, rate=_ENROLL)},
    "NodeData": {
        "Join": _open_to(*_NODE, scope=_who_joins, rate=_JOIN),
        "Lease": _open_to(*_NODE, scope=_node_of),
        "Push": _open_to(*_NODE, scope=_node_of_push),
        "HandBack": _open_to(*_NODE, scope=_node_of),
        "Beat": _open_to(*_NODE, scope=_node_of),
        "Leave": _open_to(*_NODE, scope=_node_of),
    },
    "TrainerData": {
        "Attach": _open_to(*_TRAINER, scope=_policy_of),
        "PullBatch": _open_to(*_TRAINER, scope=_policy_of),
        "ReportStep": _open_to(*_TRAINER, scope=_policy_of),
    },
    "WeightPlane": {
        "Publish": _open_to(*_TRAINER, scope=_policy_published),
        "Watch": _open_to(*_READERS),
        "Plan": _open_to(*_READERS),
        "Fetch": _open_to(*_READERS),
        "Versions": _open_to(*_READERS, *_LOOKERS),
    },
    "ControlPlane": {
        "GetReport": _open_to(*_LOOKERS),
        "WatchReport": _open_to(*_LOOKERS),
        "History": _open_to(*_LOOKERS),
        "Trajectories": _open_to(*_LOOKERS),
        "Groups": _open_to(*_LOOKERS),
        "Rewards": _open_to(*_LOOKERS),
        "Events": _open_to(*_LOOKERS),
        "Evaluations": _open_to(*_LOOKERS),
        "WhatIf": _open_to(*_LOOKERS),
        "TellTerms": _open_to(Role.AGENT, scope=_all_pools),
        "DrainNode": _open_to(*_PEOPLE),
        "MintJoinToken": _open_to(*_FLEET),
        "JoinTokens": _open_to(*_LOOKERS),
        "RevokeJoinToken": _open_to(*_FLEET),
        "RevokeCredential": _open_to(*_FLEET),
        "PauseFlow": _open_to(*_PEOPLE, scope=_all_pools),
        "Evaluate": _open_to(*_FLEET, scope=_all_pools),
        "StopEvaluation": _open_to(*_FLEET, scope=_all_pools),
        "ChangePlugins": _open_to(*_PEOPLE, scope=_all_pools),
    },
    "FleetPlane": {
        "GetFleet": _open_to(*_LOOKERS),
        "Instances": _open_to(*_LOOKERS),
        "Decisions": _open_to(*_LOOKERS),
        "Proposals": _open_to(*_LOOKERS),
        "GetMaintainer": _open_to(*_LOOKERS),
        "Transcript": _open_to(*_LOOKERS),
        "Providers": _open_to(*_LOOKERS),
        "PlanChange": _open_to(*_PEOPLE, scope=_pool_of),
        "ApplyPlan": _open_to(*_PEOPLE),
        "HoldPool": _open_to(*_PEOPLE, scope=_pool_of),
        "Escalate": _open_to(*_CHANGERS, scope=_all_pools),
        "SetKillSwitch": _open_to(*_PEOPLE, scope=_all_pools),
        "ProposePlan": _open_to(*_CHANGERS),
        "HandOver": _open_to(*_CHANGERS, scope=_pool_of),
        "RehearseProvider": _open_to(*_PEOPLE, scope=_all_pools, rate=_REHEARSE),
        "RejectPlan": _open_to(Role.OPERATOR, Role.PAGE),
        "SetMaintainerMode": _open_to(Role.OPERATOR, Role.PAGE, scope=_all_pools),
        "BeatMaintainer": _open_to(Role.AGENT, scope=_all_pools),
        "KeepTranscript": _open_to(Role.AGENT, scope=_all_pools),
        "PutPool": _open_to(Role.PAGE),
        "LoseNodes": _open_to(Role.PAGE),
    },
}

ROUTES: Mapping[str, Route] = {
    f"/astraflow.v1.{service}/{method}": route
    for service, methods in _SERVICES.items()
    for method, route in methods.items()
}
"""By the path that gRPC calls."""


def check_route(caller: Caller, method: str) -> Route:
    """The route of a call, if its caller may take it. Raises: NotPermitted."""
    route = ROUTES.get(method)
    if route is None:
        raise NotPermitted(f"{method} is in no table of who may call it: nobody may")
    if caller.role not in route.roles:
        allowed = ", ".join(sorted(role.value for role in route.roles))
        hint = ": join with it first" if caller.role is Role.JOINER else ""
        raise NotPermitted(f"{method} is open to {allowed}; this credential is a {caller.role.value}'s{hint}")
    return route
