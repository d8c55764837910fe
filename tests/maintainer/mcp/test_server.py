"""MCP server tested with the SDK's client over both transports and a real fleet service."""

import asyncio
import json
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import Tool as Listed

from astraflow.access.authority import Authority
from astraflow.client.fleet_plane import connect_fleet
from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.maintainer import MaintainerMode
from astraflow.contract.fleet.plans import PlanRequest
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.records import problem_record
from astraflow.contract.reports.report import Report
from maintainer.__main__ import main
from maintainer.agent.tools.base import Kind
from maintainer.agent.tools.outputs import ActionOutcome
from maintainer.agent.tools.registry import TOOLS
from maintainer.agent.tools.results import ERROR_ADVICE
from maintainer.agent.transcript.replay import replay_transcript
from maintainer.agent.transcript.transcript import read
from maintainer.mcp.http import TOKEN_FILE, McpEndpoint, load_or_create_token
from maintainer.mcp.oncall import BUILT_IN, DESCRIPTION, NAME, ONCALL, PROMPT, command, settings
from maintainer.mcp.server import OUTCOME_ADVICE, answer, mcp_server
from maintainer.mcp.sessions import MAX_SESSIONS, TRANSCRIPT_FOLDER, Peer, ServerModes, Session, Sessions
from tests.errors import raises_code
from tests.fakes.control_plane import TOKEN
from tests.fakes.forking import ForkingProgram
from tests.maintainer.agent.test_service import planes
from tests.maintainer.fleet.parts import ALICE, OTTO, spec
from tests.maintainer.fleet.test_service import LOCAL, PATIENCE_S
from tests.maintainer.parts import OTHER, Scene, scene

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[3]
SECRET = "a-token-of-this-test-alone"
CHARACTERS_PER_TOKEN = 3
MOST_TOKENS = 25_000
"""Largest answer that Claude Code accepts. Tokens."""


def arguments(dataflow: str, fleet: str, *more: str) -> list[str]:
    return ["mcp", "--dataflow", dataflow, "--fleet", fleet, *more]


def environment(**changes: str) -> dict[str, str]:
    forwarded_variables = {name: os.environ[name] for name in ("PYTHONPATH", "PATH") if name in os.environ}
    return {**forwarded_variables, "ASTRAFLOW_TOKEN": TOKEN, "GRPC_ENABLE_FORK_SUPPORT": "0", **changes}


@asynccontextmanager
async def over_stdio(
    program: Sequence[str], directory: Path, dataflow: str, fleet: str, *more: str
) -> AsyncIterator[Client]:
    more = ("--directory", str(directory), *more)
    server = StdioServerParameters(
        command=program[0], args=[*program[1:], *arguments(dataflow, fleet, *more)], env=environment(), cwd=ROOT
    )
    async with Client(server) as client:
        yield client


@asynccontextmanager
async def http_server(
    program: Sequence[str], directory: Path, dataflow: str, fleet: str, *more: str, listen: str = "127.0.0.1:0"
) -> AsyncIterator[str]:
    """Runs the server as a process that logs to the file `log`; yields its URL."""
    log = (directory / "log").open("wb")
    process = await asyncio.create_subprocess_exec(
        *program,
        *arguments(dataflow, fleet, "--http", listen, "--directory", str(directory), *more),
        env=environment(ASTRAFLOW_MCP_TOKEN=SECRET),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=log,
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)).decode()
        assert line.startswith("ready "), (directory / "log").read_text()
        yield line.removeprefix("ready ").strip()
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), PATIENCE_S)
        log.close()


@asynccontextmanager
async def over_http(
    url: str,
    token: str = SECRET,
    *,
    trusts: Authority | None = None,
    mode: str = "auto",
    session: str = "",
    session_ids: list[str] | None = None,
) -> AsyncIterator[Client]:
    """Yields a client. trusts: authority to verify TLS with, public ones by default. mode: legacy has sessions.

    session: id to claim without owning the session. given: receives the session ids that the server issued.
    """
    claimed = {"Mcp-Session-Id": session} if session else {}
    verify: ssl.SSLContext | bool = True
    if trusts is not None:
        verify = ssl.create_default_context(cadata=trusts.pem.decode())

    async def noted(response: httpx2.Response) -> None:
        if session_ids is not None and "mcp-session-id" in response.headers:
            session_ids.append(response.headers["mcp-session-id"])

    async with (
        httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {token}", **claimed}, verify=verify, event_hooks={"response": [noted]}
        ) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


