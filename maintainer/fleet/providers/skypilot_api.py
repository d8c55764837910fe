"""Requests to a SkyPilot API server over its REST surface; what comes of them, and its errors, in our words.

Every change is a request with an id, which goes on when nobody waits for it. Results are JSON beside pickled objects of
SkyPilot's own: those are never looked at.

Source: skypilot 0.14.1, sky/server/server.py, sky/server/requests/payloads.py, sky/exceptions.py.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from maintainer.fleet.providers.base import Auth, Capacity, Invalid, ProviderError, Quota, Retry, Unknown

API_VERSION = "62"
"""Of the API that this speaks: SkyPilot 0.14. Servers serve those back to 24 as well."""

ACTIVE = ("PENDING", "WAITING", "RUNNING")

LAUNCH, DOWN = "sky.launch", "sky.down"

_FIELDS = ("request_id", "name", "status", "created_at", "cluster_name", "request_body")
_NEWEST = 2000
"""Requests that are looked at: those of all pools within an hour or so."""

_KINDS: tuple[tuple[type[ProviderError], frozenset[str]], ...] = (
    (
        Auth,
        frozenset(
            {
                "ApiServerAuthenticationError",
                "CloudUserIdentityError",
                "ClusterOwnerIdentityMismatchError",
                "InvalidCloudCredentials",
                "NoCloudAccessError",
                "NoWorkspaceAccessError",
                "PermissionDeniedError",
            }
        ),
    ),
    (
        Retry,
        frozenset(
            {
                "ClusterStatusFetchingError",
                "ConcurrentWorkerExhaustedError",
                "ExecutionPoolFullError",
                "ExecutionRetryableError",
                "FetchClusterInfoError",
                "KubeAPIUnreachableError",
                "NetworkError",
                "RequestCancelled",
                "RequestInterruptedError",
                "ServerTemporarilyUnavailableError",
            }
        ),
    ),
    (
        Invalid,
        frozenset(
            {
                "APIVersionMismatchError",
                "InvalidCloudConfigs",
                "InvalidClusterNameError",
                "InvalidSkyPilotConfigError",
                "KubernetesValidationError",
                "NotSupportedError",
                "ProvisionUnsupportedError",
                "ResourcesMismatchError",
                "TypeError",
                "UserRequestRejectedByPolicy",
                "ValueError",
            }
        ),
    ),
    (Capacity, frozenset({"ResourcesUnavailableError"})),
)
_QUOTA = re.compile(r"quota|LimitExceeded|limit exceeded|CountExceeded", re.I)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One of the server's requests."""

    id: str
    name: str
    """`sky.launch`, `sky.down`."""
    status: str
    created_at: float
    cluster: str
    task: str = ""
    """Of a launch, the YAML that was submitted: it has the token in it."""

    @property
    def is_active(self) -> bool:
        """Whether it may still do something."""
        return self.status in ACTIVE


class NoCluster(ProviderError):
    """SkyPilot does not know the cluster. Always handled here."""


