"""Client of an OpenID provider: builds login URLs and verifies signed answers. Needs the extra `oidc`.

Requests follow HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE and SSL_CERT_DIR of the environment. Those to this machine use no
proxy.
"""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from astraflow.contract.errors import NotAuthenticated, Unavailable
from astraflow.runtime.clock import Clock
from astraflow.runtime.config.base import Config
from astraflow.runtime.imports import needs_extra
from web.security.roles import Role

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
"""Accepted signature algorithms: public keys only, never `none` or a shared secret."""

PROVIDER_PATH = "/login/provider/return"
"""Redirect path; register its URL at the provider."""

REQUEST_S = 10.0
CACHE_S = 3600.0
REFETCH_S = 60.0
"""Minimum interval between fetches of the provider's keys, for signatures by an unknown key."""

LEEWAY_S = 60
MAX_CLAIM_LETTERS = 200
LOOPBACK = ("127.0.0.1", "localhost", "::1")

T = TypeVar("T")


class OpenIdConfig(Config):
    """Configuration file of `--provider` (TOML)."""

    issuer: str
    """Issuer URL, exactly as the provider states it."""
    client_id: str
    """Client id of this page at the provider."""
    label: str = "your provider"
    """Label of the login button."""
    scope: str = "openid email profile"
    """Requested scopes."""
    claim: str = "email"
    """Claim that decides the role: a string, or a list of strings such as groups."""
    roles: dict[str, tuple[str, ...]] = Field(min_length=1)
    """Values of the claim by role. Compared exactly, without patterns."""

    @field_validator("issuer")
    @classmethod
    def _is_safe(cls, value: str) -> str:
        if not _is_safe_address(value):
            raise ValueError(
                "cannot use the issuer: it is not an https:// URL; http:// is allowed for this machine only"
            )
        return value

    @model_validator(mode="after")
    def _roles_exist(self) -> "OpenIdConfig":
        for name, values in self.roles.items():
            if Role.parse(name) is None:
                raise ValueError(f"cannot use roles.{name}: unknown role; use {', '.join(role.value for role in Role)}")
            if not values or not all(values):
                raise ValueError(
                    f"cannot use roles.{name}: values are missing or empty; give at least one non-empty value"
                )
        return self

    def role_of(self, claims: Mapping[str, Any]) -> Role | None:
        """Role of the claims; None refuses the login.

        An e-mail address counts only if the provider has verified it.
        """
        if self.claim == "email" and claims.get("email_verified") is not True:
            return None
        claim = claims.get(self.claim)
        values = [claim] if isinstance(claim, str) else claim if isinstance(claim, list) else []
        for role in (Role.ADMIN, Role.OPERATOR, Role.AGENT, Role.VIEWER):
            if any(value == expected for value in values for expected in self.roles.get(role.value, ())):
                return role
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginFlow:
    """Login in progress; the browser stores it in a sealed cookie."""

    state: str
    nonce: str
    verifier: str
    """PKCE verifier: only the client that started the login can redeem the code. Source: RFC 7636."""


