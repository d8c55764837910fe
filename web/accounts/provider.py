"""An OpenID provider: where to send browsers, and what its signed answers say. Needs the extra `oidc`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from astraflow.contract.errors import InvalidInput, NotAuthenticated, Unavailable
from astraflow.runtime.clock import Clock
from astraflow.runtime.config import Config
from web.door.roles import Role

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
"""Public keys only: never `none`, never a shared secret."""

PROVIDER_PATH = "/login/provider/return"
"""Where a provider sends browsers back to; register this address there."""

REQUEST_S = 10.0
KEPT_S = 3600.0
REFETCH_S = 60.0
"""A signature by none of the known keys asks for the provider's keys again, this often at most."""

LEEWAY_S = 60
LONGEST_VALUE = 200
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class ProviderConfig(Config):
    """The file that `--provider` names, in TOML."""

    issuer: str
    """Address of the provider, exactly as it calls itself."""
    client_id: str
    """Under which this page is registered there."""
    label: str = "your provider"
    """What the button calls it."""
    scope: str = "openid email profile"
    """What is asked for."""
    claim: str = "email"
    """Which claim decides the role: a text, or a list of texts such as groups."""
    roles: dict[str, tuple[str, ...]] = Field(min_length=1)
    """Per role, the values of the claim that have it. Compared whole, character by character; no patterns."""

    @field_validator("issuer")
    @classmethod
    def _is_safe(cls, value: str) -> str:
        if not _is_safe_address(value):
            raise ValueError("must be an https:// address (http:// only on this machine)")
        return value

    @model_validator(mode="after")
    def _roles_exist(self) -> "ProviderConfig":
        for name, values in self.roles.items():
            if Role.named(name) is None:
                raise ValueError(f"roles: {name!r} is none; known: {', '.join(role.value for role in Role)}")
            if not values or not all(values):
                raise ValueError(f"roles.{name}: give at least one value, and none that is empty")
        return self

    def role_of(self, claims: Mapping[str, Any]) -> Role | None:
        """The role that the claims give; None for none, which is no login.

        An e-mail address counts only when the provider says that it belongs to who logged in.
        """
        if self.claim == "email" and claims.get("email_verified") is not True:
            return None
        found = claims.get(self.claim)
        values = [found] if isinstance(found, str) else found if isinstance(found, list) else []
        for role in (Role.ADMIN, Role.OPERATOR, Role.AGENT, Role.VIEWER):
            if any(value == known for value in values for known in self.roles.get(role.value, ())):
                return role
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """One login that is under way; the browser keeps it, sealed, until it comes back."""

    state: str
    nonce: str
    verifier: str
    """PKCE: only who began can redeem the code. Source: RFC 7636."""


