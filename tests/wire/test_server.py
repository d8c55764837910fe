"""Admission of callers, listening addresses, and shutdown of a server."""

import asyncio
import socket
import time
from dataclasses import replace
from typing import cast

import pytest

from astraflow.access.callers import Caller, Role
from astraflow.access.credentials import CredentialSigner, new_id
from astraflow.access.rate_limits import Rate
from astraflow.contract.errors import InvalidInput, NotAuthenticated, ProtocolMismatch, RateLimited, Unavailable
from astraflow.runtime.http.hosts import is_loopback
from astraflow.wire import channel
from astraflow.wire.channel import ServiceChannel, dial
from astraflow.wire.pb import data_plane_pb2 as pb
from astraflow.wire.pb.data_plane_pb2_grpc import TrainerDataStub
from astraflow.wire.routes import ROUTES, Route
from astraflow.wire.server import ListenOptions, authenticator_for, serving
from soak.fault_plan import LinkFault
from soak.proxy import Link as Way
from tests.errors import raises_code
from tests.fakes.clock import ManualClock
from tests.wire.plane import TOKEN, Plane, stream, unary


@pytest.mark.anyio
@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN[:-1], TOKEN.upper()])
async def test_a_wrong_token_is_refused(token: str) -> None:
    async with (
        serving(ListenOptions(token=TOKEN), Plane(pieces=1).register) as address,
        dial(address, token=token) as link,
    ):
        with raises_code(NotAuthenticated, "token.invalid"):
            await unary(link)
        with pytest.raises(NotAuthenticated):
            await stream(link)


@pytest.mark.anyio
async def test_the_right_token_is_accepted() -> None:
    async with (
        serving(ListenOptions(token=TOKEN), Plane(pieces=3).register) as address,
        dial(address, token=TOKEN) as link,
    ):
        assert await unary(link, payload="hello") == "hello"
        assert await stream(link) == 3


@pytest.mark.anyio
async def test_a_server_with_a_high_latency_is_reached_at_the_first_attempt() -> None:
    async with serving(ListenOptions(token=TOKEN), Plane().register) as address:
        far = Way("far", address)
        async with far.serving() as door, dial(door, token=TOKEN) as link:
            delayed = asyncio.create_task(far.disturb(LinkFault.DELAY, 60))
            assert await unary(link, payload="hello") == "hello"
            delayed.cancel()
            await asyncio.gather(delayed, return_exceptions=True)


@pytest.mark.anyio
async def test_without_a_token_local_clients_are_accepted_on_loopback() -> None:
    async with serving(ListenOptions(token=""), Plane().register) as address, dial(address, token="") as link:
        assert await unary(link) == "run"


@pytest.mark.anyio
async def test_another_protocol_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(ListenOptions(token=TOKEN), Plane().register) as address:
        monkeypatch.setattr(channel, "PROTOCOL", "0")
        async with dial(address, token=TOKEN) as link:
            with raises_code(ProtocolMismatch, "protocol.mismatch", "'0'"):
                await unary(link)


@pytest.mark.anyio
async def test_a_caller_without_a_protocol_version_is_refused() -> None:
    async with serving(ListenOptions(token=TOKEN), Plane().register) as address, dial(address, token=TOKEN) as link:
        link._metadata = ()  # as a client of another protocol would call
        with raises_code(ProtocolMismatch, "protocol.mismatch", "'none'"):
            await unary(link)


@pytest.mark.anyio
async def test_a_port_of_another_astraflow_service_is_refused() -> None:
    async with serving(ListenOptions(token=TOKEN), Plane().register) as address:
        port = int(address.rpartition(":")[2])
        with raises_code(InvalidInput, "listen.address_unavailable", f"127.0.0.1:{port}"):
            async with serving(ListenOptions(token=TOKEN, port=port), Plane().register):
                pass
        async with dial(address, token=TOKEN) as link:
            assert await unary(link) == "run"


@pytest.mark.anyio
async def test_a_port_of_another_program_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with raises_code(InvalidInput, "listen.address_unavailable", f"127.0.0.1:{port}"):
            async with serving(ListenOptions(token=TOKEN, port=port)):
                pass


