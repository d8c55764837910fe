"""The official SDK trains two tenants at once on a real server, which is killed in between."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.tinker.conftest import MODEL

pytest.importorskip("tinker", reason="the SDK is part of the extra dev")
pytestmark = pytest.mark.slow


class Server:
    """Server in a process of its own, always at the same port once it has one."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, "0"
        inline = ", ".join(f"{name} = {json.dumps(value)}" for name, value in MODEL.items())
        self._config = folder / "tinker.toml"
        self._config.write_text(f"[models.tiny]\nmodel = {{ {inline} }}\n[tenants.ann]\n[tenants.bob]\n")

    @contextmanager
    def running(self) -> Iterator[str]:
        command = (sys.executable, "-m", "astraflow.cli", "serve", "tinker", str(self._config), "--port", self._port)
        directory = ("--directory", str(self._folder / "server"))
        with subprocess.Popen((*command, *directory), stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                lines = (re.search(r"serving at (http://\S+:(\d+))", line) for line in process.stdout)
                url = next(match for match in lines if match)
                self._port = url[2]
                yield url[1]
            finally:
                process.send_signal(signal.SIGKILL)

    def key(self, tenant: str) -> str:
        return (self._folder / "server" / "keys" / tenant).read_text().strip()


def program(*arguments: str) -> subprocess.Popen[str]:
    """Starts the SDK in a process of its own, since it leaves connections and threads open."""
    return subprocess.Popen(
        (sys.executable, "-m", "tests.tinker.sdk_program", *arguments),
        text=True,
        env={**os.environ, "TINKER_TELEMETRY": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def test_the_sdk_trains_two_tenants_on_a_server_that_is_killed_as_without(tmp_path: Path) -> None:
    server = Server(tmp_path)
    with ExitStack() as stack:
        with server.running() as url:
            client = stack.enter_context(program(url, server.key("ann"), server.key("bob")))
            stack.callback(client.kill)
            assert client.stdin is not None
            assert client.stdout is not None
            assert client.stdout.readline() == "paused\n"
        with server.running():
            client.stdin.write("\n")
            client.stdin.flush()
            results = json.loads(client.stdout.readline())
    assert results["together"] == results["alone"]
    assert all(losses[-1] < losses[0] for losses in results["alone"])
    first, second = results["samples"]
    assert first == second
    assert -sum(results["scored"][1:]) == pytest.approx(results["loss"], abs=1e-3)
