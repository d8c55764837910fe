"""A whole run over mutual TLS with certificates of its own authority, and the clients that it rejects."""

import asyncio
import stat
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.access.authority import Authority, new_request
from astraflow.access.callers import Caller, Role
from astraflow.access.credentials import CredentialSigner, new_id
from astraflow.client.connect import PageAccess, connect_page
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.client.credential import join_run
from astraflow.client.credential_file import CredentialFile
from astraflow.client.data_plane import NodeDataClient
from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import InvalidInput, NotAuthenticated, NotPermitted, ProtocolMismatch, Unavailable
from astraflow.contract.ids import FlowId, PolicyId, PoolId
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import render
from astraflow.contract.reports.queries import EventQuery
from astraflow.contract.reports.report import Report
from astraflow.dataflow.config import DataflowConfig
from astraflow.dataflow.service import serve as serve_dataflow
from astraflow.raas.config import RaasConfig
from astraflow.raas.service import serve as serve_node
from astraflow.runtime import logs
from astraflow.runtime.service import flattened_errors
from astraflow.trainer.config import TrainerConfig
from astraflow.trainer.service import serve as serve_trainer
from astraflow.weights.config import WeightsConfig
from astraflow.weights.service import running as weights_running
from astraflow.weights.signing import SigningKey
from astraflow.wire.channel import ClientTls, ServiceChannel, authority_client_tls, dial
from astraflow.wire.pb.enrollment_pb2 import EnrollRequest
from astraflow.wire.pb.enrollment_pb2_grpc import EnrollmentStub
from astraflow.wire.server import ListenOptions, authority_tls, serving
from tests.dataflow.running import config, facts
from tests.dataflow.test_joining import MovableClock
from tests.errors import raises_code
from tests.system.processes import ROOT, command

pytestmark = pytest.mark.anyio

TOKEN = "canary-run-token-4711"
SOLVER = PolicyId("solver")
MINTED: dict[str, Any] = {"actor": "ann", "reason": "more nodes"}
ENGINE = {"kind": "scripted", "first_token_s": {"mean": 0.001}, "tokens": {"mean": 8}, "tokens_per_s": 0, "swap_s": 0}


@dataclass(kw_only=True)
class Secured:
    """Services of a run, and a client that holds the run token and its authority."""

    authority: Authority
    signing: SigningKey
    dataflow: str
    weights: str
    clock: MovableClock
    link: ServiceChannel
    control: ControlPlaneClient
    directory: Path

    async def minted(self, role: str, *, pool: str = "", name: str = "") -> tuple[str, str]:
        """Returns the address to join and a new token."""
        token = await self.control.mint_join_token(role, pool=pool, name=name, **MINTED)
        return f"127.0.0.1:{token.port}", token.token

    async def until(self, holds: Callable[[Report], bool]) -> Report:
        deadline = time.monotonic() + 30
        while not holds(report := await self.control.report()):
            assert time.monotonic() < deadline, report
            await asyncio.sleep(0.05)
        return report

    async def node(self, name: str) -> asyncio.Task[None]:
        address, token = await self.minted("node", pool="gpu")
        chosen = RaasConfig(name=name, pool="gpu", capacity=8, engine=ENGINE)
        return asyncio.create_task(serve_node(chosen, dataflow=address, token=token, tls=None, stop=asyncio.Event()))


def run_config() -> DataflowConfig:
    """Returns a configuration with prompts that the scripted engine can answer."""
    run = config()
    flows = {name: flow.model_copy(update={"dataset": {"kind": "scripted"}}) for name, flow in run.flows.items()}
    return run.model_copy(update={"flows": flows})


@asynccontextmanager
async def secured(directory: Path) -> AsyncIterator[Secured]:
    authority, signing, clock = (
        Authority.create(directory / "authority", run="test"),
        SigningKey.generate(),
        MovableClock(),
    )

    def listen() -> ListenOptions:
        return ListenOptions(token=TOKEN, tls=authority_tls(authority, "127.0.0.1"), authority=authority, drain_s=0.2)

    stop = asyncio.Event()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    store = weights_running(WeightsConfig(), listen=listen(), directory=directory / "weights", trusted=signing.public)
    async with store as weights:
        dataflow = asyncio.create_task(
            serve_dataflow(
                run_config(),
                listen=listen(),
                directory=directory / "dataflow",
                weights_address=weights,
                weights_key=signing.public.raw,
                stop=stop,
                on_ready=ready.set_result,
                clock=clock,
            )
        )
        try:
            async with dial(await ready, token=TOKEN, tls=authority_client_tls(authority)) as link:
                yield Secured(
                    authority=authority,
                    signing=signing,
                    dataflow=await ready,
                    weights=weights,
                    clock=clock,
                    link=link,
                    control=ControlPlaneClient(link),
                    directory=directory,
                )
        finally:
            stop.set()
            await dataflow