@pytest.mark.anyio
async def test_listening_beyond_loopback_requires_a_token() -> None:
    with raises_code(InvalidInput, "listen.token_required", "'0.0.0.0'"):
        async with serving(ListenOptions(host="0.0.0.0", token="")):  # noqa: S104 (refused)
            pass


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("0.0.0.0", False),  # noqa: S104 (not bound)
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
    ],
)
def test_only_loopback_addresses_are_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("port", [-1, 65536, 80000])
@pytest.mark.anyio
async def test_a_port_out_of_range_is_refused(port: int) -> None:
    with raises_code(InvalidInput, "listen.invalid_port", f"127.0.0.1:{port}:"):
        async with serving(ListenOptions(token=TOKEN, port=port)):
            pass


@pytest.mark.parametrize(
    "address",
    ["example", "", ":7000", "host:", "host:http", "host:0", "host:65536", "host:-1", "http://127.0.0.1:80", "h:1/x"],
)
def test_an_invalid_address_is_refused_before_the_connection(address: str) -> None:
    with raises_code(InvalidInput, "channel.invalid_address", "HOST:PORT"):
        dial(address, token=TOKEN)


@pytest.mark.parametrize("token", ["ü", "line\nbreak", "\x00"])
def test_a_malformed_token_is_refused_and_not_in_the_error(token: str) -> None:
    with raises_code(InvalidInput, "token.malformed") as caught:
        dial("127.0.0.1:7000", token=token)
    assert token not in str(caught.value)


@pytest.mark.anyio
@pytest.mark.needs("ipv6")
async def test_ipv6_addresses_are_written_in_brackets() -> None:
    async with serving(ListenOptions(host="::1", token=TOKEN), Plane().register) as address:
        assert address.startswith("[::1]:")
        async with dial(address, token=TOKEN) as link:
            assert await unary(link) == "run"


@pytest.mark.anyio
async def test_a_call_in_flight_ends_before_the_server_stops() -> None:
    begun, release, order = asyncio.Event(), asyncio.Event(), []

    async def handle() -> None:
        begun.set()
        await release.wait()
        order.append("handled")

    async def serve_until_stopped() -> None:
        async with serving(ListenOptions(token=TOKEN, drain_s=10.0), Plane(handle).register) as address:
            addresses.set_result(address)
            await begun.wait()
        order.append("stopped")

    addresses: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve_until_stopped())
    async with dial(await addresses, token=TOKEN) as link:
        call = asyncio.create_task(unary(link))
        await begun.wait()
        async with dial(await addresses, token=TOKEN) as other:
            while True:  # new calls are refused as soon as the server drains
                refused = await asyncio.gather(unary(other, timeout_s=0.2), return_exceptions=True)
                if isinstance(refused[0], Unavailable):
                    break
        release.set()
        assert await call == "run"
    await server
    assert order[0] == "handled"
    assert order[-1] == "stopped"


@pytest.mark.anyio
async def test_an_endless_call_is_cancelled_after_the_drain_as_unavailable() -> None:
    begun = asyncio.Event()

    async def handle() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with serving(ListenOptions(token=TOKEN, drain_s=0.1), Plane(handle).register) as address:
        link = dial(address, token=TOKEN)
        calls = [asyncio.create_task(unary(link)), asyncio.create_task(stream(link))]
        await begun.wait()  # a handler that is not cancelled would keep the server running
    for call in calls:
        with raises_code(Unavailable, "channel.unreachable", "cannot reach"):
            await call
    await link.close()


@pytest.mark.anyio
async def test_a_link_reconnects_after_an_outage_of_the_server() -> None:
    async with serving(ListenOptions(token=TOKEN), Plane().register) as address:
        link = dial(address, token=TOKEN)
        assert await unary(link) == "run"
    with pytest.raises(Unavailable):
        await unary(link)
    async with serving(ListenOptions(token=TOKEN, port=int(address.rpartition(":")[2])), Plane().register):
        async with asyncio.timeout(30):
            while True:
                try:
                    assert await unary(link) == "run"
                    break
                except Unavailable:
                    await asyncio.sleep(0.02)
    await link.close()