class Certified:
    """Authority with the certificate and key files of a local server."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority.create(directory / "certified", run="test")
        pair = self.authority.for_service("127.0.0.1", ("localhost",))
        self.certificate, self.key = directory / "server.pem", directory / "server.key"
        self.certificate.write_bytes(pair.certificate)
        self.key.write_bytes(pair.key)

    @property
    def options(self) -> tuple[str, ...]:
        """Command-line options."""
        return "--tls-certificate", str(self.certificate), "--tls-key", str(self.key)

    def context(self) -> ssl.SSLContext:
        """Returns the TLS context of a server in this process."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


BEHIND = "127.0.0.2"
"""Second loopback address, on which the proxy's port is free."""


@asynccontextmanager
async def tls_proxy(certified: Certified) -> AsyncIterator[int]:
    """Runs a proxy that terminates TLS and forwards all bytes to the same port at BEHIND; yields its port."""

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while piece := await source.read(1 << 16):
            sink.write(piece)
            await sink.drain()
        sink.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, back = await asyncio.open_connection(BEHIND, proxy.sockets[0].getsockname()[1])
        await asyncio.gather(carry(reader, back), carry(behind, writer), return_exceptions=True)

    async with await asyncio.start_server(forward, "127.0.0.1", 0, ssl=certified.context()) as proxy:
        yield proxy.sockets[0].getsockname()[1]


async def a_change(client: Client, fleet_address: str) -> None:
    """Reads the report, plans, and applies twice with one key, as agents do over every transport."""
    listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(listed) == list(TOOLS)
    report = (await client.call_tool("fleet_report", {"format": "concise"})).structured_content
    assert report is not None
    pool = report["pools"][0]
    assert pool["pool"].startswith("pool-"), "node names are hidden by default"
    plan_request = {"pool": pool["pool"], "target": 1, "reason": "one node, for a look"}
    plan = (await client.call_tool("fleet_plan", plan_request)).structured_content
    assert plan is not None
    assert plan["verdict"] == "allowed"
    to_apply = {"plan_id": plan["plan_id"], "idempotency_key": "one"}
    applied = await client.call_tool("fleet_apply", to_apply)
    assert applied.structured_content is not None
    assert (applied.structured_content["outcome"], applied.structured_content["launched"]) == ("applied", 1)
    again = await client.call_tool("fleet_apply", to_apply)
    assert again.structured_content == applied.structured_content
    async with connect_fleet(fleet_address, TOKEN) as fleet:
        assert len(await fleet.instances(pool=LOCAL)) == 1
        [entry] = [decision for decision in await fleet.decisions(pool=LOCAL) if decision.kind.value == "apply"]
        assert (entry.actor, entry.role.value) == ("mcp", "agent")


async def allow(fleet_address: str) -> None:
    """Allows agents to act in the pool, as an admin."""
    async with connect_fleet(fleet_address, TOKEN) as fleet:
        pool = (await fleet.status()).pools[0]
        opened = replace(pool.spec, mode=Mode.ON)
        await fleet.put_pool(opened, observed_version=pool.version, actor=ALICE, key="open", reason="agents may")
        await fleet.set_maintainer_mode(MaintainerMode.AUTO, actor=ALICE, key="auto", reason="agents may")


@pytest.mark.long
async def test_an_agent_reads_plans_and_applies_over_stdio(tmp_path: Path) -> None:
    async with planes(tmp_path) as (dataflow, fleet):
        await allow(fleet)
        async with over_stdio((sys.executable, "-m", "maintainer"), tmp_path, dataflow, fleet) as client:
            await a_change(client, fleet)
            prompt = await client.get_prompt(PROMPT)
            assert "fleet_report" in str(prompt.messages[0].content)


@pytest.mark.long
async def test_an_agent_reads_plans_and_applies_over_http(tmp_path: Path, program: ForkingProgram) -> None:
    async with planes(tmp_path) as (dataflow, fleet):
        await allow(fleet)
        async with http_server(program.command, tmp_path, dataflow, fleet) as url:
            async with over_http(url) as client:
                await a_change(client, fleet)
            with pytest.raises(ExceptionGroup) as refused:
                async with over_http(url, "not-the-token-of-this-test") as client:
                    await client.list_tools()
            assert {type(leaf) for leaf in _leaves(refused.value)} == {MCPError}
        log = (tmp_path / "log").read_text()
        assert SECRET not in log
        assert "not-the-token" not in log
        assert TOKEN not in log