class SkyPilotApi:
    """Raises: ProviderError everywhere."""

    def __init__(self, endpoint: str, *, token: str, user: str, timeout_s: float) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._token = token
        self._user = user
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None

    async def launch(self, cluster: str, task: Mapping[str, Any], *, is_dry: bool = False) -> str:
        """Have a cluster made, and its command run; returns the request's id. JSON is YAML.

        is_dry: it is only decided where, and nothing is made.
        """
        said = {"task": json.dumps(task), "cluster_name": cluster}
        return await self._submit("/launch", said | ({"dryrun": True} if is_dry else {}))

    async def down(self, cluster: str) -> str:
        """Have a cluster ended; returns the request's id."""
        return await self._submit("/down", {"cluster_name": cluster})

    async def cancel(self, requests: Sequence[str]) -> None:
        """Stop requests. What a launch has made by then stays, to be ended."""
        await self.result(await self._submit("/api/cancel", {"request_ids": list(requests)}), within_s=self._timeout_s)

    async def clusters(self, names: Sequence[str] | None = None, *, refresh: str) -> tuple[Mapping[str, Any], ...]:
        """What SkyPilot has, all of it without names. refresh: NONE, AUTO or FORCE: whether it asks the clouds."""
        body = {
            "cluster_names": None if names is None else list(names),
            "refresh": refresh,
            "all_users": False,
            "include_credentials": False,
            "include_handle": False,
        }
        found = await self.result(await self._submit("/status", body), within_s=self._timeout_s)
        if not isinstance(found, list):
            raise Retry(f"asking for clusters: no answer within {self._timeout_s:g} s")
        return tuple(found)

    async def requests(self, cluster: str = "") -> tuple[Request, ...]:
        """Launches and downs, newest first; of one cluster, or of all."""
        asked: list[tuple[str, str]] = [("all_status", "true"), ("limit", str(_NEWEST))]
        asked += [("fields", field) for field in _FIELDS]
        asked += [("cluster_name", cluster)] if cluster else []
        found = await self._json("GET", "/api/status", params=asked)
        read = [_request(one) for one in found if one.get("name") in (LAUNCH, DOWN) and one.get("cluster_name")]
        return tuple(sorted(read, key=lambda one: one.created_at, reverse=True))

    async def result(self, request: str, *, within_s: float) -> Any:
        """What came of a request; None while it goes on. Raises: what it failed with."""
        try:
            return await self.outcome(request, within_s=within_s)
        except TimeoutError:
            return None

    async def outcome(self, request: str, *, within_s: float) -> Any:
        """What came of a request. Raises: TimeoutError while it goes on; what it failed with."""
        async with asyncio.timeout(within_s):
            status, said = await self._send("GET", "/api/get", params={"request_id": request}, is_patient=True)
        if status == 500 and isinstance(said.get("detail"), dict):
            raise refusal(json.loads(said["detail"].get("error") or "null") or {})
        if status != 200:
            raise _http_refusal("asking what came of a request", status, said)
        if said.get("status") == "CANCELLED":
            raise Retry("the request was cancelled by somebody")
        return json.loads(said.get("return_value") or "null")

    async def close(self) -> None:
        """Let go of connections."""
        if self._client is not None:
            await self._client.aclose()

    async def _submit(self, path: str, body: Mapping[str, Any]) -> str:
        sent = {
            "env_vars": {"SKYPILOT_USER_ID": self._user, "SKYPILOT_USER": "astraflow"},
            "entrypoint": "astraflow",
            "entrypoint_command": "astraflow serve fleet",
            "using_remote_api_server": True,
            "override_skypilot_config": {},
            **body,
        }
        headers: dict[str, str] = {}
        await self._json("POST", path, json=sent, seen=headers)
        request = headers.get("x-skypilot-request-id", "")
        if not request:
            raise Unknown(f"POST {path}: the answer has no request id: is {self._endpoint} a SkyPilot API server?")
        return request

    async def _json(self, method: str, path: str, **arguments: Any) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                status, said = await self._send(method, path, **arguments)
        except TimeoutError:
            raise Retry(f"{method} {path}: no answer within {self._timeout_s:g} s") from None
        if status != 200:
            raise _http_refusal(f"{method} {path}", status, said)
        return said

    async def _send(
        self, method: str, path: str, *, seen: dict[str, str] | None = None, is_patient: bool = False, **arguments: Any
    ) -> tuple[int, Any]:
        try:
            answer = await self._connected().request(
                method, path, timeout=None if is_patient else self._timeout_s, **arguments
            )
        except httpx.HTTPError as problem:
            raise Retry(f"{method} {path}: {type(problem).__name__} on the way to {self._endpoint}") from None
        if seen is not None:
            seen.update({key.lower(): value for key, value in answer.headers.items()})
        try:
            return answer.status_code, answer.json()
        except ValueError:
            return answer.status_code, {}

    def _connected(self) -> httpx.AsyncClient:
        if self._client is None:
            headers = {"X-SkyPilot-API-Version": API_VERSION}
            headers |= {"Authorization": f"Bearer {self._token}"} if self._token else {}
            self._client = httpx.AsyncClient(base_url=self._endpoint, headers=headers)
        return self._client


def refusal(error: Mapping[str, Any]) -> ProviderError:
    """What a request failed with, as one of ours."""
    name = str(error.get("type", "an unknown error"))
    text = f"{name}: {' '.join(_COLOUR.sub('', str(error.get('message', ''))).split())[:500]}"
    if name == "ClusterDoesNotExist":
        return NoCluster(text)
    if name == "ResourcesUnavailableError" and _QUOTA.search(text):
        return Quota(text)
    return next((kind for kind, names in _KINDS if name in names), Unknown)(text)


def _http_refusal(what: str, status: int, said: Any) -> ProviderError:
    """Details of a body that was not understood may repeat what was sent, so they are not told on."""
    detail = said.get("detail") if isinstance(said, dict) else None
    text = f"{what}: HTTP {status}" + (f": {detail[:300]}" if isinstance(detail, str) else "")
    if status in (401, 403):
        return Auth(text)
    if status in (400, 404, 405, 422):
        return Invalid(text)
    return Retry(text) if status in (408, 429, 502, 503, 504) else Unknown(text)


def _request(said: Mapping[str, Any]) -> Request:
    body = json.loads(said.get("request_body") or "null")
    return Request(
        id=said["request_id"],
        name=said["name"],
        status=said["status"],
        created_at=float(said.get("created_at") or 0.0),
        cluster=said["cluster_name"],
        task=str(body.get("task", "")) if isinstance(body, dict) else "",
    )