@pytest.mark.anyio
async def test_too_many_failed_logins_are_limited_and_open_connections_continue() -> None:
    clock = ManualClock()
    listen = ListenOptions(token=TOKEN)
    plane = serving(listen, Plane(pieces=1).register, authenticator=authenticator_for(listen, clock=clock))
    async with plane as address, dial(address, token=TOKEN) as link, dial(address, token="wrong") as stranger:
        assert await unary(link) == "run"
        for _ in range(10):
            with pytest.raises(NotAuthenticated):
                await unary(stranger)
        with raises_code(RateLimited, "rate_limit.failures", "127.0.0.1", "10 attempts", "6 s"):
            await unary(stranger)
        assert (await unary(link), await stream(link)) == ("run", 1)
        async with dial(address, token=CredentialSigner(TOKEN).sign(trainer())) as late:
            with pytest.raises(RateLimited):  # valid credentials are refused too until the time is over
                await unary(late, payload="p")
            clock.advance(6.0)
            assert await unary(late, payload="p") == "p"


@pytest.mark.anyio
async def test_too_many_joins_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        cast("dict[str, Route]", ROUTES), ATTACH, replace(ROUTES[ATTACH], rate=Rate(burst=2, per_minute=60.0))
    )
    clock = ManualClock()
    listen = ListenOptions(token=TOKEN)
    plane = serving(listen, Plane().register, authenticator=authenticator_for(listen, clock=clock))
    async with plane as address, dial(address, token=TOKEN) as link:
        assert [await unary(link), await unary(link)] == ["run", "run"]
        with raises_code(RateLimited, "rate_limit.calls", "2 calls", "60 calls"):
            await unary(link)
        clock.advance(1.0)
        assert await unary(link) == "run"


def test_joins_enrolments_and_preflights_are_rate_limited() -> None:
    limited = {method for method, route in ROUTES.items() if route.rate is not None}
    assert limited == {
        "/astraflow.v1.Enrollment/Enroll",
        "/astraflow.v1.NodeData/Join",
        "/astraflow.v1.FleetPlane/RunPreflight",
    }


@pytest.mark.anyio
async def test_an_idle_stream_ends_when_its_credential_is_revoked() -> None:
    idle, caller = asyncio.Event(), trainer()
    listen = ListenOptions(token=TOKEN, recheck_s=0.05)
    keeper = authenticator_for(listen)
    credential = CredentialSigner(TOKEN).sign(caller)
    plane = serving(listen, Plane(idle.wait, pieces=1).register, authenticator=keeper)
    async with plane as address, dial(address, token=credential) as link, dial(address, token=TOKEN) as other:
        open_ones = [asyncio.create_task(batches(connection)) for connection in (link, other)]
        assert await unary_while_idle(link, open_ones)
        keeper.revoked.add({caller.id: caller.expires_at}, now=time.time())
        with raises_code(NotAuthenticated, "credential.revoked"):
            await asyncio.wait_for(open_ones[0], 10.0)
        assert not open_ones[1].done()
        idle.set()
        assert await open_ones[1] == 1


async def batches(link: ServiceChannel) -> int:
    """Streams batches of the trainer's own policy; returns the number of pieces."""
    stub = TrainerDataStub(link.channel)
    request = pb.PullBatchRequest(policy="p")
    return len([piece async for piece in link.stream(stub.PullBatch, request, timeout_s=None)])


async def unary_while_idle(link: ServiceChannel, open_ones: list[asyncio.Task[int]]) -> bool:
    """Returns whether streams stay open while the caller's credential is valid."""
    stub = TrainerDataStub(link.channel)
    await link.call(stub.ReportStep, pb.ReportStepRequest(policy="p"), timeout_s=10.0)
    await asyncio.sleep(0.3)  # several checks
    return not any(batches_task.done() for batches_task in open_ones)


def trainer() -> Caller:
    return Caller(id=new_id(), role=Role.TRAINER, expires_at=time.time() + 3600, name="p")


ATTACH = "/astraflow.v1.TrainerData/Attach"