class OpenIdProvider:
    """Client of one provider. redirect_uri: URL to which it redirects browsers."""

    def __init__(self, config: OpenIdConfig, *, secret: str, redirect_uri: str, clock: Clock) -> None:
        _require_library()
        self.config = config
        self._secret = secret
        self._redirect_uri = redirect_uri
        self._clock = clock
        self._cached_documents: dict[str, tuple[float, dict[str, Any]]] = {}

    async def address(self, flow: LoginFlow) -> str:
        """Authorization URL for the browser. Raises: Unavailable."""
        metadata = await self._metadata()
        async with self._client() as client:
            address, _ = client.create_authorization_url(
                metadata["authorization_endpoint"], state=flow.state, nonce=flow.nonce, code_verifier=flow.verifier
            )
        return str(address)

    async def claims(self, flow: LoginFlow, *, code: str) -> dict[str, Any]:
        """Redeems a code and verifies the signed answer; returns its claims.

        Raises: NotAuthenticated if any check fails; Unavailable.
        """
        from authlib.common.errors import AuthlibBaseError
        from httpx2 import HTTPError

        metadata = await self._metadata()
        try:
            async with self._client() as client:
                token = await client.fetch_token(
                    metadata["token_endpoint"],
                    grant_type="authorization_code",
                    code=code,
                    code_verifier=flow.verifier,
                    redirect_uri=self._redirect_uri,
                )
        except HTTPError as problem:
            raise Unavailable(
                f"cannot redeem the login code: {_connection_cause(problem)}; check the provider and log in again",
                code="login.provider_unreachable",
            ) from problem
        except (AuthlibBaseError, ValueError) as problem:
            raise NotAuthenticated(
                _redeem_error(getattr(problem, "error", None)), code="login.code_refused"
            ) from problem
        id_token = token.get("id_token")
        if not isinstance(id_token, str):
            raise NotAuthenticated(
                "cannot log in: the provider sent no identity; add openid to the scope", code="login.identity_missing"
            )
        return await self._checked(id_token, flow, access_token=token.get("access_token"))

    async def _checked(self, id_token: str, flow: LoginFlow, *, access_token: object) -> dict[str, Any]:
        from authlib.oidc.core import CodeIDToken
        from joserfc.errors import JoseError

        try:
            header, claims = await self._decoded(id_token)
            checked = CodeIDToken(
                claims,
                header,
                options={
                    "iss": {"essential": True, "value": self.config.issuer},
                    "aud": {"essential": True, "value": self.config.client_id},
                },
                params={"nonce": flow.nonce, "client_id": self.config.client_id, "access_token": access_token},
            )
            checked.validate(now=int(self._clock.wall()), leeway=LEEWAY_S)
        except (JoseError, ValueError, KeyError, TypeError) as problem:
            raise NotAuthenticated(
                f"cannot log in: the provider's answer is invalid ({_cause(problem)}); log in again",
                code="login.invalid_answer",
            ) from problem
        subject = claims.get("sub")
        is_named = isinstance(subject, str) and 0 < len(subject) <= 255 and subject.isascii() and subject.isprintable()
        if claims.get("iss") != self.config.issuer or not is_named:
            raise NotAuthenticated(
                "cannot log in: the provider's answer is invalid (issuer or subject); log in again",
                code="login.invalid_answer",
            )
        return claims

    async def _decoded(self, id_token: str) -> tuple[dict[str, Any], dict[str, Any]]:
        from joserfc import jwt
        from joserfc.errors import BadSignatureError, InvalidKeyIdError
        from joserfc.jwk import KeySet

        async def decode(*, at_least_every_s: float) -> tuple[dict[str, Any], dict[str, Any]]:
            metadata = await self._metadata()
            keys = await self._fetched(metadata["jwks_uri"], at_least_every_s=at_least_every_s)
            token = jwt.decode(id_token, KeySet.import_key_set(keys), algorithms=list(ALGORITHMS))  # type: ignore[arg-type] # validated by the library
            return dict(token.header), dict(token.claims)

        try:
            return await decode(at_least_every_s=CACHE_S)
        except (BadSignatureError, InvalidKeyIdError, ValueError):  # a provider with a single key may omit its id
            return await decode(at_least_every_s=REFETCH_S)

    async def _metadata(self) -> dict[str, Any]:
        address = self.config.issuer.rstrip("/") + "/.well-known/openid-configuration"
        metadata = await self._fetched(address, at_least_every_s=CACHE_S)
        if metadata.get("issuer") != self.config.issuer:
            raise Unavailable(
                "cannot use the login provider: its issuer differs from the configured one; correct the issuer",
                code="login.issuer_mismatch",
            )
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not _is_safe_address(metadata.get(name)):
                raise Unavailable(
                    f"cannot use the login provider: it states no https URL for {name}; check its configuration",
                    code="login.invalid_metadata",
                )
        return metadata

    async def _fetched(self, address: str, *, at_least_every_s: float) -> dict[str, Any]:
        import httpx2

        now = self._clock.now()
        cached_at, cached = self._cached_documents.get(address, (0.0, None))
        if cached is not None and now - cached_at < at_least_every_s:
            return cached
        try:
            async with _opened(httpx2.AsyncClient) as client:
                answer = await client.get(address)
                answer.raise_for_status()
                content = answer.json()
        except (httpx2.HTTPError, ValueError) as problem:
            raise Unavailable(
                f"cannot reach the login provider: {_connection_cause(problem)}; try again later",
                code="login.provider_unreachable",
            ) from problem
        if not isinstance(content, dict):
            raise Unavailable(
                "cannot read the login provider's answer: it is not a JSON object; check the provider",
                code="login.invalid_metadata",
            )
        self._cached_documents[address] = (now, content)
        return content

    def _client(self) -> Any:
        from authlib.integrations.httpx_client import AsyncOAuth2Client

        return _opened(
            AsyncOAuth2Client,
            client_id=self.config.client_id,
            client_secret=self._secret or None,
            token_endpoint_auth_method="client_secret_basic" if self._secret else "none",
            scope=self.config.scope,
            redirect_uri=self._redirect_uri,
            code_challenge_method="S256",
        )