@pytest.mark.long
async def test_a_remote_agent_works_over_tls(tmp_path: Path, program: ForkingProgram) -> None:
    certified = Certified(tmp_path)
    everywhere = {"listen": "0.0.0.0:0"}
    async with planes(tmp_path) as (dataflow, fleet):
        await allow(fleet)
        named = ("--advertise", "localhost", *certified.options)
        async with http_server(program.command, tmp_path, dataflow, fleet, *named, **everywhere) as url:
            assert url.startswith("https://localhost:")
            async with over_http(url, trusts=certified.authority) as client:
                await a_change(client, fleet)
            with pytest.raises(ExceptionGroup) as refused:
                async with over_http(url, "not-the-token-of-this-test", trusts=certified.authority) as client:
                    await client.list_tools()
            assert {type(leaf) for leaf in _leaves(refused.value)} == {MCPError}
            with pytest.raises(ExceptionGroup) as unknown:
                async with over_http(url) as client:
                    await client.list_tools()
            assert "CERTIFICATE_VERIFY_FAILED" in str(_leaves(unknown.value))
            async with httpx2.AsyncClient() as http:
                with pytest.raises(httpx2.TransportError):
                    await http.get(url.replace("https://", "http://"))


@pytest.mark.long
async def test_the_name_of_a_tls_proxy_is_accepted(tmp_path: Path, program: ForkingProgram) -> None:
    certified = Certified(tmp_path)
    async with planes(tmp_path) as (dataflow, fleet), tls_proxy(certified) as public:
        await allow(fleet)
        named = ("--behind-proxy", f"https://localhost:{public}/team/mcp/")  # this proxy keeps the path
        async with http_server(program.command, tmp_path, dataflow, fleet, *named, listen=f"{BEHIND}:{public}") as url:
            assert url == f"https://localhost:{public}/team/mcp/mcp"
            async with over_http(url, trusts=certified.authority) as client:
                await a_change(client, fleet)


@pytest.mark.long
async def test_a_read_only_session_has_no_tool_that_writes(tmp_path: Path, program: ForkingProgram) -> None:
    async with (
        planes(tmp_path) as (dataflow, fleet),
        over_stdio(program.command, tmp_path, dataflow, fleet, "--read-only") as client,
    ):
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == [name for name, tool in TOOLS.items() if tool.kind is Kind.READ]
        assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools)
        refused = await client.call_tool("fleet_hold", {"pool": "pool-0", "minutes": 1, "reason": "x"})
        assert refused.is_error


AT_ONCE: dict[str, Any] = {"limits": {"cool_down_s": 0.0}}
"""Settings without a cool-down between changes of one pool."""


async def planned(client: Client, target: int | None = 1, **changes: Any) -> Any:
    """Plans for the first pool; returns the tool's result."""
    pool = (await client.call_tool("fleet_report", {})).structured_content["pools"][0]["pool"]
    return await client.call_tool("fleet_plan", {"pool": pool, "target": target, "reason": "a look", **changes})


def transcripts(directory: Path) -> list[Path]:
    return sorted((directory / TRANSCRIPT_FOLDER).glob("*.jsonl"))


