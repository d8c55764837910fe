"""Every route of every plane, for every role: one table, and every route is in it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from astraflow.access.callers import Caller, Role, current_caller
from astraflow.access.credentials import Seal, new_id
from astraflow.contract.errors import AstraFlowError, NotAuthenticated, NotPermitted, RateLimited
from astraflow.wire.channel import Link, dial
from astraflow.wire.frames import RAW_REQUESTS
from astraflow.wire.pb import common_pb2 as common
from astraflow.wire.pb import control_plane_pb2, data_plane_pb2, enrollment_pb2, fleet_plane_pb2, weight_plane_pb2
from astraflow.wire.routes import ROUTES
from astraflow.wire.server import Listen, serving

TOKEN = "the-run-token"

METHODS = {
    f"/{service.full_name}/{method.name}": method
    for module in (data_plane_pb2, weight_plane_pb2, control_plane_pb2, enrollment_pb2, fleet_plane_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}

READ = (
    "GetReport WatchReport History Trajectories Rewards Groups Events Evaluations WhatIf GetFleet Instances Decisions "
    "Proposals GetMaintainer Transcript Providers JoinTokens"
)
STEER = "DrainNode PauseFlow Evaluate StopEvaluation ChangePlugins MintJoinToken RevokeJoinToken RevokeCredential"
POOLS = "PlanChange ApplyPlan HoldPool Escalate SetKillSwitch ProposePlan HandOver RehearseProvider"
MAY: dict[Role, str] = {
    Role.JOINER: "Enroll",
    Role.NODE: "Enroll Join Lease Push HandBack Beat Leave Watch Plan Fetch Versions",
    Role.TRAINER: "Enroll Attach PullBatch ReportStep Publish Watch Plan Fetch Versions",
    Role.VIEWER: f"Enroll {READ} Versions",
    Role.OPERATOR: f"Enroll {READ} Versions {STEER} RejectPlan SetMaintainerMode {POOLS}",
    Role.AGENT: f"Enroll {READ} Versions {STEER} TellTerms BeatMaintainer KeepTranscript {POOLS}",
    Role.PAGE: f"Enroll {READ} Versions DrainNode PauseFlow ChangePlugins PlanChange ApplyPlan HoldPool SetKillSwitch "
    "RehearseProvider RejectPlan SetMaintainerMode PutPool LoseNodes",
    Role.ADMIN: " ".join(method.name for method in METHODS.values()),
}
"""Written down again, by hand: what changes in the table has to be meant."""


def test_the_table_has_every_route_of_every_plane_and_no_other() -> None:
    assert set(ROUTES) == set(METHODS)


@pytest.mark.anyio
@pytest.mark.parametrize("role", Role)
async def test_a_role_may_call_what_the_table_says_and_nothing_else(role: Role) -> None:
    async with planes() as address, dial(address, token=credential(role)) as link:
        allowed = {name for name, outcome in (await outcomes(link)).items() if outcome is role}
    assert allowed == {route for route in METHODS if route.rpartition("/")[2] in MAY[role].split()}


@pytest.mark.anyio
@pytest.mark.parametrize("token", ["", "wrong", "afc.e30.e30", "afj.e30.e30", "afc..", "Bearer the-run-token"])
async def test_a_port_is_open_to_nobody_without_a_credential(token: str) -> None:
    async with planes() as address, dial(address, token=token) as link:
        for route, outcome in (await outcomes(link)).items():
            assert isinstance(outcome, (NotAuthenticated, RateLimited)), (
                route
            )  # after ten of them it is not even looked at


@pytest.mark.anyio
async def test_what_metadata_says_beside_the_credential_counts_for_nothing() -> None:
    async with planes() as address, dial(address, token=credential(Role.VIEWER)) as link:
        claims = {"role": "admin", "x-role": "admin", "astraflow-role": "admin", "x-forwarded-user": "root"}
        link._metadata = (*link._metadata, *claims.items())
        with pytest.raises(
            NotPermitted, match=r"PauseFlow is open to admin, agent, operator, page; this credential is a viewer's"
        ):
            await call(link, "/astraflow.v1.ControlPlane/PauseFlow")


@pytest.mark.anyio
async def test_claims_that_were_changed_are_no_credential() -> None:
    told = Caller(id=new_id(), role=Role.ADMIN, expires_at=2e10, name="somebody")
    seal = credential(Role.VIEWER).rpartition(".")[2]
    forged = [f"{Seal('a guess').text(told).rpartition('.')[0]}.{seal}", Seal("a guess").text(told)]
    async with planes() as address:
        for token in forged:
            async with dial(address, token=token) as link:
                with pytest.raises(NotAuthenticated, match="is not of this run"):
                    await call(link, "/astraflow.v1.ControlPlane/GetReport")


def published(policy: str) -> weight_plane_pb2.PublishPiece:
    manifest = weight_plane_pb2.Manifest(policy=policy)
    return weight_plane_pb2.PublishPiece(head=weight_plane_pb2.PublishHead(manifest=manifest))


OWN: dict[str, tuple[Any, list[Any]]] = {
    "/astraflow.v1.NodeData/Join": (
        common.NodeFacts(name="own", pool="gpu"),
        [common.NodeFacts(name="other", pool="gpu"), common.NodeFacts(name="own", pool="cpu"), common.NodeFacts()],
    ),
    "/astraflow.v1.TrainerData/Attach": (
        data_plane_pb2.AttachRequest(policy="own"),
        [data_plane_pb2.AttachRequest(policy="other"), data_plane_pb2.AttachRequest()],
    ),
    "/astraflow.v1.TrainerData/PullBatch": (
        data_plane_pb2.PullBatchRequest(policy="own"),
        [data_plane_pb2.PullBatchRequest(policy="other")],
    ),
    "/astraflow.v1.TrainerData/ReportStep": (
        data_plane_pb2.ReportStepRequest(policy="own"),
        [data_plane_pb2.ReportStepRequest(policy="other")],
    ),
    "/astraflow.v1.WeightPlane/Publish": (
        published("own"),
        [published("other"), published("")],
    ),
    **{
        f"/astraflow.v1.NodeData/{name}": (
            message(node="own.3"),
            [message(node="other.1"), message(node="own.x.1"), message(node="own"), message()],
        )
        for name, message in {
            "Lease": data_plane_pb2.LeaseRequest,
            "Push": data_plane_pb2.PushRequest,
            "HandBack": data_plane_pb2.HandBackRequest,
            "Beat": data_plane_pb2.BeatRequest,
            "Leave": data_plane_pb2.LeaveRequest,
        }.items()
    },
}


OF_POOL: dict[str, tuple[Any, list[Any]]] = {
    **{
        f"/astraflow.v1.FleetPlane/{name}": (message(pool="gpu"), [message(pool="cpu"), message()])
        for name, message in {
            "PlanChange": fleet_plane_pb2.PlanChangeRequest,
            "HoldPool": fleet_plane_pb2.HoldPoolRequest,
            "HandOver": fleet_plane_pb2.HandOverRequest,
        }.items()
    },
}
"""What who is bound to pool `gpu` may send, and what not."""

OF_ALL_POOLS = (
    *("TellTerms", "PauseFlow", "Evaluate", "StopEvaluation", "ChangePlugins"),
    *("Escalate", "SetKillSwitch", "RehearseProvider", "SetMaintainerMode", "BeatMaintainer", "KeepTranscript"),
)
"""What who is bound to a pool may not do at all."""

BY_WHAT_IT_NAMES = (
    *("DrainNode", "ApplyPlan", "ProposePlan", "RejectPlan"),
    *("MintJoinToken", "RevokeJoinToken", "RevokeCredential"),
)
"""A node, a plan, a token or a holder: the services know of which pool it is, and hold a caller that is bound to one to
it (tests of the desk, of joining dataflow, and of grants)."""


def routes_called(*names: str) -> set[str]:
    return {route for route in ROUTES if route.rpartition("/")[2] in names}


def test_every_route_that_changes_something_has_a_scope() -> None:
    scoped = {route for route, entry in ROUTES.items() if entry.scope is not None}
    assert scoped == set(OWN) | set(OF_POOL) | routes_called(*OF_ALL_POOLS)
    for_operators = {route for route, entry in ROUTES.items() if entry.roles & {Role.OPERATOR, Role.AGENT}}
    changing = for_operators - routes_called(*READ.split(), "Versions", "Enroll")
    assert changing == set(OF_POOL) | routes_called(*OF_ALL_POOLS, *BY_WHAT_IT_NAMES)


@pytest.mark.anyio
@pytest.mark.parametrize("role", [Role.OPERATOR, Role.AGENT])
async def test_who_is_bound_to_a_pool_touches_no_other_and_nothing_that_is_of_all(role: Role) -> None:
    bound = Seal(TOKEN).text(Caller(id=new_id(), role=role, expires_at=2e10, name="own", pool="gpu"))
    async with planes() as address, dial(address, token=bound) as link:
        for route, (own, others) in OF_POOL.items():
            assert await call(link, route, own) is role
            for other in others:
                with pytest.raises(NotPermitted, match="its credential is for pool gpu only"):
                    await call(link, route, other)
        for route in routes_called(*OF_ALL_POOLS):
            if role in ROUTES[route].roles:
                with pytest.raises(NotPermitted, match="what is of all pools is not this caller's"):
                    await call(link, route)
        for route in routes_called(*READ.split()):
            assert await call(link, route) is role, "looking is open"
    async with planes() as address, dial(address, token=credential(role)) as link:
        for route, (own, others) in OF_POOL.items():
            for request in (own, *others):
                assert await call(link, route, request) is role


@pytest.mark.anyio
@pytest.mark.parametrize("route", OWN)
async def test_a_node_and_a_trainer_touch_only_what_is_their_own(route: str) -> None:
    role = Role.NODE if "NodeData" in route else Role.TRAINER
    own, others = OWN[route]
    async with planes() as address, dial(address, token=credential(role)) as link:
        assert await call(link, route, own) is role
        for other in others:
            with pytest.raises(NotPermitted):
                await call(link, route, other)
    async with planes() as address, dial(address, token=TOKEN) as link:
        for request in (own, *others):
            assert await call(link, route, request) is Role.ADMIN


@pytest.mark.anyio
async def test_a_push_that_names_two_nodes_is_the_last_ones() -> None:
    twice = data_plane_pb2.PushRequest(node="own.1").SerializeToString()
    twice += data_plane_pb2.PushRequest(node="other.1").SerializeToString()
    async with planes() as address, dial(address, token=credential(Role.NODE)) as link:
        with pytest.raises(NotPermitted, match=r"node other\.1 is not this caller's"):
            await call(link, "/astraflow.v1.NodeData/Push", twice)


def credential(role: Role) -> str:
    """Of somebody named `own`."""
    if role is Role.ADMIN:
        return TOKEN
    grants = Role.NODE if role is Role.JOINER else None
    return Seal(TOKEN).text(
        Caller(
            id=new_id(), role=role, grants=grants, expires_at=2e10, name="own", pool="gpu" if role is Role.NODE else ""
        )
    )


async def outcomes(link: Link) -> dict[str, Role | AstraFlowError]:
    """Of a call to every route, with a request that is the caller's own."""

    async def outcome(route: str) -> Role | AstraFlowError:
        try:
            return await call(link, route, OWN[route][0] if route in OWN else None)
        except AstraFlowError as problem:
            return problem

    return dict(zip(METHODS, await asyncio.gather(*(outcome(route) for route in METHODS)), strict=True))


