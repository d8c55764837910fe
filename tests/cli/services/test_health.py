"""`astraflow health`: exit code 0 when the service answers; an error message and another code otherwise."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from astraflow.access.authority import Authority
from astraflow.cli.main import app
from astraflow.contract.errors import AstraFlowError, InvalidInput, NotAuthenticated, Unavailable
from astraflow.weights.config import WeightsConfig
from astraflow.weights.service import running
from astraflow.wire.server import ListenOptions, authority_tls

pytestmark = pytest.mark.anyio


def check_health(*words: str, **environment: str) -> Result:
    """Runs `astraflow health` and returns its result."""
    return CliRunner().invoke(app, ["health", *words], env=environment)


@contextmanager
def page(status: int) -> Iterator[str]:
    """Yields the address of a page whose `/healthz` returns `status`."""

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Suppresses the request log."""

    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


async def test_a_mutual_tls_service_is_checked_with_the_credentials_of_the_environment(tmp_path: Path) -> None:
    authority, token = Authority.create(tmp_path / "authority", run="evening"), tmp_path / "token"
    token.write_text("run-token")
    tls = authority_tls(authority, "127.0.0.1")
    listen = ListenOptions(token="run-token", tls=tls, authority=authority, drain_s=0.2)
    named = {"ASTRAFLOW_AUTHORITY": str(authority.folder), "ASTRAFLOW_TOKEN_FILE": str(token), "ASTRAFLOW_TOKEN": ""}
    async with running(WeightsConfig(), listen=listen, directory=tmp_path / "weights") as address:
        done = await asyncio.to_thread(check_health, "weights", address, **named)
        assert (done.exit_code, done.output) == (0, f"weights at {address} answers\n")
        token.write_text("another")
        refused = await asyncio.to_thread(check_health, "weights", address, **named)
        assert isinstance(refused.exception, NotAuthenticated)


def test_the_health_of_the_page_follows_its_status_code() -> None:
    with page(200) as address:
        assert check_health("web", f"{address}/").exit_code == 0
    with page(503) as address:
        assert isinstance(check_health("web", address).exception, Unavailable)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("weights", "127.0.0.1:1"), Unavailable),
        (("fleet", "127.0.0.1:1"), Unavailable),
        (("dataflow", "127.0.0.1:1"), Unavailable),
        (("web", "http://127.0.0.1:1"), Unavailable),
        (("web", "127.0.0.1:8443"), InvalidInput),
        (("web", "file:///etc/passwd"), InvalidInput),
        (("trainer", "127.0.0.1:1"), InvalidInput),
    ],
)
def test_unreachable_services_and_invalid_arguments_are_errors(
    words: tuple[str, str], problem: type[AstraFlowError]
) -> None:
    done = check_health(*words, ASTRAFLOW_TOKEN="run-token")
    assert isinstance(done.exception, problem), done
    assert done.exit_code != 0
