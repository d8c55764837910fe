"""A small OpenID provider: real HTTP, real keys, signed tokens, and every kind of wrong answer.

It checks the client, its secret, the redirect URI, that a code is redeemed once, and by the client that began (PKCE).
There are no passwords: every user is logged in with `claims`.
"""

import base64
import hashlib
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

from fastapi import FastAPI, Form, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from joserfc import jwt
from joserfc.jwk import RSAKey

from astraflow.runtime.http.server import listening, serving_http, url_of

CLIENT_ID = "astraflow-web"
CLIENT_SECRET = "canary-client-secret"


class FakeOpenIdProvider:
    """Provider whose attributes a test changes to make its answers wrong."""

    def __init__(self) -> None:
        self.issuer = ""
        self.claims: dict[str, Any] = {"sub": "1234", "email": "alice@example.org", "email_verified": True}
        self.over: dict[str, Any] = {}
        """Claims of the signed answer with wrong values; None omits a claim."""
        self.says_issuer = ""
        """Wrong issuer in the metadata."""
        self.answers_as = ""
        """Wrong `iss` in the redirect."""
        self.expires_in_s = 300
        self.key = RSAKey.generate_key(2048, {"kid": "first"})
        self.published = [self.key]
        self.redeemed = 0
        self._codes: dict[str, dict[str, str]] = {}

    def rotate(self, *, is_published: bool = True) -> None:
        """Signs with a new key from now on."""
        self.key = RSAKey.generate_key(2048, {"kid": f"key {secrets.token_hex(4)}"})
        self.published = [self.key] if is_published else self.published

    def app(self) -> FastAPI:
        """Returns the application with its routes."""
        app = FastAPI(openapi_url=None)
        app.get("/.well-known/openid-configuration")(self._metadata)
        app.get("/keys")(self._keys)
        app.get("/authorize")(self._authorize)
        app.post("/token")(self._token)
        return app

    @asynccontextmanager
    async def serving(self, *, host: str = "127.0.0.1", name: str = "", **tls: Any) -> AsyncIterator[int]:
        """Serves until the block ends; yields the port.

        name: host name in the issuer, without a port. tls: options of uvicorn.
        """
        with listening(host, 0) as listener:
            address = url_of(listener, host).replace("http:", "https:" if tls else "http:")
            self.issuer = f"https://{name}" if name else address
            async with serving_http(self.app(), listener, **tls):
                yield listener.getsockname()[1]

    async def _metadata(self) -> dict[str, str]:
        return {
            "issuer": self.says_issuer or self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
        }

    async def _keys(self) -> dict[str, Any]:
        return {"keys": [key.as_dict(private=False) for key in self.published]}

    async def _authorize(self, request: Request) -> Response:
        query = dict(request.query_params)
        is_good = query["client_id"] == CLIENT_ID and query["response_type"] == "code"
        if not is_good or query.get("code_challenge_method") != "S256" or "openid" not in query["scope"].split():
            return JSONResponse({"error": "invalid_request"}, 400)
        code = secrets.token_urlsafe(16)
        self._codes[code] = query
        back = {"code": code, "state": query["state"], "iss": self.answers_as or self.issuer}
        return RedirectResponse(f"{query['redirect_uri']}?{urlencode(back)}", 303)

    async def _token(
        self,
        request: Request,
        code: str = Form(),
        code_verifier: str = Form(""),
        redirect_uri: str = Form(),
        grant_type: str = Form(),
    ) -> Response:
        query = self._codes.pop(code, None)
        basic = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        if request.headers.get("authorization") != f"Basic {basic}":
            return JSONResponse({"error": "invalid_client"}, 401)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(code_verifier.encode()).digest()).rstrip(b"=").decode()
        if (
            query is None
            or grant_type != "authorization_code"
            or redirect_uri != query["redirect_uri"]
            or challenge != query["code_challenge"]
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        self.redeemed += 1
        return JSONResponse(
            {
                "access_token": secrets.token_urlsafe(16),
                "token_type": "Bearer",
                "expires_in": 300,
                "id_token": self._signed(query["nonce"]),
            }
        )

    def _signed(self, nonce: str) -> str:
        now = int(time.time())
        stated = {"iss": self.issuer, "aud": CLIENT_ID, "iat": now, "exp": now + self.expires_in_s, "nonce": nonce}
        claims = {name: value for name, value in {**stated, **self.claims, **self.over}.items() if value is not None}
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, self.key)