def display_name(claims: Mapping[str, Any]) -> str:
    """Name of a provider's user. The colon keeps it distinct from every local name."""
    verified = claims.get("email") if claims.get("email_verified") is True else None
    for name in (verified, claims.get("preferred_username"), claims["sub"]):
        if isinstance(name, str) and name and name.isprintable():
            return f"oidc:{name[:MAX_CLAIM_LETTERS]}"
    return "oidc:unnamed"


def _opened(client: Callable[..., T], **options: Any) -> T:
    """Returns an HTTP client that follows the environment. Raises: Unavailable when it cannot."""
    no_proxy = {f"all://{f'[{host}]' if ':' in host else host}": None for host in LOOPBACK}
    try:
        return client(timeout=REQUEST_S, mounts=no_proxy, **options)
    except (ImportError, OSError, ValueError) as problem:  # a proxy with SOCKS, a missing file, an invalid URL
        raise Unavailable(
            f"cannot reach the login provider: {type(problem).__name__} while reading the environment; an admin has to "
            "correct HTTPS_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE or SSL_CERT_DIR of this process",
            code="login.environment_invalid",
        ) from problem


def _connection_cause(problem: BaseException) -> str:
    """Returns the cause of a failed request, without addresses, which may have the password of a proxy."""
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is refused ({cause.verify_message}); set SSL_CERT_FILE to the authority's file"
        cause = cause.__cause__ or cause.__context__
    return type(problem).__name__


def _is_safe_address(value: object) -> bool:
    if not isinstance(value, str):
        return False
    parts = urlsplit(value)
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK))


def _redeem_error(error: object) -> str:
    """Message for a refused code. error: the provider's error code. Source: RFC 6749, section 5.2."""
    if error in ("invalid_client", "unauthorized_client"):
        return (
            f"cannot log in: the provider refused this page as a client ({error}); an admin has to compare "
            "client_id and ASTRAFLOW_OIDC_SECRET with the provider's registration"
        )
    return "cannot log in: the provider refused the code; log in again"


def _cause(problem: Exception) -> str:
    """Failed check, without the received values."""
    claim = getattr(problem, "claim", None)
    return f"{type(problem).__name__} {claim}" if isinstance(claim, str) else type(problem).__name__


def _require_library() -> None:
    with needs_extra("oidc", to="log in through a provider"):
        import authlib.integrations.httpx_client
        import authlib.oidc.core  # noqa: F401 (checks that it is installed)
