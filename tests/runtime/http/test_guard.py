"""Services without a token refuse web pages, also those whose host name leads to this machine."""

import ast
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import astraflow
from astraflow.agents.proxy.server import AgentProxy
from astraflow.dataflow.endpoint_config import MetricsEndpoint
from astraflow.dataflow.endpoints.metrics import serving_metrics
from astraflow.dataflow.history.losses import Losses
from astraflow.environments.serve import serving_environment
from astraflow.runtime.http.json_service import JsonClient, ServiceAddress, serving_json
from tests import make

pytestmark = pytest.mark.anyio

JSON = {"Content-Type": "application/json"}


@asynccontextmanager
async def proxy() -> AsyncIterator[str]:
    server = AgentProxy()
    await server.start()
    try:
        yield server.origin
    finally:
        await server.close()


def environment() -> AbstractAsyncContextManager[str]:
    return serving_environment({"kind": "textcraft"}, ServiceAddress())


def metrics(folder: Path) -> AbstractAsyncContextManager[str]:
    return serving_metrics(MetricsEndpoint(host="127.0.0.1", port=0), make.report, Losses(), directory=folder)


async def echo(request: dict[str, Any]) -> dict[str, Any]:
    return request


SERVICES: dict[str, Callable[[Path], AbstractAsyncContextManager[str]]] = {
    "environment": lambda _: environment(),
    "metrics": metrics,
    "agents": lambda _: proxy(),
    "any JSON service": lambda _: serving_json(ServiceAddress(), {"/echo": echo}),
}
SERVERS = {
    "astraflow/agents/proxy/server.py",
    "astraflow/dataflow/endpoints/metrics.py",
    "astraflow/runtime/http/json_service.py",  # environments, search
    "astraflow/runtime/http/server.py",  # the server itself
    "astraflow/environments/foreign/bridges/openenv_bridge.py",  # `serving.LoopbackOnly`
    "astraflow/tinker/run.py",  # BrowserGuard, and the key of a tenant
    "maintainer/testing/provider_harness.py",  # the interface of a cloud, in tests of its provider
    "maintainer/mcp/http.py",  # TokenMiddleware: token, host and origin of each request
    "web/service.py",  # its own middleware, with accounts
}
"""Modules that serve HTTP; all others use them. A new one belongs in `SERVICES` too, unless its token is required."""


def test_every_module_that_serves_http_is_known() -> None:
    root = Path(astraflow.__file__).parents[1]
    names = {"serving_http", "Config"}
    serving = set()
    for file in [path for part in ("astraflow", "maintainer", "web") for path in (root / part).rglob("*.py")]:
        text = file.read_text()
        if not ("serving_http" in text or "uvicorn" in text or "HTTPServer" in text or "web.Application" in text):
            continue
        for node in ast.walk(ast.parse(text)):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in names | {"uvicorn.Config", "uvicorn.run", "HTTPServer", "ThreadingHTTPServer"}:
                serving.add(str(file.relative_to(root)))

    assert serving == SERVERS


@pytest.mark.parametrize("name", SERVICES)
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "evil.example"}, "http.foreign_host"),
        ({"Host": "evil.example:80"}, "http.foreign_host"),
        ({"Host": "127.0.0.1.evil.example"}, "http.foreign_host"),
        ({"Host": "localhost@evil.example"}, "http.foreign_host"),
        ({"Host": ""}, "http.foreign_host"),
        ({"Origin": "https://evil.example"}, "http.foreign_origin"),
        ({"Origin": "null"}, "http.foreign_origin"),
        ({"Origin": "http://127.0.0.1:1"}, "http.foreign_origin"),
        ({"Sec-Fetch-Site": "cross-site"}, "http.foreign_origin"),
        ({"Sec-Fetch-Site": "same-site"}, "http.foreign_origin"),
    ],
)
async def test_requests_of_web_pages_are_refused(tmp_path: Path, name: str, headers: dict[str, str], code: str) -> None:
    if name == "agents" and "Host" in headers:
        return  # each request needs the secret of a session, which no page has
    async with SERVICES[name](tmp_path) as url, httpx.AsyncClient() as client:
        for method in ("POST", "GET", "OPTIONS"):
            answer = await client.request(method, url + "/begin", content=b"{}", headers={**JSON, **headers})
            assert (answer.status_code, answer.json()["code"]) == (421 if "host" in code else 403, code)


@pytest.mark.parametrize("name", ["environment", "any JSON service"])
@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/json"]
)
async def test_bodies_that_are_not_declared_as_json_are_refused(tmp_path: Path, name: str, content_type: str) -> None:
    async with SERVICES[name](tmp_path) as url, httpx.AsyncClient() as client:
        answer = await client.post(url + "/begin", content=b"{}", headers={"Content-Type": content_type})
        assert (answer.status_code, answer.json()["code"]) == (415, "http.not_json")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1234", "[::1]:80", "192.0.2.7", "LOCALHOST"])
@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
async def test_programs_of_this_machine_are_answered(host: str, content_type: str) -> None:
    async with serving_json(ServiceAddress(), {"/echo": echo}) as url, httpx.AsyncClient() as client:
        headers = {"Host": host, "Content-Type": content_type, "Origin": f"http://{host}"}
        answer = await client.post(url + "/echo", content=json.dumps({"a": 1}), headers=headers)
        assert (answer.status_code, answer.json()) == (200, {"a": 1})


async def test_a_service_with_a_token_has_any_name() -> None:
    address = ServiceAddress(token="a-token-of-a-test")
    async with serving_json(address, {"/echo": echo}) as url, JsonClient(url, token=address.token) as ours:
        assert await ours.post("/echo", {"a": 1}, limit_s=10) == {"a": 1}
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {address.token}"}) as client:
            named = await client.post(url + "/echo", content=b"{}", headers={"Host": "search.example"})
            page = await client.post(url + "/echo", content=b"{}", headers={"Origin": "https://evil.example"})
    assert (named.status_code, page.status_code) == (200, 403)
