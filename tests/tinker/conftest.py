"""A base model that the tests of the server share, and servers on it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from astraflow.tinker.base_models import SharedBase
from astraflow.tinker.config import BaseModelOptions, TinkerOptions
from astraflow.tinker.routes import application
from astraflow.tinker.service import TinkerServer
from tests.tinker.client import Client

MODEL = {"kind": "tiny", "hidden_size": 16, "heads": 2, "intermediate_size": 32, "max_context_tokens": 64}

Serving = Callable[..., AbstractAsyncContextManager[tuple[TinkerServer, Client, Client]]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> SharedBase:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASTRAFLOW_HOME", str(tmp_path_factory.mktemp("home")))
        return SharedBase("tiny", BaseModelOptions(model=MODEL, device="cpu"))


@pytest.fixture
def serving(base: SharedBase, tmp_path: Path) -> Serving:
    """Starts a server in a folder, with clients of the tenants `ann` and `bob`."""

    @asynccontextmanager
    async def start(
        folder: Path = tmp_path, *, stops: bool = True, **tenant: object
    ) -> AsyncIterator[tuple[TinkerServer, Client, Client]]:
        values = {"models": {"tiny": {"model": MODEL}}, "tenants": {"ann": tenant, "bob": {}}, "pass_tokens": 24}
        server = TinkerServer(TinkerOptions.parse(values, where="test"), folder, {"tiny": base})
        server.start()
        app = application(server, max_request_bytes=100_000)
        keys = [(folder / "keys" / name).read_text().strip() for name in ("ann", "bob")]
        async with Client.of(app, keys[0]) as ann, Client.of(app, keys[1]) as bob:
            yield server, ann, bob
        await server.close()

    return start
