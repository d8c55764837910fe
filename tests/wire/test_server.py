"""Who is let in, where a server listens, and how it stops."""

import asyncio
import socket
import time
from dataclasses import replace
from typing import cast

import pytest

from astraflow.access.callers import Caller, Role
from astraflow.access.credentials import Seal, new_id
from astraflow.access.limits import Rate
from astraflow.contract.errors import InvalidInput, NotAuthenticated, ProtocolMismatch, RateLimited, Unavailable
from astraflow.runtime.hosts import is_loopback
from astraflow.wire import channel
from astraflow.wire.channel import Link, dial
from astraflow.wire.pb import data_plane_pb2 as pb
from astraflow.wire.pb.data_plane_pb2_grpc import TrainerDataStub
from astraflow.wire.routes import ROUTES, Route
from astraflow.wire.server import Listen, keeper_of, serving
from tests.fakes.clock import ManualClock
from tests.soak.plan import Trouble
from tests.soak.proxy import Link as Way
from tests.wire.plane import TOKEN, Plane, stream, unary


@pytest.mark.anyio
@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN[:-1], TOKEN.upper()])
async def test_a_wrong_token_is_refused(token: str) -> None:
    async with serving(Listen(token=TOKEN), Plane(pieces=1).register) as address, dial(address, token=token) as link:
        with pytest.raises(NotAuthenticated, match="the run token is missing or wrong"):
            await unary(link)
        with pytest.raises(NotAuthenticated):
            await stream(link)


@pytest.mark.anyio
async def test_the_right_token_is_let_in() -> None:
    async with serving(Listen(token=TOKEN), Plane(pieces=3).register) as address, dial(address, token=TOKEN) as link:
        assert await unary(link, payload="hello") == "hello"
        assert await stream(link) == 3


@pytest.mark.anyio
async def test_a_far_away_server_is_reached_at_the_first_attempt() -> None:
    async with serving(Listen(token=TOKEN), Plane().register) as address:
        far = Way("far", address)
        async with far.serving() as door, dial(door, token=TOKEN) as link:
            delayed = asyncio.create_task(far.disturb(Trouble.DELAY, 60))
            assert await unary(link, payload="hello") == "hello"
            delayed.cancel()
            await asyncio.gather(delayed, return_exceptions=True)


@pytest.mark.anyio
async def test_without_a_token_on_loopback_everyone_of_this_machine_is_let_in() -> None:
    async with serving(Listen(token=""), Plane().register) as address, dial(address, token="") as link:
        assert await unary(link) == "run"


@pytest.mark.anyio
async def test_another_protocol_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(Listen(token=TOKEN), Plane().register) as address:
        monkeypatch.setattr(channel, "PROTOCOL", "0")
        async with dial(address, token=TOKEN) as link:
            with pytest.raises(ProtocolMismatch, match="speaks protocol 2, the caller 0: install the same release"):
                await unary(link)


@pytest.mark.anyio
async def test_a_caller_that_is_not_astraflow_is_told_so() -> None:
    async with serving(Listen(token=TOKEN), Plane().register) as address, dial(address, token=TOKEN) as link:
        link._metadata = ()  # as a foreign client would call
        with pytest.raises(ProtocolMismatch, match="the caller none"):
            await unary(link)


@pytest.mark.anyio
async def test_an_occupied_port_is_said_so() -> None:
    async with serving(Listen(token=TOKEN), Plane().register) as address:
        port = int(address.rpartition(":")[2])
        with pytest.raises(InvalidInput, match=rf"cannot listen on 127\.0\.0\.1:{port}: the port is in use"):
            async with serving(Listen(token=TOKEN, port=port), Plane().register):
                pass
        async with dial(address, token=TOKEN) as link:
            assert await unary(link) == "run"


@pytest.mark.anyio
async def test_a_port_held_by_something_else_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InvalidInput, match="choose another port"):
            async with serving(Listen(token=TOKEN, port=port)):
                pass