@pytest.mark.long
async def test_over_http_each_session_has_its_own_plans_keys_and_transcript(
    tmp_path: Path, program: ForkingProgram
) -> None:
    async with (
        planes(tmp_path, **AT_ONCE) as (dataflow, fleet),
        http_server(program.command, tmp_path, dataflow, fleet) as url,
    ):
        await allow(fleet)
        async with over_http(url, mode="legacy") as mine, over_http(url, mode="legacy") as other:
            first = (await planned(mine)).structured_content["plan_id"]
            refused_apply = await other.call_tool("fleet_apply", {"plan_id": first, "idempotency_key": "one"})
            assert json.loads(text_of(refused_apply))["error"] == "unknown_plan"
            applied = await mine.call_tool("fleet_apply", {"plan_id": first, "idempotency_key": "one"})
            assert applied.structured_content["outcome"] == "applied"
            second = (await planned(other, target=2)).structured_content["plan_id"]
            again = await other.call_tool("fleet_apply", {"plan_id": second, "idempotency_key": "one"})
            assert again.structured_content["outcome"] == "applied", "keys belong to a session"
        async with over_http(url) as newest:
            await newest.list_tools()  # writes no transcript
        paths = transcripts(tmp_path)
        assert len(paths) == 2
        for path in paths:
            kinds = [entry.kind for entry in read(path).entries]
            assert kinds[:2] == ["opened", "orders"]
            assert kinds.count("action") == 1
            assert replay_transcript(path).differences == ()
            assert path.stat().st_mode & 0o077 == 0
        assert sum(replay_transcript(path).verdicts for path in paths) == 4, "one plan and one apply each"


@pytest.mark.long
async def test_over_http_without_sessions_a_plan_belongs_to_its_receiver(
    tmp_path: Path, program: ForkingProgram
) -> None:
    async with (
        planes(tmp_path, **AT_ONCE) as (dataflow, fleet),
        http_server(program.command, tmp_path, dataflow, fleet) as url,
    ):
        await allow(fleet)
        session_ids: list[str] = []
        async with (
            over_http(url, mode="legacy", session_ids=session_ids) as old,
            over_http(url) as mine,
            over_http(url) as other,
        ):
            held = (await planned(old)).structured_content["plan_id"]
            async with over_http(url, session=session_ids[0]) as forged:
                refused_apply = await forged.call_tool("fleet_apply", {"plan_id": held, "idempotency_key": "k"})
                assert json.loads(text_of(refused_apply))["error"] == "unknown_plan"
            first = (await planned(mine)).structured_content["plan_id"]
            wrong = f"{first[:-1]}{'1' if first.endswith('0') else '0'}"
            guessed = await other.call_tool("fleet_apply", {"plan_id": wrong, "idempotency_key": "one"})
            assert json.loads(text_of(guessed))["error"] == "unknown_plan"
            to_apply = {"plan_id": first, "idempotency_key": "one"}
            applied = await mine.call_tool("fleet_apply", to_apply)
            assert applied.structured_content["outcome"] == "applied"
            assert (await mine.call_tool("fleet_apply", to_apply)).structured_content == applied.structured_content
            second = (await planned(other, target=2)).structured_content["plan_id"]
            same_key = await other.call_tool("fleet_apply", {"plan_id": second, "idempotency_key": "one"})
            assert same_key.structured_content["outcome"] == "applied", "a key belongs to its plan"
        assert len(transcripts(tmp_path)) == 2
        assert {read(path).entries[0].body["is_identified"] for path in transcripts(tmp_path)} == {True, False}


@pytest.mark.long
async def test_a_non_destructive_session_cannot_remove_nodes(tmp_path: Path, program: ForkingProgram) -> None:
    async with planes(tmp_path) as (dataflow, fleet):
        await allow(fleet)
        async with over_stdio(program.command, tmp_path, dataflow, fleet, "--no-destructive") as client:
            listed = (await client.list_tools()).tools
            assert {tool.name for tool in listed} == set(TOOLS)
            assert not any(tool.annotations is None or tool.annotations.destructive_hint for tool in listed)
            plan = (await planned(client, target=2)).structured_content
            applied = await client.call_tool("fleet_apply", {"plan_id": plan["plan_id"], "idempotency_key": "up"})
            assert applied.structured_content["launched"] == 2
            nodes = (await client.call_tool("fleet_nodes", {})).structured_content["nodes"]
            for refused in (
                await planned(client, target=1),
                await planned(client, target=0),
                await planned(client, target=None, retire=[nodes[0]["node"]]),
            ):
                assert json.loads(text_of(refused)) == error_body("not_destructive")
        async with connect_fleet(fleet, TOKEN) as fleet_client:
            assert len(await fleet_client.instances(pool=LOCAL)) == 2


