"""Routes of a server without its key, as other users of the host call them."""

from collections.abc import Iterator
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI, WebSocket
from fastapi.routing import APIRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from astraflow.raas.engines.server.in_server.astraflow_key import KEY, RequiresKey

PATHS = (
    "/health", "/metrics", "/pause", "/resume", "/collective_rpc", "/sleep", "/wake_up", "/reset_prefix_cache",
    "/v1/load_lora_adapter", "/v1/chat/completions", "/inference/v1/generate", "/generate", "/update_weights_from_disk",
    "/astraflow/update", "/server_info",
)  # fmt: skip
RIGHT = {"authorization": "Bearer right"}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """Server with routes, a mounted application and a WebSocket, whose start is recorded."""
    monkeypatch.setenv(KEY, "right")

    @asynccontextmanager
    async def lifespan(app: FastAPI):  # type: ignore[no-untyped-def]  # FastAPI declares no type of its own for it
        app.state.is_started = True
        yield

    app = FastAPI(lifespan=lifespan)
    for path in PATHS:
        app.add_api_route(path, lambda: "reached", methods=["GET", "POST"])
    app.mount("/mounted", FastAPI())

    @app.websocket("/v1/realtime")
    async def realtime(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("reached")

    app.add_middleware(RequiresKey)
    with TestClient(app) as client:
        assert app.state.is_started, "events of the server itself pass"
        yield client


def routes(client: TestClient) -> Iterator[tuple[str, str]]:
    app = client.app
    assert isinstance(app, FastAPI)
    for route in app.routes:
        if isinstance(route, APIRoute):
            yield from ((method, route.path) for method in route.methods or ())
    yield from (("GET", path) for path in ("/docs", "/openapi.json", "/mounted/docs", "/absent", "//pause", "/%70ause"))
    yield from (("OPTIONS", "/pause"), ("HEAD", "/health"), ("DELETE", "/pause"))


@pytest.mark.parametrize(
    "headers",
    [
        {}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer rig"}, {"authorization": "Bearer right0"},
        {"authorization": "right"}, {"authorization": "bearer right"}, {"authorization": "Bearer é".encode()},
        {"x-api-key": "right"}, {"authorization": ""},
    ],
)  # fmt: skip
def test_no_route_answers_without_the_key(client: TestClient, headers: dict[str, str | bytes]) -> None:
    statuses = {
        (method, path): client.request(method, path, headers=headers).status_code  # type: ignore[arg-type]  # bytes too
        for method, path in routes(client)
    }
    assert set(statuses.values()) == {401}


def test_two_keys_are_none(client: TestClient) -> None:
    answer = client.get("/pause", headers=[("authorization", "Bearer right"), ("authorization", "Bearer wrong")])
    assert answer.status_code == 401


def test_no_websocket_opens_without_the_key(client: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/v1/realtime"):
        pass
    with client.websocket_connect("/v1/realtime", headers=RIGHT) as socket:
        assert socket.receive_text() == "reached"


def test_with_the_key_every_route_answers_as_before(client: TestClient) -> None:
    assert {client.post(path, headers=RIGHT).json() for path in PATHS} == {"reached"}
    assert client.get("/absent", headers=RIGHT).status_code == 404