@asynccontextmanager
async def training(run: Secured, *nodes: str) -> AsyncIterator[dict[str, asyncio.Task[None]]]:
    """Starts a trainer and nodes, each of which joins with a token of its own."""
    address, token = await run.minted("trainer", name="solver")
    trainer = TrainerConfig(
        policy="solver", model={"kind": "scripted"}, backend={"kind": "scripted", "step_s": 0.0, "width": 16}
    )
    tasks = {
        "trainer": asyncio.create_task(
            serve_trainer(
                trainer,
                dataflow=address,
                token=token,
                tls=None,
                directory=run.directory / "trainer",
                stop=asyncio.Event(),
                signing=run.signing,
            )
        )
    }
    tasks |= {name: await run.node(name) for name in nodes}
    try:
        yield tasks
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


@pytest.mark.long
async def test_a_retired_node_is_disconnected_immediately(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure(level="DEBUG", as_json=True)
    async with secured(tmp_path) as run, training(run, "n1", "n2") as tasks:
        await run.until(lambda report: report.streams[0].training.steps >= 3 and len(report.nodes) == 2)
        store = WeightPlaneClient(dial(run.weights, token=TOKEN, tls=authority_client_tls(run.authority)))
        run.signing.public.check((await store.plan(SOLVER, have=None)).manifest)
        await store._link.close()

        message = await run.control.revoke_credential("node", "n2", actor="ann", reason="not needed")
        assert "n2" in message
        async with asyncio.timeout(30):
            await asyncio.wait({tasks["n2"]})
        problem = tasks["n2"].exception()
        assert isinstance(problem, BaseExceptionGroup)
        assert {type(leaf) for leaf in flattened_errors(problem)} == {NotAuthenticated}
        assert "was revoked" in str(flattened_errors(problem)[0])

        steps = (await run.control.report()).streams[0].training.steps
        report = await run.until(lambda report: report.streams[0].training.steps >= steps + 3)
        assert [node.facts.name for node in report.nodes if node.state.value == "ready"] == ["n1"]
        assert not tasks["trainer"].done()
    shown = "".join(capfd.readouterr()) + repr(report)
    assert "canary" not in shown
    assert "afc." not in shown
    assert "afj." not in shown
    assert "PRIVATE KEY" not in shown


async def test_the_weight_store_refuses_retired_nodes(tmp_path: Path) -> None:
    async with secured(tmp_path) as run:
        address, token = await run.minted("node", pool="gpu")
        dataflow, badge = await join_run(address, token=token, role=Role.NODE, name="n", pool="gpu")
        async with badge.dial(run.weights) as link, badge.dial(dataflow) as data_link:
            assert await WeightPlaneClient(link).versions(SOLVER) == ()
            welcome = await NodeDataClient(data_link).join(replace(facts("n"), pool=PoolId("gpu")))
            await NodeDataClient(data_link).leave(welcome.node, reason="done")
            with raises_code(NotAuthenticated, "credential.revoked", "was revoked"):
                await WeightPlaneClient(link).versions(SOLVER)


async def test_renewing_a_certificate_drops_no_calls(tmp_path: Path) -> None:
    async with secured(tmp_path) as run:
        address, token = await run.minted("node", pool="gpu")
        dataflow, badge = await join_run(address, token=token, role=Role.NODE, name="n", pool="gpu")
        async with badge.dial(dataflow) as link, badge.dial(run.weights) as store:
            client = NodeDataClient(link)
            welcome = await client.join(replace(facts("n"), pool=PoolId("gpu")))
            first = link._tls
            while (await client.lease(welcome.node, 64, wait_s=0)).tasks:
                pass  # until there is nothing to lease, so that the next lease waits
            waiting = asyncio.create_task(client.lease(welcome.node, 1, wait_s=1.0))
            watching = asyncio.create_task(first_version(WeightPlaneClient(store)))
            await asyncio.sleep(0.2)
            await badge.renew(link)
            assert link._tls != first
            assert (await client.lease(welcome.node, 1, wait_s=0)).tasks == ()
            assert (await waiting).tasks == ()
            with raises_code(Unavailable, "channel.renewed"):
                await watching


async def test_a_certificate_that_has_expired_by_the_services_clock_is_refused(tmp_path: Path) -> None:
    async with secured(tmp_path) as run:
        address, token = await run.minted("node", pool="gpu")
        dataflow, badge = await join_run(address, token=token, role=Role.NODE, name="n", pool="gpu")
        async with badge.dial(dataflow) as link:
            await NodeDataClient(link).join(replace(facts("n"), pool=PoolId("gpu")))
            run.clock.ahead_s = 24 * 3600 + 1
            with raises_code(NotAuthenticated, "credential.expired"):
                await NodeDataClient(link).join(replace(facts("n"), pool=PoolId("gpu")))


async def test_open_streams_of_a_revoked_credential_end(tmp_path: Path) -> None:
    async with secured(tmp_path) as run:
        address, token = await run.minted("viewer", name="vera")
        dataflow, badge = await join_run(address, token=token, role=Role.VIEWER, name="vera")
        async with badge.dial(dataflow) as link:
            reports = 0
            with raises_code(NotAuthenticated, "credential.revoked", "was revoked"):
                async with asyncio.timeout(20):
                    async for _ in ControlPlaneClient(link).watch_report():
                        reports += 1
                        if reports == 2:
                            await run.control.revoke_credential("viewer", "vera", actor="ann", reason="enough")
            assert reports == 2


async def test_a_killed_node_rejoins_with_its_stored_credential(tmp_path: Path) -> None:
    async with secured(tmp_path) as run:
        address, token = await run.minted("node", pool="gpu")
        joining: dict[str, Any] = {"token": token, "role": Role.NODE, "name": "n", "pool": "gpu"}
        keep = tmp_path / "kept"
        dataflow, badge = await join_run(address, **joining, credential_folder=keep)
        file = keep / "credential.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        before = file.read_text()
        with pytest.raises(NotPermitted) as caught:
            await join_run(address, **joining)
        assert caught.value.code == "join_token.used"

        dataflow, back = await join_run(address, **joining, credential_folder=keep)
        assert dataflow == run.dataflow
        assert file.read_text() != before  # the renewed certificate
        async with back.dial(dataflow) as link, back.dial(run.weights) as store:
            assert (await NodeDataClient(link).join(replace(facts("n"), pool=PoolId("gpu")))).node == "n.1"
            assert await WeightPlaneClient(store).versions(SOLVER) == ()
            await back.renew(link)
        _, again = await join_run(address, **joining, credential_folder=keep)
        assert again.secrets[0] != back.secrets[0]

        await run.control.revoke_credential("node", "n", actor="ann", reason="retired")
        with raises_code(NotPermitted, "join_token.revoked", "was revoked"):
            await join_run(address, **joining, credential_folder=keep)
        assert not file.exists()
        assert "afc." not in repr(CredentialFile(keep)) + repr(badge)


async def test_the_credential_file_belongs_to_one_name_and_address_and_is_written_atomically(tmp_path: Path) -> None:
    async with secured(tmp_path) as run:
        address, token = await run.minted("node", pool="gpu", name="n")
        await join_run(address, token=token, role=Role.NODE, name="n", pool="gpu", credential_folder=tmp_path)
        _, other = await run.minted("node", pool="gpu", name="m")
        await join_run(address, token=other, role=Role.NODE, name="m", pool="gpu", credential_folder=tmp_path)
        stored_credential = CredentialFile(tmp_path).read()
        assert stored_credential is not None
        assert (stored_credential.name, stored_credential.address, stored_credential.dataflow) == (
            "m",
            address,
            run.dataflow,
        )
        (tmp_path / "credential.json").write_text('{"name": "m"')
        with raises_code(InvalidInput, "credential_file.unreadable"):
            await join_run(address, token=other, role=Role.NODE, name="m", pool="gpu", credential_folder=tmp_path)


async def trained(run: Secured, **how: Any) -> asyncio.Task[None]:
    """Starts the trainer process with the address to join and its credentials."""
    trainer = TrainerConfig(
        policy="solver", model={"kind": "scripted"}, backend={"kind": "scripted", "step_s": 0.0, "width": 16}
    )
    directory = run.directory / "trainer"
    return asyncio.create_task(
        serve_trainer(trainer, tls=None, directory=directory, stop=asyncio.Event(), signing=run.signing, **how)
    )


async def ended(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.long
@pytest.mark.parametrize("shows", ["a join token", "the run token and the pin"])
async def test_a_killed_trainer_resumes_with_its_stored_credential(tmp_path: Path, shows: str) -> None:
    async with secured(tmp_path) as run:
        address, token = await run.minted("trainer", name="solver")
        how: dict[str, Any] = {"dataflow": address, "credential_folder": tmp_path / "kept"}
        how |= {"token": token} if shows == "a join token" else {"token": TOKEN, "ca_hash": run.authority.pin}
        node = await run.node("n")
        for _ in range(2):
            steps = (await run.control.report()).streams[0].training.steps
            process = await trained(run, **how)
            await run.until(lambda report, steps=steps: report.streams[0].steps >= steps + 2)  # type: ignore[misc]
            assert not process.done()
            await ended(process)
        await ended(node)
        assert stat.S_IMODE((tmp_path / "kept" / "credential.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("shows", ["a join token", "the run token and the pin"])
async def test_a_remote_page_acts_for_people_and_resumes_with_its_stored_credential(tmp_path: Path, shows: str) -> None:
    async with secured(tmp_path) as run:
        address, token = await run.minted("page", name="east")
        has_token = shows == "a join token"
        access = PageAccess(
            token=token if has_token else TOKEN,
            ca_hash="" if has_token else run.authority.pin,
            credential_folder=tmp_path / "kept",
        )
        for _ in range(2):
            async with connect_page(address, "", access) as (control, fleet):
                assert fleet is None
                await control.pause_flow(FlowId("train-solver"), is_paused=True, actor="ann", reason="lunch")
                with pytest.raises(NotPermitted):
                    await control.mint_join_token("node", pool="gpu", **MINTED)
        stored_credential = CredentialFile(tmp_path / "kept").read()
        assert stored_credential is not None
        assert stored_credential.role == "page"
        await asyncio.sleep(0.3)  # until the archive has the trajectories
        events = (await run.control.events(EventQuery(kinds=(RecordKind.FLOW_PAUSED,), limit=10))).events
        assert {render(event) for event in events} == {"by ann: lunch"}
        await run.control.revoke_credential("page", stored_credential.name, actor="ann", reason="enough")
        async with dial(
            stored_credential.dataflow, token=stored_credential.credential, tls=stored_credential.tls
        ) as link:
            with pytest.raises(NotAuthenticated):
                await ControlPlaneClient(link).report()


async def test_a_page_restarts_with_its_stored_credential_while_dataflow_is_unreachable(tmp_path: Path) -> None:
    async with secured(tmp_path) as run:
        address, token = await run.minted("page", name="east")
        joining: dict[str, Any] = {
            "token": token,
            "role": Role.PAGE,
            "name": "east",
            "credential_folder": tmp_path / "kept",
        }
        dataflow, _ = await join_run(address, **joining)
    back, badge = await join_run(address, **joining, give_up_after_s=0.2)
    assert back == dataflow
    late = MovableClock()
    late.ahead(25 * 3600.0)
    with pytest.raises(Unavailable):
        await join_run(address, **joining, give_up_after_s=0.2, clock=late)
    assert badge.secrets[0].startswith("afc.")


@pytest.mark.parametrize("role", ["node", "trainer", "operator", "page"])
async def test_the_text_of_a_credential_alone_gets_no_certificate(tmp_path: Path, role: str) -> None:
    async with secured(tmp_path) as run:
        pool, name = ("gpu", "n") if role == "node" else ("", "solver")
        address, token = await run.minted(role, pool=pool, name="" if role == "node" else name)
        dataflow, badge = await join_run(address, token=token, role=Role(role), name=name, pool=pool)
        (text, tls, _), stolen = badge.secrets, ClientTls(ca=run.authority.pem)
        assert tls is not None
        for port in (address, dataflow):
            async with dial(port, token=text, tls=stolen) as link:
                with pytest.raises((NotPermitted, NotAuthenticated)):
                    await link.call(EnrollmentStub(link.channel).Enroll, signing_request(), timeout_s=10)
        other = shown(run.authority, holder=holder("other"))
        for port, certificate in ((address, tls), (address, other), (dataflow, other)):
            async with dial(port, token=text, tls=certificate) as link:
                with pytest.raises((NotPermitted, NotAuthenticated)):
                    await link.call(EnrollmentStub(link.channel).Enroll, signing_request(), timeout_s=10)
        async with badge.dial(dataflow) as link:
            await badge.renew(link)
        assert badge.secrets[0] != text


def signing_request() -> EnrollRequest:
    return EnrollRequest(signing_request=new_request()[1])


async def first_version(store: WeightPlaneClient) -> None:
    async for _ in store.watch(SOLVER, after=None):
        return


def shown(authority: Authority, *, holder: Caller) -> ClientTls:
    key, request = new_request()
    return ClientTls(ca=authority.pem, certificate=authority.for_caller(request, holder), key=key)


def holder(name: str = "n", *, life_s: float = 3600) -> Caller:
    return Caller(id=new_id(), role=Role.NODE, expires_at=time.time() + life_s, name=name, pool="gpu")


async def test_an_expired_certificate_has_its_own_error_code(tmp_path: Path) -> None:
    async with secured(tmp_path) as run:
        late = holder(life_s=-60)
        tls = shown(run.authority, holder=late)
        async with dial(run.dataflow, token=CredentialSigner(TOKEN).sign(late), tls=tls) as link:
            with raises_code(NotAuthenticated, "tls.certificate_expired"):
                await NodeDataClient(link).join(facts("n"))


async def test_a_credential_with_the_certificate_of_another_holder_is_refused(tmp_path: Path) -> None:
    async with secured(tmp_path) as run:
        first, other, again = holder("one"), holder("other"), holder("one")
        for token, certificate in (
            (CredentialSigner(TOKEN).sign(first), other),
            (CredentialSigner(TOKEN).sign(first), again),
            (TOKEN, first),
        ):
            async with dial(run.dataflow, token=token, tls=shown(run.authority, holder=certificate)) as link:
                with raises_code(NotAuthenticated, "certificate.mismatch"):
                    await ControlPlaneClient(link).report()


async def test_an_authority_of_another_run_is_refused_by_both_sides(tmp_path: Path) -> None:
    stranger = Authority.create(tmp_path / "stranger", run="other")
    async with secured(tmp_path) as run:
        theirs = authority_client_tls(stranger)
        async with dial(run.dataflow, token=TOKEN, tls=theirs) as link:
            with raises_code(NotAuthenticated, "tls.untrusted_service"):
                await ControlPlaneClient(link).report()
        async with dial(run.dataflow, token=TOKEN, tls=replace(theirs, ca=run.authority.pem)) as link:
            with raises_code(NotAuthenticated, "tls.certificate_refused"):
                await ControlPlaneClient(link).report()
        address, _ = await run.minted("node", pool="gpu")
        with raises_code(NotAuthenticated, "tls.pin_mismatch"):
            await join_run(address, token=TOKEN, ca_hash=stranger.pin, role=Role.NODE, name="n", pool="gpu")
        _, token = await run.minted("node", pool="gpu")
        with raises_code(InvalidInput, "join.pin_mismatch"):
            await join_run(address, token=token, ca_hash=stranger.pin, role=Role.NODE, name="n")


async def test_calls_without_tls_or_without_a_certificate_are_refused(tmp_path: Path) -> None:
    async with secured(tmp_path) as run:
        cases = {"tls.required": None, "tls.certificate_required": ClientTls(ca=run.authority.pem)}
        for code, tls in cases.items():
            for address in (run.dataflow, run.weights):
                async with dial(address, token=TOKEN, tls=tls) as link:
                    with raises_code(NotAuthenticated, code):
                        await WeightPlaneClient(link).versions(SOLVER)


async def test_the_run_token_with_the_pin_can_join_and_the_join_port_serves_only_joining(tmp_path: Path) -> None:
    async with secured(tmp_path) as run:
        address, _ = await run.minted("node", pool="gpu")
        dataflow, badge = await join_run(
            address, token=TOKEN, ca_hash=run.authority.pin, role=Role.NODE, name="n", pool="local"
        )
        assert dataflow == run.dataflow
        async with badge.dial(dataflow) as link:
            assert (await NodeDataClient(link).join(facts("n"))).node == "n.1"
            with pytest.raises(NotPermitted):
                await ControlPlaneClient(link).report()
        async with dial(address, token=TOKEN, tls=ClientTls(ca=run.authority.pem)) as link:
            with raises_code(ProtocolMismatch, "protocol_mismatch", "Method not found"):
                await ControlPlaneClient(link).report()


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::"])  # noqa: S104 (must be refused)
async def test_listening_beyond_loopback_requires_tls(host: str) -> None:
    with raises_code(InvalidInput, "listen.tls_required", repr(host)):
        async with serving(ListenOptions(host=host, token=TOKEN)):
            pass


@pytest.mark.long
@pytest.mark.slow
def test_a_run_over_mutual_tls_learns_and_prints_no_secret(tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = ["run", "smoke", "--tls", "--headless", "--limit-s", "90", "--no-web", "--run-dir", str(run)]
    ran = subprocess.run(command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    secrets = [(run / "token").read_text(), (run / "weights.key").read_text(), "PRIVATE KEY", "afc.", "afj."]
    output = ran.stdout + ran.stderr + "".join(log.read_text() for log in (run / "logs").iterdir())
    assert [secret for secret in secrets if secret in output] == []
    assert {stat.S_IMODE((run / name).stat().st_mode) for name in ("token", "weights.key", "authority/ca.key")} == {
        0o600
    }