@pytest.mark.anyio
async def test_beyond_loopback_a_token_is_wanted() -> None:
    with pytest.raises(InvalidInput, match=r"refusing to listen on 0\.0\.0\.0 without a token"):
        async with serving(Listen(host="0.0.0.0", token="")):  # noqa: S104 (refused, which is the point)
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
def test_loopback_is_this_machine_only(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("port", [-1, 65536, 80000])
@pytest.mark.anyio
async def test_a_port_that_is_none_is_refused(port: int) -> None:
    with pytest.raises(InvalidInput, match=f"{port}: ports go from 1 to 65535"):
        async with serving(Listen(token=TOKEN, port=port)):
            pass


@pytest.mark.parametrize(
    "address",
    ["example", "", ":7000", "host:", "host:http", "host:0", "host:65536", "host:-1", "http://127.0.0.1:80", "h:1/x"],
)
def test_an_address_that_cannot_work_is_refused_at_once(address: str) -> None:
    with pytest.raises(InvalidInput, match="HOST:PORT"):
        dial(address, token=TOKEN)


@pytest.mark.parametrize("token", ["ü", "line\nbreak", "\x00"])
def test_a_token_that_cannot_be_sent_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(InvalidInput, match="the run token has characters") as found:
        dial("127.0.0.1:7000", token=token)
    assert token not in str(found.value)


@pytest.mark.anyio
@pytest.mark.needs("ipv6")
async def test_ipv6_addresses_are_written_in_brackets() -> None:
    async with serving(Listen(host="::1", token=TOKEN), Plane().register) as address:
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
        async with serving(Listen(token=TOKEN, drain_s=10.0), Plane(handle).register) as address:
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
async def test_a_call_that_does_not_end_is_cut_off_after_the_drain_and_may_be_tried_elsewhere() -> None:
    begun = asyncio.Event()

    async def handle() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with serving(Listen(token=TOKEN, drain_s=0.1), Plane(handle).register) as address:
        link = dial(address, token=TOKEN)
        calls = [asyncio.create_task(unary(link)), asyncio.create_task(stream(link))]
        await begun.wait()  # and a handler that is not cut off would never let the server end
    for call in calls:
        with pytest.raises(Unavailable, match="cannot reach"):
            await call
    await link.close()


@pytest.mark.anyio
async def test_a_link_reconnects_by_itself_after_the_server_was_away() -> None:
    async with serving(Listen(token=TOKEN), Plane().register) as address:
        link = dial(address, token=TOKEN)
        assert await unary(link) == "run"
    with pytest.raises(Unavailable):
        await unary(link)
    async with serving(Listen(token=TOKEN, port=int(address.rpartition(":")[2])), Plane().register):
        async with asyncio.timeout(30):
            while True:
                try:
                    assert await unary(link) == "run"
                    break
                except Unavailable:
                    await asyncio.sleep(0.02)
    await link.close()


@pytest.mark.anyio
async def test_who_is_wrong_too_often_has_to_wait_and_who_was_let_in_goes_on() -> None:
    clock = ManualClock()
    listen = Listen(token=TOKEN)
    plane = serving(listen, Plane(pieces=1).register, keeper=keeper_of(listen, clock=clock))
    async with plane as address, dial(address, token=TOKEN) as link, dial(address, token="wrong") as stranger:
        assert await unary(link) == "run"
        for _ in range(10):
            with pytest.raises(NotAuthenticated):
                await unary(stranger)
        with pytest.raises(RateLimited, match=r"127\.0\.0\.1 was refused 10 times .* the next is looked at in 6 s"):
            await unary(stranger)
        assert (await unary(link), await stream(link)) == ("run", 1)
        async with dial(address, token=Seal(TOKEN).text(trainer())) as late:
            with pytest.raises(RateLimited):  # it may be good: nobody says so before the time is over
                await unary(late, payload="p")
            clock.advance(6.0)
            assert await unary(late, payload="p") == "p"


@pytest.mark.anyio
async def test_who_joins_too_often_has_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        cast("dict[str, Route]", ROUTES), ATTACH, replace(ROUTES[ATTACH], rate=Rate(burst=2, per_minute=60.0))
    )
    clock = ManualClock()
    listen = Listen(token=TOKEN)
    plane = serving(listen, Plane().register, keeper=keeper_of(listen, clock=clock))
    async with plane as address, dial(address, token=TOKEN) as link:
        assert [await unary(link), await unary(link)] == ["run", "run"]
        with pytest.raises(RateLimited, match="asks for Attach more than 2 times at once and 60 times a minute"):
            await unary(link)
        clock.advance(1.0)
        assert await unary(link) == "run"


def test_joining_enrolling_and_asking_providers_have_a_rate() -> None:
    limited = {method for method, route in ROUTES.items() if route.rate is not None}
    assert limited == {
        "/astraflow.v1.Enrollment/Enroll",
        "/astraflow.v1.NodeData/Join",
        "/astraflow.v1.FleetPlane/RehearseProvider",
    }


@pytest.mark.anyio
async def test_a_stream_on_which_nothing_is_sent_ends_when_its_holder_is_revoked() -> None:
    idle, caller = asyncio.Event(), trainer()
    listen = Listen(token=TOKEN, recheck_s=0.05)
    keeper = keeper_of(listen)
    credential = Seal(TOKEN).text(caller)
    plane = serving(listen, Plane(idle.wait, pieces=1).register, keeper=keeper)
    async with plane as address, dial(address, token=credential) as link, dial(address, token=TOKEN) as other:
        open_ones = [asyncio.create_task(batches(one)) for one in (link, other)]
        assert await unary_while_idle(link, open_ones)
        keeper.revoked.add({caller.id: caller.expires_at}, now=time.time())
        with pytest.raises(NotAuthenticated, match="the credential was revoked"):
            await asyncio.wait_for(open_ones[0], 10.0)
        assert not open_ones[1].done()
        idle.set()
        assert await open_ones[1] == 1


async def batches(link: Link) -> int:
    """A stream of the trainer's own policy; how many pieces came."""
    stub = TrainerDataStub(link.channel)
    asked = pb.PullBatchRequest(policy="p")
    return len([piece async for piece in link.stream(stub.PullBatch, asked, timeout_s=None)])


async def unary_while_idle(link: Link, open_ones: list[asyncio.Task[int]]) -> bool:
    """Whether streams are open, and stay so, while their caller is good."""
    stub = TrainerDataStub(link.channel)
    await link.call(stub.ReportStep, pb.ReportStepRequest(policy="p"), timeout_s=10.0)
    await asyncio.sleep(0.3)  # several looks
    return not any(one.done() for one in open_ones)


def trainer() -> Caller:
    return Caller(id=new_id(), role=Role.TRAINER, expires_at=time.time() + 3600, name="p")


ATTACH = "/astraflow.v1.TrainerData/Attach"