async def call(link: Link, route: str, request: Any = None) -> Role:
    """Which role the handler saw."""
    method = METHODS[route]
    made = request if isinstance(request, bytes) else (request or message_of(method.input_type)).SerializeToString()
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    stub: Callable[..., Any] = getattr(link.channel, kind)(route)
    given = iter([made]) if method.client_streaming else made
    if method.server_streaming:
        (said,) = [reply async for reply in link.stream(stub, given, timeout_s=10)]
    else:
        said = await link.call(stub, given, timeout_s=10)
    return Role(said.decode())


def message_of(descriptor: Any) -> Any:
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(descriptor)()


@asynccontextmanager
async def planes() -> AsyncIterator[str]:
    """All planes, whose handlers say in which role they were called, and nothing else."""

    async def unary(request: Any, context: Any) -> bytes:
        return current_caller().role.value.encode()

    async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
        yield current_caller().role.value.encode()

    async def drained(requests: AsyncIterator[Any], context: Any) -> bytes:
        async for _ in requests:
            pass
        return current_caller().role.value.encode()

    def handler(route: str) -> Any:
        method = METHODS[route]
        parse = None if route in RAW_REQUESTS else type(message_of(method.input_type)).FromString
        if method.client_streaming:
            return grpc.stream_unary_rpc_method_handler(drained, request_deserializer=parse)
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(stream, request_deserializer=parse)
        return grpc.unary_unary_rpc_method_handler(unary, request_deserializer=parse)

    def register(server: grpc.aio.Server) -> None:
        for service in {route.split("/")[1] for route in METHODS}:
            routes = [route for route in METHODS if route.split("/")[1] == service]
            handlers = {route.rpartition("/")[2]: handler(route) for route in routes}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    async with serving(Listen(token=TOKEN, drain_s=0.1), register) as address:
        yield address
