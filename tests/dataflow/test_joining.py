"""Join tokens and their credentials over real gRPC without TLS; tests/system/test_secured.py covers TLS."""

import asyncio
import errno
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.access.authenticator import Authenticator
from astraflow.access.authority import Authority, new_request
from astraflow.access.callers import Role
from astraflow.access.credentials import read_claims
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.client.credential import join_run
from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.errors import Conflict, InvalidInput, NotAuthenticated, NotPermitted
from astraflow.contract.ids import NodeId, PoolId
from astraflow.contract.nodes import JoinToken, NodeFacts
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import render
from astraflow.contract.reports.queries import EventQuery
from astraflow.dataflow.service import serve
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.folders.private_files import write_private
from astraflow.wire.channel import dial
from astraflow.wire.pb import enrollment_pb2 as pb
from astraflow.wire.pb.enrollment_pb2_grpc import EnrollmentStub
from astraflow.wire.server import ListenOptions
from tests import make
from tests.dataflow.running import TOKEN, config, facts
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

MINTED: dict[str, Any] = {"actor": "ann", "reason": "more nodes"}


class MovableClock(SystemClock):
    """System clock that a test can advance."""

    ahead_s = 0.0
    passed_s = 0.0

    def ahead(self, passed_s: float) -> None:
        """Advances the wall clock and the monotonic clock, which leases and heartbeats use."""
        self.ahead_s += passed_s
        self.passed_s += passed_s

    def now(self) -> float:
        return super().now() + self.passed_s

    def wall(self) -> float:
        return super().wall() + self.ahead_s


class Dataflow:
    """Service at an address, and a control client with the run token."""

    def __init__(self, address: str, control: ControlPlaneClient, clock: MovableClock) -> None:
        self.address = address
        self.control = control
        self.clock = clock

    async def minted(self, role: str = "node", *, pool: str = "gpu", **options: Any) -> JoinToken:
        return await self.control.mint_join_token(role, pool=pool if role == "node" else "", **MINTED, **options)

    async def enrolled(self, token: str, request: bytes, *, name: str = "n", role: str = "", pool: str = "") -> str:
        async with dial(self.address, token=token) as link:
            enrollment = pb.EnrollRequest(signing_request=request, role=role, name=name, pool=pool)
            reply = await link.call(EnrollmentStub(link.channel).Enroll, enrollment, timeout_s=10)
        return str(reply.credential)

    async def events(self, *kinds: str) -> list[str]:
        await asyncio.sleep(0.3)  # until the events are in the archive
        page = await self.control.events(EventQuery(kinds=tuple(map(RecordKind, kinds)), limit=100))
        return [f"{event.kind.value}: {render(event)}" for event in page.events]


@asynccontextmanager
async def dataflow(directory: Path, *, authority: Authority | None = None) -> AsyncIterator[Dataflow]:
    stop, clock = asyncio.Event(), MovableClock()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(
            config(policies=("solver", "verifier")),
            listen=ListenOptions(token=TOKEN, drain_s=0.2, authority=authority),
            directory=directory,
            weights_address="127.0.0.1:1",
            stop=stop,
            on_ready=ready.set_result,
            clock=clock,
        )
    )
    try:
        async with dial(await ready, token=TOKEN) as link:
            yield Dataflow(await ready, ControlPlaneClient(link), clock)
    finally:
        stop.set()
        await serving


@asynccontextmanager
async def node(service: Dataflow, credential: str) -> AsyncIterator[NodeDataClient]:
    async with dial(service.address, token=credential) as link:
        yield NodeDataClient(link)


def own(name: str, pool: str = "gpu") -> NodeFacts:
    return replace(facts(name), pool=PoolId(pool))


