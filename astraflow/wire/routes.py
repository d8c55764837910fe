"""Authorization table: one entry for every route of every plane, which every server enforces (`wire.incoming_calls`).

A route without an entry is closed to all callers. The holder of the run token (`ADMIN`) may call all routes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from astraflow.access.callers import (
    Caller,
    Role,
    check_own_name,
    check_own_node,
    check_own_policy,
    check_own_pool,
    check_own_weights,
)
from astraflow.access.rate_limits import Rate
from astraflow.contract.errors import InvalidInput, NotPermitted
from astraflow.wire.codecs.frames import split
from astraflow.wire.pb import data_plane_pb2 as data

Scope: TypeAlias = Callable[[Caller, Any], None]
"""Rejects a request about objects of another caller; for a stream, checks each request. Raises: NotPermitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Permissions of a method: roles, scope and rate."""

    roles: frozenset[Role]
    scope: Scope | None = None
    rate: Rate | None = None
    """Rate limit per peer; None for no limit."""


def _allowed_for(*roles: Role, scope: Scope | None = None, rate: Rate | None = None) -> Route:
    return Route(roles=frozenset((*roles, Role.ADMIN)), scope=scope, rate=rate)


def _node_of(caller: Caller, request: Any) -> None:
    check_own_node(caller, request.node)


def _node_of_push(caller: Caller, request: bytes) -> None:
    if caller.role is not Role.NODE:  # parsing a push is expensive: other roles need no check
        return
    try:
        node = split(data.PushRequest, request)[0].node
    except InvalidInput:  # the handler refuses the push in the same way, and notes it for the node
        return
    check_own_node(caller, node)


def _joining_node(caller: Caller, request: Any) -> None:
    check_own_name(caller, request.name, request.pool)


def _policy_of(caller: Caller, request: Any) -> None:
    check_own_policy(caller, request.policy)


def _policy_published(caller: Caller, piece: Any) -> None:
    if piece.WhichOneof("piece") == "head":
        check_own_weights(caller, piece.head.manifest.policy)


def _pool_of(caller: Caller, request: Any) -> None:
    check_own_pool(caller, request.pool)


def _all_pools(caller: Caller, _: Any) -> None:
    check_own_pool(caller, "")


_NODE = (Role.NODE,)
_TRAINER = (Role.TRAINER,)
_READERS = (Role.NODE, Role.TRAINER)
_VIEWERS = (Role.VIEWER, Role.OPERATOR, Role.AGENT, Role.PAGE)
_FLEET = (Role.OPERATOR, Role.AGENT)
_OPERATORS = (*_FLEET, Role.PAGE)
"""Roles of operators, and of the web page that acts for them."""

_POOL_CHANGERS = (Role.OPERATOR, Role.AGENT)
"""Roles that change pools; the fleet service's guard decides what each may do. For requests that name a node or a plan
instead of a pool, the service checks the caller's pool, because it knows which pool they belong to."""

_ENROLL = Rate(burst=300, per_minute=300.0)
"""Rate that lets many machines behind one address start at once; each enrolment costs a signature and a write."""

_JOIN = Rate(burst=1000, per_minute=600.0)
"""After a restart of dataflow all nodes of a site join at once; a single node joins once a second at most."""

_PREFLIGHT = Rate(burst=20, per_minute=20.0)
"""Rate of preflight checks: each makes several calls to a cloud API, whose rate limits launches share."""

