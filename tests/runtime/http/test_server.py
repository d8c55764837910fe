import asyncio
from pathlib import Path

import pytest

from astraflow.runtime.http.server import listening, serving_http

pytestmark = pytest.mark.anyio


async def test_a_server_that_cannot_start_raises_its_error(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    with listening("127.0.0.1", 0) as listener, pytest.raises(FileNotFoundError):
        async with asyncio.timeout(60), serving_http(None, listener, ssl_certfile=missing, ssl_keyfile=missing):
            raise AssertionError("it does not start")