async def test_a_join_token_is_exchanged_for_a_working_credential(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        minted = await service.minted()
        address, badge = await join_run(service.address, token=minted.token, role=Role.NODE, name="n", pool="gpu")
        assert address == service.address
        async with badge.dial(address) as link:
            welcome = await NodeDataClient(link).join(own("n"))
            assert welcome.node == "n.1"
            await badge.renew(link)
            assert (await NodeDataClient(link).lease(welcome.node, 1, wait_s=0)).tasks is not None
        assert await service.events("join_token_minted", "join_token_used") == [
            "join_token_used: by node n",
            "join_token_minted: for a node, pool gpu, by ann: more nodes",
        ]


async def test_a_join_token_works_once(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        minted, (_, first), (_, second) = await service.minted(), new_request(), new_request()
        await service.enrolled(minted.token, first)
        for name in ("n", "another"):
            with pytest.raises(NotPermitted) as caught:
                await service.enrolled(minted.token, second, name=name)
            assert caught.value.code == "join_token.used"
        assert len(await service.events("join_token_refused")) == 1  # reported once, repeats are counted


async def test_an_enrolment_can_be_repeated_with_the_same_key(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        minted, (_, request) = await service.minted(), new_request()
        await service.enrolled(minted.token, request)
        assert read_claims(await service.enrolled(minted.token, request)).name == "n"
        with pytest.raises(NotPermitted) as caught:
            await service.enrolled(minted.token, request, name="m")
        assert caught.value.code == "join_token.other_holder"


async def test_a_join_token_permits_only_its_role_name_and_pool(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        minted, (_, request) = await service.minted(name="n"), new_request()
        with pytest.raises(NotPermitted) as caught:
            await service.enrolled(minted.token, request, pool="cpu")
        assert caught.value.code == "join_token.other_holder"
        with pytest.raises(NotPermitted) as caught:
            await service.enrolled(minted.token, request, name="m")
        assert caught.value.code == "join_token.other_holder"
        with pytest.raises(NotPermitted) as caught:
            await service.enrolled(minted.token, request, role="agent")
        assert caught.value.code == "join_token.other_holder"
        async with dial(service.address, token=minted.token) as link:
            with raises_code(NotPermitted, "route.not_permitted", "'joiner'"):
                await NodeDataClient(link).join(own("n"))
        credential = await service.enrolled(minted.token, request)
        async with node(service, credential) as client:
            for wrong, code in ((own("m"), "caller.wrong_name"), (own("n", "cpu"), "caller.wrong_pool")):
                with raises_code(NotPermitted, code):
                    await client.join(wrong)


@pytest.mark.long
async def test_an_operator_of_one_pool_can_drain_only_its_nodes(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        nodes = {}
        for pool in ("gpu", "cpu"):
            minted = await service.minted(pool=pool)
            credential = await service.enrolled(minted.token, new_request()[1], name=f"n-{pool}")
            async with node(service, credential) as client:
                nodes[pool] = (await client.join(own(f"n-{pool}", pool))).node
        minted = await service.control.mint_join_token("operator", pool="gpu", name="otto", **MINTED)
        credential = await service.enrolled(minted.token, new_request()[1], name="otto", role="operator")
        assert read_claims(credential).pool == "gpu"
        async with dial(service.address, token=credential) as link:
            control = ControlPlaneClient(link)
            with raises_code(NotPermitted, "caller.wrong_pool", "'cpu'", "'gpu'"):
                await control.drain_node(nodes["cpu"], actor="otto", reason="to see")
            message = await control.drain_node(nodes["gpu"], actor="otto", reason="to see")
            assert message.startswith(nodes["gpu"])
            token = await control.mint_join_token("node", pool="gpu", actor="otto", reason="one more")
            assert read_claims(token.token).pool == "gpu"
            with raises_code(NotPermitted, "grant.pool_not_permitted", "'gpu'"):
                await control.mint_join_token("operator", name="eve", actor="otto", reason="all of them")
        with pytest.raises(InvalidInput) as caught:
            await service.control.mint_join_token("viewer", pool="gpu", name="v", **MINTED)
        assert caught.value.code == "credential.pool_not_allowed"


async def test_a_join_token_expires(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        minted, (_, request) = await service.minted(), new_request()
        assert minted.expires_at - service.clock.wall() == pytest.approx(900, abs=2)
        service.clock.ahead_s = 901
        with pytest.raises(NotAuthenticated) as caught:
            await service.enrolled(minted.token, request)
        assert caught.value.code == "join_token.expired"
        assert "has expired" in (await service.events("join_token_refused"))[0]


async def test_a_credential_expires(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        credential = await service.enrolled((await service.minted()).token, new_request()[1])
        async with node(service, credential) as client:
            await client.join(own("n"))
            service.clock.ahead_s = 24 * 3600 + 1
            with raises_code(NotAuthenticated, "credential.expired"):
                await client.join(own("n"))


async def test_a_revoked_join_token_is_refused(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        minted = await service.minted()
        assert "revoked" in await service.control.revoke_join_token(minted.id, actor="ann", reason="leaked")
        with raises_code(NotPermitted, "join_token.revoked"):
            await service.enrolled(minted.token, new_request()[1])
        with pytest.raises(InvalidInput) as caught:
            await service.control.revoke_join_token("x", actor="ann", reason="leaked")
        assert caught.value.code == "join_token.unknown"


@pytest.mark.parametrize("how", ["leave", "revoke"])
async def test_a_retired_node_rejoins_only_with_a_new_token(tmp_path: Path, how: str) -> None:
    async with dataflow(tmp_path) as service:
        minted, (_, request) = await service.minted(), new_request()
        credential = await service.enrolled(minted.token, request)
        async with node(service, credential) as client:
            welcome = await client.join(own("n"))
            leased = await client.lease(welcome.node, 2, wait_s=1)
            if how == "leave":
                assert await client.leave(welcome.node, reason="done") == len(leased.tasks) == 2
            else:
                message = await service.control.revoke_credential("node", "n", actor="ann", reason="gone")
                assert "2 tasks" in message
            with raises_code(NotAuthenticated, "credential.revoked"):
                await client.join(own("n"))
        with raises_code(NotPermitted, "join_token.revoked"):
            await service.enrolled(minted.token, request)
        await service.enrolled((await service.minted()).token, request)


@pytest.mark.long
async def test_tokens_and_credentials_survive_a_restart(tmp_path: Path) -> None:
    (_, request), (_, other) = new_request(), new_request()
    async with dataflow(tmp_path) as service:
        unused, used, revoked = [await service.minted() for _ in range(3)]
        kept = await service.enrolled(used.token, request, name="kept")
        gone = await service.enrolled((await service.minted()).token, other, name="gone")
        await service.control.revoke_credential("node", "gone", actor="ann", reason="gone")
        await service.control.revoke_join_token(revoked.id, actor="ann", reason="leaked")
    async with dataflow(tmp_path) as service:
        async with node(service, kept) as client:
            await client.join(own("kept"))
        async with node(service, gone) as client:
            with raises_code(NotAuthenticated, "credential.revoked"):
                await client.join(own("gone"))
        with pytest.raises(NotPermitted) as caught:
            await service.enrolled(used.token, other)
        assert caught.value.code == "join_token.used"
        with raises_code(NotPermitted, "join_token.revoked"):
            await service.enrolled(revoked.token, other)
        await service.enrolled(unused.token, other, name="new")


async def test_only_digests_of_secrets_are_stored(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        minted = await service.minted()
        credential = await service.enrolled(minted.token, new_request()[1])
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as database:
        assert len(database.execute("select * from credentials").fetchall()) == 2
    for path in tmp_path.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        for secret in (minted.token, credential, TOKEN):
            assert secret.encode() not in content
            assert secret.rpartition(".")[2].encode() not in content


async def test_a_name_in_use_is_not_assigned_again(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        await service.enrolled((await service.minted()).token, new_request()[1])
        with pytest.raises(Conflict) as caught:
            await service.enrolled((await service.minted()).token, new_request()[1])
        assert caught.value.code == "credential.name_taken"


async def test_a_trainer_joins_for_one_policy(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        minted = await service.minted("trainer", name="solver")
        credential = await service.enrolled(minted.token, new_request()[1], name="solver")
        assert (read_claims(credential).role, read_claims(credential).name) == (Role.TRAINER, "solver")
        with pytest.raises(InvalidInput) as caught:
            await service.minted("trainer", name="judge")
        assert caught.value.code == "credential.unknown_policy"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"role": "admin"}, "unknown role 'admin'"),
        ({"role": "node", "pool": ""}, "'' as PoolId: not a valid name"),
        ({"role": "node", "pool": "gpu", "name": "no name"}, "not a valid name"),
        ({"role": "viewer", "name": ""}, "not a valid name"),
        ({"role": "viewer", "name": "eve", "pool": "gpu"}, "belongs to no pool"),
        ({"role": "node", "pool": "gpu", "valid_s": 1e9}, "lifetime"),
        ({"role": "node", "pool": "gpu", "valid_s": float("nan")}, "valid_s"),
        ({"role": "node", "pool": "gpu", "reason": " "}, "reason"),
    ],
)
async def test_an_unusable_join_token_is_not_minted(tmp_path: Path, options: dict[str, Any], match: str) -> None:
    async with dataflow(tmp_path) as service:
        with pytest.raises(InvalidInput, match=match):
            await service.control.mint_join_token(**{**MINTED, **options})


@pytest.mark.parametrize("request_", [b"", b"garbage", b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n"])
async def test_an_invalid_signing_request_does_not_use_up_the_token(tmp_path: Path, request_: bytes) -> None:
    async with dataflow(tmp_path) as service:
        minted = await service.minted()
        with raises_code(InvalidInput, "certificate.invalid_request"):
            await service.enrolled(minted.token, request_)
        await service.enrolled(minted.token, new_request()[1])


async def test_the_actor_is_the_holder_of_the_credential(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        minted = await service.minted("operator", name="olga")
        credential = await service.enrolled(minted.token, new_request()[1], name="olga")
        async with dial(service.address, token=credential) as link:
            client = ControlPlaneClient(link)
            await client.pause_flow(config().flows and "train-solver", is_paused=True, actor="ann", reason="lunch")  # type: ignore[arg-type]  # a flow's id
        assert await service.events("flow_paused") == ["flow_paused: by operator olga: lunch"]


@pytest.mark.long
async def test_a_result_pushed_in_the_name_of_another_node_is_refused(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        holder_credential = await service.enrolled((await service.minted()).token, new_request()[1], name="holder")
        thief_credential = await service.enrolled((await service.minted()).token, new_request()[1], name="thief")
        async with node(service, holder_credential) as holder, node(service, thief_credential) as thief:
            held, thieves = (await holder.join(own("holder"))).node, (await thief.join(own("thief"))).node
            (task, *_) = (await holder.lease(held, 1, wait_s=1)).tasks
            with raises_code(NotPermitted, "caller.wrong_name", "'thief'"):
                await thief.push(held, [make.episode(task.id, node=held)])
            assert await thief.push(thieves, [make.episode(task.id, node=thieves)]) == ("late",)
            assert await thief.hand_back(thieves, []) == ()
            with pytest.raises(NotPermitted):
                await thief.leave(NodeId("holder.1"), reason="mischief")
            assert await holder.push(held, [make.episode(task.id, node=held)]) == ("accepted",)
        assert any("never held" in event for event in await service.events("push_refused"))


async def test_a_result_counts_after_the_lease_expired_and_the_node_rejoined(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        credential = await service.enrolled((await service.minted()).token, new_request()[1])
        async with node(service, credential) as client:
            first = (await client.join(own("n"))).node
            (task, *_) = (await client.lease(first, 1, wait_s=1)).tasks
            again = (await client.join(own("n"))).node  # the tasks of its earlier self return to the queue
            assert await client.push(again, [make.episode(task.id, node=again)]) == ("accepted",)


async def test_a_reusable_token_admits_any_number_of_nodes_of_its_pool(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        minted = await service.minted(is_reusable=True)
        assert minted.expires_at - service.clock.wall() == pytest.approx(7 * 24 * 3600, abs=2)
        credentials = [read_claims(await service.enrolled(minted.token, new_request()[1], name=n)) for n in ("a", "b")]
        assert [(credential.name, credential.pool, credential.role) for credential in credentials] == [
            ("a", "gpu", Role.NODE),
            ("b", "gpu", Role.NODE),
        ]
        with pytest.raises(NotPermitted):
            await service.enrolled(minted.token, new_request()[1], name="c", pool="cpu")
        with pytest.raises(NotPermitted):
            await service.enrolled(minted.token, new_request()[1], name="c", role="operator")
        (known,) = [join_token for join_token in await service.control.join_tokens() if join_token.id == minted.id]
        assert (known.uses, known.max_uses, known.state, known.is_reusable) == (2, 0, "minted", True)
        assert minted.token not in repr(known)


async def test_a_killed_node_rejoins_under_its_name_with_a_reusable_token(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        minted, (_, request) = await service.minted(is_reusable=True), new_request()
        first = await service.enrolled(minted.token, request)
        assert (
            read_claims(await service.enrolled(minted.token, request)).issued_from == minted.id
        )  # as after a lost answer
        async with node(service, first) as client:
            held = (await client.join(own("n"))).node
            (task, *_) = (await client.lease(held, 1, wait_s=1)).tasks
            with pytest.raises(Conflict):
                await service.enrolled(minted.token, new_request()[1])  # the node still sends heartbeats
            service.clock.ahead(1.0)
            second = await service.enrolled(minted.token, new_request()[1])
            with pytest.raises(NotAuthenticated):
                await client.push(held, [make.episode(task.id, node=held)])
        async with node(service, second) as client:
            assert (await client.join(own("n"))).node == "n.2"
            assert task.id in {task.id for task in (await client.lease(NodeId("n.2"), 4, wait_s=1)).tasks}
        uses = [join_token.uses for join_token in await service.control.join_tokens() if join_token.id == minted.id]
        assert uses == [2]


async def test_a_node_that_left_rejoins_with_a_reusable_token(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        minted = await service.minted(is_reusable=True)
        for incarnation in (1, 2, 3):
            credential = await service.enrolled(minted.token, new_request()[1])
            async with node(service, credential) as client:
                assert (await client.join(own("n"))).node == f"n.{incarnation}"
                await client.leave(NodeId(f"n.{incarnation}"), reason="restart")


async def test_a_reusable_token_cannot_take_the_name_of_another_tokens_node(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        await service.enrolled((await service.minted(pool="cpu")).token, new_request()[1])
        other = await service.minted(is_reusable=True)
        service.clock.ahead(3600.0)
        with pytest.raises(Conflict):
            await service.enrolled(other.token, new_request()[1])


async def test_revoking_a_reusable_token_revokes_its_credentials(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        minted, other = [await service.minted(is_reusable=True) for _ in range(2)]
        credential = await service.enrolled(minted.token, new_request()[1])
        renewed = await service.enrolled(credential, new_request()[1])
        spared = await service.enrolled(other.token, new_request()[1], name="spared")
        async with node(service, renewed) as client, node(service, spared) as spare:
            held = (await client.join(own("n"))).node
            assert len((await client.lease(held, 2, wait_s=1)).tasks) == 2
            message = await service.control.revoke_join_token(minted.id, actor="ann", reason="leaked")
            assert "2 tasks returned" in message
            with pytest.raises(NotAuthenticated):
                await client.join(own("n"))
            await spare.join(own("spared"))
        with pytest.raises(NotAuthenticated):
            await service.enrolled(credential, new_request()[1])
        with pytest.raises(NotPermitted):
            await service.enrolled(minted.token, new_request()[1])


async def test_a_revocation_that_cannot_be_written_is_a_problem_of_the_run_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    authority = Authority.create(tmp_path / "authority", run="run")
    weights = Authenticator(TOKEN, authority=authority)
    async with dataflow(tmp_path / "dataflow", authority=authority) as service:
        credential = await service.enrolled((await service.minted()).token, new_request()[1])
        monkeypatch.setattr("astraflow.access.revocations.write_private", refuse)
        message = await service.control.revoke_credential("node", "n", actor="ann", reason="leaked")
        assert "cannot publish" in message
        assert "revocations" in [problem.cause for problem in (await service.control.report()).problems]
        assert weights.caller(credential, None).name == "n", "it does not know yet"
        async with node(service, credential) as client:
            with pytest.raises(NotAuthenticated):
                await client.join(own("n"))
        monkeypatch.setattr("astraflow.access.revocations.write_private", write_private)
        async with asyncio.timeout(20):
            async for _ in service.control.watch_report():  # its first report may be from before the revocation
                if "revocations" not in [problem.cause for problem in (await service.control.report()).problems]:
                    break
        with raises_code(NotAuthenticated, "credential.revoked"):
            weights.caller(credential, None)


async def test_a_reusable_token_is_limited_in_time_and_uses(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        minted = await service.minted(is_reusable=True, max_uses=2, valid_s=7200.0)
        for name in ("a", "b"):
            await service.enrolled(minted.token, new_request()[1], name=name)
        with pytest.raises(NotPermitted):
            await service.enrolled(minted.token, new_request()[1], name="c")
        (known,) = await service.control.join_tokens()
        assert (known.uses, known.max_uses) == (2, 2)
        service.clock.ahead(7201.0)
        with pytest.raises(NotAuthenticated):
            await service.enrolled(minted.token, new_request()[1], name="a")
        assert await service.control.join_tokens() == ()


async def test_uses_of_a_reusable_token_survive_a_restart(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        minted = await service.minted(is_reusable=True, max_uses=2)
        await service.enrolled(minted.token, new_request()[1], name="a")
    async with dataflow(tmp_path) as service:
        await service.enrolled(minted.token, new_request()[1], name="a")  # the same node again
        with pytest.raises(NotPermitted):
            await service.enrolled(minted.token, new_request()[1], name="b")


@pytest.mark.parametrize(
    "options",
    [
        {"role": "operator", "name": "olga"},
        {"role": "trainer", "name": "solver"},
        {"role": "node", "pool": "gpu", "name": "n"},
        {"role": "node", "pool": ""},
        {"role": "node", "pool": "gpu", "valid_s": 30 * 24 * 3600.0 + 1},
        {"role": "node", "pool": "gpu", "valid_s": -1.0},
        {"role": "node", "pool": "gpu", "max_uses": 2**31},
        {"role": "node", "pool": "gpu", "max_uses": 2, "is_reusable": False},
    ],
)
async def test_an_invalid_reusable_token_is_not_minted(tmp_path: Path, options: dict[str, Any]) -> None:
    async with dataflow(tmp_path) as service:
        with pytest.raises(InvalidInput):
            await service.control.mint_join_token(**{"is_reusable": True, **MINTED, **options})