@pytest.mark.long
async def test_a_session_over_stdio_leaves_a_transcript_that_replays(
    tmp_path: Path, program: ForkingProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    async with planes(tmp_path) as (dataflow, fleet):
        await allow(fleet)
        async with over_stdio(program.command, tmp_path, dataflow, fleet) as client:
            await a_change(client, fleet)
            await client.call_tool("no_such_tool", {})
    [path] = transcripts(tmp_path)
    entries = read(path).entries
    calls = [entry.body for entry in entries if entry.kind == "tool"]
    assert [call["name"] for call in calls] == ["fleet_report", "fleet_plan", "fleet_apply", "fleet_apply"]
    assert calls[1]["arguments"]["target"] == 1  # type: ignore[index, call-overload]  # the arguments are a table
    assert str(entries[0].body["client"]) != ""
    assert main(["replay", str(path)]) == 0
    assert "3 of 3" in capsys.readouterr().out


async def test_the_longest_idle_sessions_are_dropped(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        with sessions_of(here) as sessions:
            first = sessions.session_for(Peer(session="first"))
            busy = sessions.session_for(Peer(session="busy"))
            busy.in_flight = 1
            for number in range(MAX_SESSIONS):
                sessions.session_for(Peer(session=f"s-{number}"))
            assert sessions.session_for(Peer(session="busy")) is busy
            assert sessions.session_for(Peer(session="first")) is not first
            assert sessions.session_for(Peer(session="s-99")) is sessions.session_for(Peer(session="s-99"))


async def test_without_a_transcript_no_call_has_an_effect(tmp_path: Path) -> None:
    async with scene(tmp_path) as here, session_of(here) as (client, session):
        session.path.parent.parent.mkdir(exist_ok=True)
        session.path.parent.write_text("in the way")
        refused = await client.call_tool("fleet_report", {})
        assert json.loads(text_of(refused))["error"] == "not_reachable"


CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
JSON = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
PASS = {"Authorization": f"Bearer {SECRET}"}


CASES: list[tuple[str, dict[str, str], int]] = [
    ("no token", {}, 401),
    ("a wrong token", {"Authorization": "Bearer wrong"}, 401),
    ("the token's beginning", {"Authorization": f"Bearer {SECRET[:-1]}"}, 401),
    ("another scheme", {"Authorization": f"Basic {SECRET}"}, 401),
    ("a name that was pointed here (CVE-2026-42559)", {**PASS, "Host": "attacker.example"}, 421),
    ("the same with the port", {**PASS, "Host": "attacker.example:{port}"}, 421),
    ("a name that only begins like ours", {**PASS, "Host": "127.0.0.1.attacker.example:{port}"}, 421),
    ("another port", {**PASS, "Host": "127.0.0.1:1"}, 421),
    ("a page of another origin", {**PASS, "Origin": "https://attacker.example"}, 403),
    ("a sandboxed frame", {**PASS, "Origin": "null"}, 403),
    ("a page of another port here", {**PASS, "Origin": "http://127.0.0.1:1"}, 403),
    ("our own name in any case", {**PASS, "Host": "localhost:{port}"}, 200),
]


@pytest.mark.long
async def test_http_requires_the_token_and_refuses_browser_pages(tmp_path: Path, program: ForkingProgram) -> None:
    authority = tmp_path / "authority"
    Authority.create(authority, run="test")  # defers the connection to the first call, which this test never makes
    nowhere = "127.0.0.1:9"
    async with (
        http_server(program.command, tmp_path, nowhere, nowhere, "--authority", str(authority)) as url,
        httpx2.AsyncClient() as http,
    ):
        for what, headers, status in CASES:
            port = str(httpx2.URL(url).port)
            sent = {name: value.replace("{port}", port) for name, value in headers.items()}
            for method in ("POST", "GET", "DELETE", "PUT", "PATCH", "OPTIONS"):
                reply = await http.request(method, url.replace("/mcp", "/"), headers=sent)
                assert reply.status_code == (status if status != 200 else 404), (what, method)
                assert "access-control-allow-origin" not in reply.headers
                if status != 200:
                    body = CALL if method == "POST" else None
                    refused = await http.request(method, url, headers={**JSON, **sent}, json=body)
                    assert refused.status_code == status, (what, method)
                    assert "access-control-allow-origin" not in refused.headers


def test_a_remote_address_needs_tls_or_a_tls_proxy(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.test"):  # noqa: S104 (the test expects a refusal)
        with raises_code(InvalidInput, "mcp.tls_required"):
            McpEndpoint(token=SECRET, host=host)
        assert (
            McpEndpoint(token=SECRET, host=host, behind_proxy="https://mcp.example.test")
            .url(1)
            .startswith("https://mcp")
        )
    with pytest.raises(InvalidInput, check=lambda problem: problem.code == "mcp.tls_required"):
        McpEndpoint(token=SECRET, host="192.0.2.1", behind_proxy="http://localhost:8888/proxy/4750")
    for address in ("http://mcp.example.test", "mcp.example.test", "https://", "https://mcp.example.test/a//b"):
        with pytest.raises(InvalidInput, check=lambda problem: problem.code == "mcp.invalid_proxy_url"):
            McpEndpoint(token=SECRET, behind_proxy=address)
    certified = Certified(tmp_path)
    pem, key = certified.certificate, certified.key
    with pytest.raises(InvalidInput, check=lambda problem: problem.code == "mcp.invalid_tls"):
        McpEndpoint(token=SECRET, behind_proxy="https://mcp.example.test", certificate=pem, key=key)
    with pytest.raises(InvalidInput, check=lambda problem: problem.code == "mcp.host_name_missing"):
        McpEndpoint(token=SECRET, host="0.0.0.0", certificate=pem, key=key)  # noqa: S104 (the same)
    for wrong in (tmp_path / "absent.pem", key):
        with pytest.raises(InvalidInput, check=lambda problem: problem.code == "mcp.invalid_tls"):
            McpEndpoint(token=SECRET, certificate=wrong, key=key)
    with pytest.raises(InvalidInput, check=lambda problem: problem.code == "mcp.invalid_tls"):
        McpEndpoint(token=SECRET, host="0.0.0.0", certificate=Path("a.pem"))  # noqa: S104 (the same)
    with pytest.raises(InvalidInput, check=lambda problem: problem.code == "mcp.weak_token"):
        McpEndpoint(token="short")
    assert SECRET not in repr(McpEndpoint(token=SECRET))


def test_only_the_proxys_name_and_port_are_accepted() -> None:
    hosts = McpEndpoint(token=SECRET, behind_proxy="https://mcp.example.test").hosts(4750)
    assert set(hosts) == {
        *("127.0.0.1:4750", "localhost:4750", "[::1]:4750"),
        *("mcp.example.test", "mcp.example.test:443"),
    }
    hosts = McpEndpoint(token=SECRET, host="192.0.2.1", behind_proxy="https://mcp.example.test:8443/").hosts(4750)
    assert set(hosts) == {"192.0.2.1:4750", "mcp.example.test:8443"}


def test_the_command_refuses_invalid_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("ASTRAFLOW_TOKEN", TOKEN)
    monkeypatch.setenv("ASTRAFLOW_MCP_TOKEN", SECRET)
    options = ["mcp", "--dataflow", "127.0.0.1:9", "--fleet", "127.0.0.1:9", "--directory", str(tmp_path), "--http"]
    assert main([*options, "0.0.0.0:4750"]) != 0
    assert "certificate" in capsys.readouterr().err
    assert main([*options, "nowhere"]) != 0
    assert "HOST:PORT" in capsys.readouterr().err


def test_a_token_is_created_once_in_a_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASTRAFLOW_MCP_TOKEN", raising=False)
    token, where = load_or_create_token(tmp_path)
    assert load_or_create_token(tmp_path) == (token, where)
    assert len(token) >= 40
    assert (tmp_path / TOKEN_FILE).stat().st_mode & 0o077 == 0


@asynccontextmanager
async def session_of(here: Scene, **changes: Any) -> AsyncIterator[tuple[Client, Session]]:
    """Yields a client in this process, with the real fleet manager and guard, and its session."""
    with sessions_of(here, **changes) as sessions:
        async with Client(mcp_server(sessions)) as client:
            yield client, sessions.session_for(Peer(session=""))


def sessions_of(here: Scene, **changes: Any) -> Sessions:
    return Sessions(
        snapshot_reader=lambda: here.snapshot_reader,
        fleet=here.fleet,
        names=here.names,
        name="claude",
        clock=here.clock,
        directory=here.transcript.parent,
        modes=ServerModes(**changes),
    )


def mode_of(listed: Listed) -> str:
    """Returns how a client treats a tool, from its annotations alone."""
    hints = listed.annotations
    assert hints is not None
    assert hints.destructive_hint is not None, "clients treat a tool without this hint as destructive"
    return "allow" if hints.read_only_hint else "ask" if hints.destructive_hint else "careful"


@pytest.mark.long
async def test_modes_follow_from_annotations(tmp_path: Path) -> None:
    async with scene(tmp_path) as here, session_of(here) as (client, _):
        listed = (await client.list_tools()).tools
        modes = {tool.name: mode_of(tool) for tool in listed}
        assert {name for name, mode in modes.items() if mode == "allow"} == of_kind(Kind.READ)
        assert {name for name, mode in modes.items() if mode == "ask"} == of_kind(Kind.MUTATE) == {"fleet_apply"}
        assert all(tool.input_schema == TOOLS[tool.name].input_schema() for tool in listed)
        assert all(tool.annotations is not None and tool.annotations.open_world_hint is False for tool in listed)


def test_the_files_for_claude_code_match_the_registry_and_can_be_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    permissions = json.loads(settings())["permissions"]
    own = {
        rule: {tool.removeprefix(f"mcp__{NAME}__") for tool in permissions[rule]} for rule in ("allow", "ask", "deny")
    }
    assert own["allow"] == of_kind(Kind.READ) | of_kind(Kind.PROPOSE)
    assert own["ask"] == of_kind(Kind.MUTATE)
    assert own["deny"] == of_kind(Kind.CAUTION) | set(BUILT_IN)
    assert own["deny"] >= {"Bash", "Write", "Edit", "Read", "Glob", "Grep", "WebFetch", "WebSearch", "Agent", "Task"}
    _, front, text = command().split("---\n", 2)
    assert (front, text.lstrip()) == (f"description: {DESCRIPTION}\n", ONCALL)
    for what, path in (("settings", "settings.json"), ("command", f"commands/{PROMPT}.md")):
        assert main(["claude", what]) == 0
        assert capsys.readouterr().out == (ROOT / "deploy/claude" / path).read_text(), (
            f"write deploy/claude/{path} anew"
        )


@pytest.mark.long
async def test_the_command_line_prints_the_files_without_a_repository(tmp_path: Path) -> None:
    async def run_printing(*options: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "astraflow.cli", "mcp", *options),
            env={**os.environ, "PYTHONPATH": str(ROOT), "ASTRAFLOW_HOME": str(tmp_path)},
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode()

    assert await run_printing("--settings") == (0, settings())
    assert await run_printing("--command") == (0, command())
    code, output = await run_printing("--settings", "--command")
    assert code != 0
    assert "[cli.conflicting_options]" in output


def of_kind(kind: Kind) -> set[str]:
    return {name for name, tool in TOOLS.items() if tool.kind is kind}


async def test_a_refusal_says_not_to_retry(tmp_path: Path) -> None:
    async with scene(tmp_path, pools=[spec(max_nodes=4), spec(id=OTHER)]) as here, session_of(here) as (client, _):
        report = await client.call_tool("fleet_report", {})
        pools = [pool["pool"] for pool in report.structured_content["pools"]]
        token = next(pool for pool in pools if here.names.name("pool", pool) == "eu")
        plan = await client.call_tool("fleet_plan", {"pool": token, "target": 400, "reason": "more"})
        assert plan.structured_content["verdict"] == "refused"
        assert "not pre-approved, do not retry" in text_of(plan)
        key = {"plan_id": plan.structured_content["plan_id"], "idempotency_key": "k"}
        applied = await client.call_tool("fleet_apply", key)
        assert applied.structured_content["outcome"] == "refused"
        assert OUTCOME_ADVICE[ActionOutcome.REFUSED] in text_of(applied)
        await here.parts.fleet_manager.kill_switch(KillScope.AGENTS, actor=OTTO, key="stop", reason="enough")
        stopped = await client.call_tool("fleet_plan", {"pool": token, "target": 1, "reason": "one"})
        assert stopped.is_error
        assert json.loads(text_of(stopped)) == error_body("kill_switch")
        assert not (await client.call_tool("fleet_report", {})).is_error
        assert not await here.fleet.instances()


@pytest.mark.long
async def test_a_session_is_limited_by_the_mode_that_people_set(tmp_path: Path) -> None:
    async with scene(tmp_path, mode="propose") as here, session_of(here) as (client, _):
        await here.mode(MaintainerMode.PROPOSE)
        report = await client.call_tool("fleet_report", {})
        pool = report.structured_content["pools"][0]["pool"]
        plan = await client.call_tool("fleet_plan", {"pool": pool, "target": 1, "reason": "one"})
        applied = await client.call_tool(
            "fleet_apply", {"plan_id": plan.structured_content["plan_id"], "idempotency_key": "k"}
        )
        assert applied.structured_content["outcome"] == "proposed"
        assert OUTCOME_ADVICE[ActionOutcome.PROPOSED] in text_of(applied)
        assert not await here.fleet.instances()
        await here.mode(MaintainerMode.OFF)
        off = await client.call_tool("fleet_plan", {"pool": pool, "target": 1, "reason": "one"})
        assert off.is_error


async def test_a_foreign_plan_and_an_unreachable_fleet_service_are_errors(tmp_path: Path) -> None:
    async with scene(tmp_path) as here, session_of(here) as (client, _):
        foreign = await here.parts.fleet_manager.plans.make(
            PlanRequest(pool=OTHER, actor=ALICE, reason="mine", target=3)
        )
        refused_apply = await client.call_tool("fleet_apply", {"plan_id": foreign.id, "idempotency_key": "k"})
        assert "unknown_plan" in text_of(refused_apply)
        here.fleet.is_away = True
        away = await client.call_tool("fleet_report", {})
        assert away.is_error
        assert json.loads(text_of(away))["error"] == "not_reachable"


@pytest.mark.long
async def test_the_largest_answers_fit_a_clients_limit(tmp_path: Path) -> None:
    pools = [spec(max_nodes=200), *(spec(id=f"pool-{number}") for number in range(9))]
    async with scene(tmp_path, pools=pools) as here, session_of(here) as (client, _):
        await here.parts.want(60)
        await here.parts.pass_time(120)

        def troubled(report: Report) -> Report:
            nodes = tuple(replace(node, errors=("CUDA out of memory " * 9, "b" * 900, "c")) for node in report.nodes)
            return replace(report, nodes=nodes, problems=(problem_record("journal", "", error="t" * 900),) * 9)

        here.dataflow.changed = troubled
        calls: list[tuple[str, dict[str, Any]]] = [
            ("fleet_nodes", {"limit": 50}),
            ("fleet_events", {"limit": 50, "since_s": 86400.0}),
            ("fleet_report", {"format": "detailed"}),
        ]
        for name, arguments in calls:
            reply = await client.call_tool(name, arguments)
            assert not reply.is_error, reply
            assert len(text_of(reply)) / CHARACTERS_PER_TOKEN < MOST_TOKENS, name


async def test_the_oldest_plans_of_a_long_session_are_dropped(tmp_path: Path) -> None:
    async with scene(tmp_path) as here, session_of(here) as (_, session):
        pool = json.loads((await session.call("fleet_report", {})).content)["pools"][0]["pool"]
        plans = []
        for number in range(102):
            reply = await session.call("fleet_plan", {"pool": pool, "target": 1, "reason": f"try {number}"})
            plans.append(json.loads(reply.content)["plan_id"])
        first = await session.call("fleet_apply", {"plan_id": plans[0], "idempotency_key": "first"})
        last = await session.call("fleet_apply", {"plan_id": plans[-1], "idempotency_key": "last"})
        assert (first.error, last.error) == ("unknown_plan", "")
        assert answer(first).is_error


def test_a_port_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        from maintainer.mcp.http import serve_http

        endpoint = McpEndpoint(token=SECRET, port=listener.getsockname()[1])
        with pytest.raises(InvalidInput, check=lambda problem: problem.code == "listen.address_unavailable"):
            asyncio.run(serve_http(None, endpoint, stop=asyncio.Event(), on_ready=print))  # type: ignore[arg-type]  # not reached


def error_body(error: str) -> dict[str, str]:
    """Returns the body of a failed call."""
    return {"error": error, "advice": ERROR_ADVICE[error]}


def text_of(reply: Any) -> str:
    return "\n".join(block.text for block in reply.content)


def _leaves(problem: BaseException) -> list[BaseException]:
    if isinstance(problem, BaseExceptionGroup):
        return [leaf for exception in problem.exceptions for leaf in _leaves(exception)]
    return [problem]