class Provider:
    """Talks to one provider. redirect_uri: where it sends browsers back to."""

    def __init__(self, config: ProviderConfig, *, secret: str, redirect_uri: str, clock: Clock) -> None:
        _library()
        self.config = config
        self._secret = secret
        self._redirect_uri = redirect_uri
        self._clock = clock
        self._kept: dict[str, tuple[float, dict[str, Any]]] = {}

    async def address(self, flow: Flow) -> str:
        """Where the browser goes to log in. Raises: Unavailable."""
        metadata = await self._metadata()
        async with self._client() as client:
            address, _ = client.create_authorization_url(
                metadata["authorization_endpoint"], state=flow.state, nonce=flow.nonce, code_verifier=flow.verifier
            )
        return str(address)

    async def claims(self, flow: Flow, *, code: str) -> dict[str, Any]:
        """Redeem a code and check the signed answer: who logged in.

        Raises: NotAuthenticated for anything that is not as it must be; Unavailable.
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
            raise Unavailable(f"the login provider did not redeem the code: {type(problem).__name__}") from problem
        except (AuthlibBaseError, ValueError) as problem:
            raise NotAuthenticated(_not_redeemed(getattr(problem, "error", None))) from problem
        id_token = token.get("id_token")
        if not isinstance(id_token, str):
            raise NotAuthenticated("the login provider sent no identity: is `openid` in the scope?")
        return await self._checked(id_token, flow, access_token=token.get("access_token"))

    async def _checked(self, id_token: str, flow: Flow, *, access_token: object) -> dict[str, Any]:
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
            raise NotAuthenticated(f"the login provider's answer was refused: {_cause(problem)}") from problem
        subject = claims.get("sub")
        is_named = isinstance(subject, str) and 0 < len(subject) <= 255 and subject.isascii() and subject.isprintable()
        if claims.get("iss") != self.config.issuer or not is_named:
            raise NotAuthenticated("the login provider's answer was refused: issuer or subject")
        return claims

    async def _decoded(self, id_token: str) -> tuple[dict[str, Any], dict[str, Any]]:
        from joserfc import jwt
        from joserfc.errors import BadSignatureError, InvalidKeyIdError
        from joserfc.jwk import KeySet

        async def decode(*, at_least_every_s: float) -> tuple[dict[str, Any], dict[str, Any]]:
            metadata = await self._metadata()
            keys = await self._fetched(metadata["jwks_uri"], at_least_every_s=at_least_every_s)
            token = jwt.decode(id_token, KeySet.import_key_set(keys), algorithms=list(ALGORITHMS))  # type: ignore[arg-type] # checked by it
            return dict(token.header), dict(token.claims)

        try:
            return await decode(at_least_every_s=KEPT_S)
        except (BadSignatureError, InvalidKeyIdError, ValueError):  # a provider with one key need not name it
            return await decode(at_least_every_s=REFETCH_S)

    async def _metadata(self) -> dict[str, Any]:
        address = self.config.issuer.rstrip("/") + "/.well-known/openid-configuration"
        metadata = await self._fetched(address, at_least_every_s=KEPT_S)
        if metadata.get("issuer") != self.config.issuer:
            raise Unavailable("the login provider calls itself another issuer than the one that is configured")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not _is_safe_address(metadata.get(name)):
                raise Unavailable(f"the login provider names no safe {name}")
        return metadata

    async def _fetched(self, address: str, *, at_least_every_s: float) -> dict[str, Any]:
        import httpx2

        now = self._clock.now()
        kept_at, kept = self._kept.get(address, (0.0, None))
        if kept is not None and now - kept_at < at_least_every_s:
            return kept
        try:
            async with httpx2.AsyncClient(timeout=REQUEST_S, trust_env=False) as client:
                answer = await client.get(address)
                answer.raise_for_status()
                content = answer.json()
        except (httpx2.HTTPError, ValueError) as problem:
            raise Unavailable(f"the login provider cannot be reached: {type(problem).__name__}") from problem
        if not isinstance(content, dict):
            raise Unavailable("the login provider's answer is no JSON object")
        self._kept[address] = (now, content)
        return content

    def _client(self) -> Any:
        from authlib.integrations.httpx_client import AsyncOAuth2Client

        return AsyncOAuth2Client(
            client_id=self.config.client_id,
            client_secret=self._secret or None,
            token_endpoint_auth_method="client_secret_basic" if self._secret else "none",
            scope=self.config.scope,
            redirect_uri=self._redirect_uri,
            code_challenge_method="S256",
            timeout=REQUEST_S,
            trust_env=False,
        )


def shown_name(claims: Mapping[str, Any]) -> str:
    """What to call who logged in. The colon keeps it apart from every local name."""
    verified = claims.get("email") if claims.get("email_verified") is True else None
    for found in (verified, claims.get("preferred_username"), claims["sub"]):
        if isinstance(found, str) and found and found.isprintable():
            return f"oidc:{found[:LONGEST_VALUE]}"
    return "oidc:unnamed"


def _is_safe_address(value: object) -> bool:
    if not isinstance(value, str):
        return False
    parts = urlsplit(value)
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK))


def _not_redeemed(error: object) -> str:
    """Why a code was not, and what would help. error: the provider's word. Source: RFC 6749, section 5.2."""
    if error in ("invalid_client", "unauthorized_client"):
        return (
            f"the login provider does not take this page for a client of its ({error}): an admin has to compare "
            "client_id and ASTRAFLOW_OIDC_SECRET with what is registered there"
        )
    return "the login provider did not take the code: log in again"


def _cause(problem: Exception) -> str:
    """Which check failed, without what was sent."""
    claim = getattr(problem, "claim", None)
    return f"{type(problem).__name__} {claim}" if isinstance(claim, str) else type(problem).__name__


def _library() -> None:
    try:
        import authlib.integrations.httpx_client
        import authlib.oidc.core  # noqa: F401 (whether it is there)
    except ImportError:
        raise InvalidInput(
            "logging in through a provider needs the extra `oidc`: pip install 'astraflow[oidc]'"
        ) from None