_SERVICES: Mapping[str, Mapping[str, Route]] = {
    "Enrollment": {"Enroll": _allowed_for(Role.JOINER, *_READERS, *_VIEWERS, rate=_ENROLL)},
    "NodeData": {
        "Join": _allowed_for(*_NODE, scope=_joining_node, rate=_JOIN),
        "Lease": _allowed_for(*_NODE, scope=_node_of),
        "Push": _allowed_for(*_NODE, scope=_node_of_push),
        "HandBack": _allowed_for(*_NODE, scope=_node_of),
        "Heartbeat": _allowed_for(*_NODE, scope=_node_of),
        "Leave": _allowed_for(*_NODE, scope=_node_of),
    },
    "TrainerData": {
        "Attach": _allowed_for(*_TRAINER, scope=_policy_of),
        "PullBatch": _allowed_for(*_TRAINER, scope=_policy_of),
        "ReportStep": _allowed_for(*_TRAINER, scope=_policy_of),
        "ReportWait": _allowed_for(*_TRAINER, scope=_policy_of),
        "ReportFailure": _allowed_for(*_TRAINER, scope=_policy_of),
    },
    "WeightPlane": {
        "Publish": _allowed_for(*_TRAINER, scope=_policy_published),
        "Watch": _allowed_for(*_READERS),
        "Plan": _allowed_for(*_READERS),
        "Fetch": _allowed_for(*_READERS),
        "Versions": _allowed_for(*_READERS, *_VIEWERS),
    },
    "ControlPlane": {
        "GetReport": _allowed_for(*_VIEWERS),
        "WatchReport": _allowed_for(*_VIEWERS),
        "History": _allowed_for(*_VIEWERS),
        "Trajectories": _allowed_for(*_VIEWERS),
        "Groups": _allowed_for(*_VIEWERS),
        "SampleIndex": _allowed_for(*_VIEWERS),
        "Rewards": _allowed_for(*_VIEWERS),
        "Events": _allowed_for(*_VIEWERS),
        "TrainingSteps": _allowed_for(*_VIEWERS),
        "Evaluations": _allowed_for(*_VIEWERS, *_TRAINER),
        "WhatIf": _allowed_for(*_VIEWERS),
        "ReportFleetConstraints": _allowed_for(Role.AGENT, scope=_all_pools),
        "DrainNode": _allowed_for(*_OPERATORS),
        "MintJoinToken": _allowed_for(*_FLEET),
        "JoinTokens": _allowed_for(*_VIEWERS),
        "RevokeJoinToken": _allowed_for(*_FLEET),
        "RevokeCredential": _allowed_for(*_FLEET),
        "PauseFlow": _allowed_for(*_OPERATORS, scope=_all_pools),
        "Evaluate": _allowed_for(*_FLEET, scope=_all_pools),
        "StopEvaluation": _allowed_for(*_FLEET, scope=_all_pools),
        "ChangePlugins": _allowed_for(*_OPERATORS, scope=_all_pools),
    },
    "FleetPlane": {
        "GetFleet": _allowed_for(*_VIEWERS),
        "Instances": _allowed_for(*_VIEWERS),
        "Decisions": _allowed_for(*_VIEWERS),
        "Proposals": _allowed_for(*_VIEWERS),
        "GetMaintainer": _allowed_for(*_VIEWERS),
        "Transcript": _allowed_for(*_VIEWERS),
        "Providers": _allowed_for(*_VIEWERS),
        "PlanChange": _allowed_for(*_OPERATORS, scope=_pool_of),
        "ApplyPlan": _allowed_for(*_OPERATORS),
        "SetPoolHold": _allowed_for(*_OPERATORS, scope=_pool_of),
        "Escalate": _allowed_for(*_POOL_CHANGERS, scope=_all_pools),
        "SetKillSwitch": _allowed_for(*_OPERATORS, scope=_all_pools),
        "ProposePlan": _allowed_for(*_POOL_CHANGERS),
        "HandOver": _allowed_for(*_POOL_CHANGERS, scope=_pool_of),
        "RunPreflight": _allowed_for(*_OPERATORS, scope=_all_pools, rate=_PREFLIGHT),
        "RejectPlan": _allowed_for(Role.OPERATOR, Role.PAGE),
        "SetMaintainerMode": _allowed_for(Role.OPERATOR, Role.PAGE, scope=_all_pools),
        "WakeMaintainer": _allowed_for(Role.OPERATOR, Role.PAGE, scope=_all_pools),
        "MaintainerHeartbeat": _allowed_for(Role.AGENT, scope=_all_pools),
        "AppendTranscript": _allowed_for(Role.AGENT, scope=_all_pools),
        "PutPool": _allowed_for(Role.PAGE),
        "InjectFault": _allowed_for(Role.PAGE),
    },
}

ROUTES: Mapping[str, Route] = {
    f"/astraflow.v1.{service}/{method}": route
    for service, methods in _SERVICES.items()
    for method, route in methods.items()
}
"""Routes by gRPC path."""


def check_route(caller: Caller, method: str) -> Route:
    """Returns the route of a call if its caller may call it. Raises: NotPermitted."""
    route = ROUTES.get(method)
    if route is None:
        raise NotPermitted(
            f"cannot call {method!r}: the route has no entry in the authorization table; add one to `wire.routes`",
            code="route.unknown",
        )
    if caller.role not in route.roles:
        allowed = ", ".join(sorted(role.value for role in route.roles))
        remedy = "join with the token first" if caller.role is Role.JOINER else "use a credential with an allowed role"
        raise NotPermitted(
            f"cannot call {method!r}: allowed roles are {allowed}, and this credential has role {caller.role.value!r}; "
            f"{remedy}",
            code="route.not_permitted",
        )
    return route
