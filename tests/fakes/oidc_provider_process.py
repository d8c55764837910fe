"""A third-party login provider, `oidc-provider-mock` (Authlib and Flask), as a process of its own.

Clients register over HTTP, with their redirect URI; a user who types a subject is logged in as that subject. The
provider accepts the PKCE challenge but ignores it, so a proxy before its token endpoint verifies it with Authlib's
function.
"""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx

from astraflow.cli.ports import free_ports

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A registered client."""

    id: str
    secret: str


@dataclass(slots=True, kw_only=True)
class OidcProvider:
    """Provider that listens until it is stopped."""

    port: int
    process: Process | None = field(default=None, repr=False)

    @property
    def issuer(self) -> str:
        """Issuer address that the provider states."""
        return f"http://localhost:{self.port}"

    async def start(self) -> None:
        """Returns when the provider answers."""
        command = (sys.executable, "-m", "tests.fakes.oidc_provider_process", str(self.port))
        self.process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=DEVNULL)
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            assert await self.process.stdout.readline() == b"listening\n", "the provider did not start"

    async def stop(self) -> None:
        """Returns when the provider no longer listens."""
        if self.process is not None:
            self.process.kill()
            await self.process.wait()
            self.process = None

    async def register(self, redirect_uri: str) -> Client:
        """Registers a client with a secret: the provider supports no other clients."""
        registration = (await self._sent("POST", "/oauth2/clients", {"redirect_uris": [redirect_uri]})).json()
        return Client(id=registration["client_id"], secret=registration["client_secret"])

    async def knows(self, subject: str, **claims: Any) -> None:
        """Sets the claims of a user."""
        await self._sent("PUT", f"/users/{subject}", claims)

    async def rotate(self) -> None:
        """Signs with a new key from now on, and publishes only that key."""
        await self._sent("POST", "/rotate", {})

    async def logged_in(self, address: str, subject: str) -> str:
        """Logs in at the provider; returns the redirect back to the client."""
        return await self._answered(address, {"sub": subject})

    async def denied(self, address: str) -> str:
        """Denies the login at the provider."""
        return await self._answered(address, {"action": "deny"})

    async def _sent(self, method: str, path: str, content: dict[str, Any]) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.issuer, trust_env=False) as outside:
            return (await outside.request(method, path, json=content)).raise_for_status()

    async def _answered(self, address: str, form: dict[str, str]) -> str:
        async with httpx.AsyncClient(trust_env=False) as outside:
            shown = await outside.get(address)
            assert shown.status_code == 200, shown.text
            answer = await outside.post(address, data=form)
        assert answer.status_code == 302, answer.text
        return answer.headers["location"]


@asynccontextmanager
async def oidc_provider() -> AsyncIterator[OidcProvider]:
    """A running provider on a port of its own."""
    provider = OidcProvider(port=free_ports(1)[0])
    await provider.start()
    try:
        yield provider
    finally:
        await provider.stop()


def _serve(port: int) -> None:
    import flask
    from authlib.jose import RSAKey
    from authlib.oauth2.rfc7636 import create_s256_code_challenge
    from oidc_provider_mock import app as provider_app
    from werkzeug.serving import make_server

    app: flask.Flask = provider_app(require_client_registration=True, require_nonce=True)
    challenges: dict[str, str] = {}

    @app.after_request
    def keep_challenge(response: flask.Response) -> flask.Response:
        code = parse_qs(urlsplit(response.headers.get("location", "")).query).get("code")
        query = flask.request.args
        if code and query.get("code_challenge_method") == "S256":
            challenges[code[0]] = query.get("code_challenge", "")
        return response

    @app.before_request
    def check_verifier() -> tuple[dict[str, str], int] | None:
        sent = flask.request.form
        if flask.request.path != "/oauth2/token":
            return None
        challenge = challenges.pop(sent.get("code", ""), None)
        if challenge is not None and challenge == create_s256_code_challenge(sent.get("code_verifier", "")):
            return None
        return {"error": "invalid_grant", "error_description": "the verifier is not that of the challenge"}, 400

    @app.post("/rotate")
    def rotate() -> dict[str, str]:
        flask.g.oidc_provider_mock_storage.jwk = RSAKey.generate_key(is_private=True)
        return {}

    server = make_server("localhost", port, app, threaded=True)
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
