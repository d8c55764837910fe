"""A login provider that others wrote: `oidc-provider-mock`, on Authlib and Flask, as a process of its own.

Clients register over HTTP, with the address to send browsers back to; whoever types a subject is logged in as that. It
takes the challenge of PKCE and forgets it, so what stands before its token endpoint here holds clients to it, with
Authlib's own function.
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
    """As it was registered there."""

    id: str
    secret: str


@dataclass(slots=True, kw_only=True)
class OidcProvider:
    """It listens until it is stopped."""

    port: int
    process: Process | None = field(default=None, repr=False)

    @property
    def issuer(self) -> str:
        """Its address, as it calls itself."""
        return f"http://localhost:{self.port}"

    async def start(self) -> None:
        """Returns when it answers."""
        command = (sys.executable, "-m", "tests.fakes.oidc_provider", str(self.port))
        self.process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=DEVNULL)
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            assert await self.process.stdout.readline() == b"listening\n", "the provider did not start"

    async def stop(self) -> None:
        """Returns when nobody listens there any more."""
        if self.process is not None:
            self.process.kill()
            await self.process.wait()
            self.process = None

    async def register(self, redirect_uri: str) -> Client:
        """A client with a secret: it knows no others."""
        told = (await self._sent("POST", "/oauth2/clients", {"redirect_uris": [redirect_uri]})).json()
        return Client(id=told["client_id"], secret=told["client_secret"])

    async def knows(self, subject: str, **claims: Any) -> None:
        """What it says of somebody."""
        await self._sent("PUT", f"/users/{subject}", claims)

    async def rotate(self) -> None:
        """Sign with another key from now on, and publish that alone."""
        await self._sent("POST", "/rotate", {})

    async def logged_in(self, address: str, subject: str) -> str:
        """Log in where the client sent the browser; where the provider sends it back to."""
        return await self._answered(address, {"sub": subject})

    async def denied(self, address: str) -> str:
        """Say no there instead."""
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
    """One that runs, on a port of its own."""
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
        asked = flask.request.args
        if code and asked.get("code_challenge_method") == "S256":
            challenges[code[0]] = asked.get("code_challenge", "")
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
