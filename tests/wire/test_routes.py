"""Access to every route of every plane for every role, in one complete table."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from astraflow.access.callers import Caller, Role, current_caller
from astraflow.access.credentials import CredentialSigner, new_id
from astraflow.contract.errors import AstraFlowError, NotAuthenticated, NotPermitted, RateLimited
from astraflow.wire.channel import ServiceChannel, dial
from astraflow.wire.codecs.frames import RAW_REQUESTS
from astraflow.wire.pb import common_pb2 as common
from astraflow.wire.pb import control_plane_pb2, data_plane_pb2, enrollment_pb2, fleet_plane_pb2, weight_plane_pb2
from astraflow.wire.routes import ROUTES
from astraflow.wire.server import ListenOptions, serving
from tests.errors import raises_code

TOKEN = "the-run-token"

METHODS = {
    f"/{service.full_name}/{method.name}": method
    for module in (data_plane_pb2, weight_plane_pb2, control_plane_pb2, enrollment_pb2, fleet_plane_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}

READ = (
    "GetReport WatchReport History Trajectories Rewards Groups SampleIndex Events TrainingSteps Evaluations WhatIf "
    "GetFleet Instances Decisions Proposals GetMaintainer Transcript Providers JoinTokens"
)
STEER = "DrainNode PauseFlow Evaluate StopEvaluation ChangePlugins MintJoinToken RevokeJoinToken RevokeCredential"
POOLS = "PlanChange ApplyPlan SetPoolHold Escalate SetKillSwitch ProposePlan HandOver RunPreflight"
MAY: dict[Role, str] = {
    Role.JOINER: "Enroll",
    Role.NODE: "Enroll Join Lease Push HandBack Heartbeat Leave Watch Plan Fetch Versions",
    Role.TRAINER: "Enroll Attach PullBatch ReportStep ReportWait ReportFailure Publish Watch Plan Fetch Versions "
    "Evaluations",
    Role.VIEWER: f"Enroll {READ} Versions",
    Role.OPERATOR: f"Enroll {READ} Versions {STEER} RejectPlan SetMaintainerMode WakeMaintainer {POOLS}",
    Role.AGENT: f"Enroll {READ} Versions {STEER} ReportFleetConstraints MaintainerHeartbeat AppendTranscript {POOLS}",
    Role.PAGE: f"Enroll {READ} Versions DrainNode PauseFlow ChangePlugins PlanChange ApplyPlan SetPoolHold "
    "SetKillSwitch RunPreflight RejectPlan SetMaintainerMode WakeMaintainer PutPool InjectFault",
    Role.ADMIN: " ".join(method.name for method in METHODS.values()),
}
"""Second, handwritten copy of the table: every change of the table must be intended."""


def test_the_table_has_exactly_the_routes_of_all_planes() -> None:
    assert set(ROUTES) == set(METHODS)


@pytest.mark.anyio
@pytest.mark.parametrize("role", Role)
async def test_a_role_can_call_exactly_its_routes(role: Role) -> None:
    async with planes() as address, dial(address, token=credential(role)) as link:
        allowed = {name for name, outcome in (await outcomes(link)).items() if outcome is role}
    assert allowed == {route for route in METHODS if route.rpartition("/")[2] in MAY[role].split()}


@pytest.mark.anyio
@pytest.mark.parametrize("token", ["", "wrong", "afc.e30.e30", "afj.e30.e30", "afc..", "Bearer the-run-token"])
async def test_every_route_requires_a_credential(token: str) -> None:
    async with planes() as address, dial(address, token=token) as link:
        for route, outcome in (await outcomes(link)).items():
            assert isinstance(outcome, (NotAuthenticated, RateLimited)), (
                route
            )  # after ten attempts the server refuses at once


@pytest.mark.anyio
async def test_roles_in_other_metadata_are_ignored() -> None:
    async with planes() as address, dial(address, token=credential(Role.VIEWER)) as link:
        claims = {"role": "admin", "x-role": "admin", "astraflow-role": "admin", "x-forwarded-user": "root"}
        link._metadata = (*link._metadata, *claims.items())
        with raises_code(NotPermitted, "route.not_permitted", "admin, agent, operator, page", "'viewer'"):
            await call(link, "/astraflow.v1.ControlPlane/PauseFlow")


@pytest.mark.anyio
async def test_a_credential_with_altered_claims_is_refused() -> None:
    altered_caller = Caller(id=new_id(), role=Role.ADMIN, expires_at=2e10, name="carol")
    seal = credential(Role.VIEWER).rpartition(".")[2]
    forged = [
        f"{CredentialSigner('a guess').sign(altered_caller).rpartition('.')[0]}.{seal}",
        CredentialSigner("a guess").sign(altered_caller),
    ]
    async with planes() as address:
        for token in forged:
            async with dial(address, token=token) as link:
                with raises_code(NotAuthenticated, "credential.invalid"):
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
    "/astraflow.v1.TrainerData/ReportFailure": (
        data_plane_pb2.ReportFailureRequest(policy="own"),
        [data_plane_pb2.ReportFailureRequest(policy="other")],
    ),
    "/astraflow.v1.TrainerData/ReportWait": (
        data_plane_pb2.ReportWaitRequest(policy="own"),
        [data_plane_pb2.ReportWaitRequest(policy="other")],
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
            "Heartbeat": data_plane_pb2.HeartbeatRequest,
            "Leave": data_plane_pb2.LeaveRequest,
        }.items()
    },
}


OF_POOL: dict[str, tuple[Any, list[Any]]] = {
    **{
        f"/astraflow.v1.FleetPlane/{name}": (message(pool="gpu"), [message(pool="cpu"), message()])
        for name, message in {
            "PlanChange": fleet_plane_pb2.PlanChangeRequest,
            "SetPoolHold": fleet_plane_pb2.SetPoolHoldRequest,
            "HandOver": fleet_plane_pb2.HandOverRequest,
        }.items()
    },
}
"""Allowed and refused requests of callers bound to pool `gpu`."""

OF_ALL_POOLS = (
    *("ReportFleetConstraints", "PauseFlow", "Evaluate", "StopEvaluation", "ChangePlugins"),
    *("Escalate", "SetKillSwitch", "RunPreflight", "SetMaintainerMode", "WakeMaintainer", "MaintainerHeartbeat"),
    "AppendTranscript",
)
"""Routes that refuse every caller bound to a pool."""

BY_WHAT_IT_NAMES = (
    *("DrainNode", "ApplyPlan", "ProposePlan", "RejectPlan"),
    *("MintJoinToken", "RevokeJoinToken", "RevokeCredential"),
)
"""Routes whose services check the pool of the named node, plan, token or holder; the services have tests of this."""


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
async def test_a_credential_of_one_pool_cannot_act_on_others_or_on_all(role: Role) -> None:
    bound = CredentialSigner(TOKEN).sign(Caller(id=new_id(), role=role, expires_at=2e10, name="own", pool="gpu"))
    async with planes() as address, dial(address, token=bound) as link:
        for route, (own, others) in OF_POOL.items():
            assert await call(link, route, own) is role
            for other in others:
                with raises_code(NotPermitted, "caller.wrong_pool", "'gpu'"):
                    await call(link, route, other)
        for route in routes_called(*OF_ALL_POOLS):
            if role in ROUTES[route].roles:
                with raises_code(NotPermitted, "caller.wrong_pool", "all pools"):
                    await call(link, route)
        for route in routes_called(*READ.split()):
            assert await call(link, route) is role, "read calls are allowed"
    async with planes() as address, dial(address, token=credential(role)) as link:
        for route, (own, others) in OF_POOL.items():
            for request in (own, *others):
                assert await call(link, route, request) is role


@pytest.mark.anyio
@pytest.mark.parametrize("route", OWN)
async def test_nodes_and_trainers_can_act_only_on_themselves(route: str) -> None:
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
async def test_a_trainer_publishes_the_base_of_its_own_adapters_and_of_no_others() -> None:
    route = "/astraflow.v1.WeightPlane/Publish"
    async with planes() as address, dial(address, token=credential(Role.TRAINER)) as link:
        assert await call(link, route, published("own.base")) is Role.TRAINER
        for other in ("other.base", "own.base.base", "own.x"):
            with raises_code(NotPermitted, "caller.wrong_name"):
                await call(link, route, published(other))


@pytest.mark.anyio
async def test_a_push_with_two_node_names_is_checked_by_the_last() -> None:
    twice = data_plane_pb2.PushRequest(node="own.1").SerializeToString()
    twice += data_plane_pb2.PushRequest(node="other.1").SerializeToString()
    async with planes() as address, dial(address, token=credential(Role.NODE)) as link:
        with raises_code(NotPermitted, "caller.wrong_name", "'other.1'"):
            await call(link, "/astraflow.v1.NodeData/Push", twice)


def credential(role: Role) -> str:
    """Returns a credential with the name `own`."""
    if role is Role.ADMIN:
        return TOKEN
    grants = Role.NODE if role is Role.JOINER else None
    return CredentialSigner(TOKEN).sign(
        Caller(
            id=new_id(), role=role, grants=grants, expires_at=2e10, name="own", pool="gpu" if role is Role.NODE else ""
        )
    )


async def outcomes(link: ServiceChannel) -> dict[str, Role | AstraFlowError]:
    """Calls every route with a request about the caller's own objects; returns role or error by route."""

    async def outcome(route: str) -> Role | AstraFlowError:
        try:
            return await call(link, route, OWN[route][0] if route in OWN else None)
        except AstraFlowError as problem:
            return problem

    return dict(zip(METHODS, await asyncio.gather(*(outcome(route) for route in METHODS)), strict=True))


async def call(link: ServiceChannel, route: str, request: Any = None) -> Role:
    """Calls a route; returns the role that the handler saw."""
    method = METHODS[route]
    request_bytes = (
        request if isinstance(request, bytes) else (request or message_of(method.input_type)).SerializeToString()
    )
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    stub: Callable[..., Any] = getattr(link.channel, kind)(route)
    body = iter([request_bytes]) if method.client_streaming else request_bytes
    if method.server_streaming:
        (answer,) = [reply async for reply in link.stream(stub, body, timeout_s=10)]
    else:
        answer = await link.call(stub, body, timeout_s=10)
    return Role(answer.decode())


def message_of(descriptor: Any) -> Any:
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(descriptor)()


@asynccontextmanager
async def planes() -> AsyncIterator[str]:
    """Serves all planes with handlers that return only the caller's role."""

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

    async with serving(ListenOptions(token=TOKEN, drain_s=0.1), register) as address:
        yield address
