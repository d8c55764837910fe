"""Client of a SkyPilot API server's REST interface, with translated results and errors.

Every change is a request with an id, which continues without a waiting client. Results contain JSON and pickled
objects; the latter are never read.

Source: skypilot 0.14.1, sky/server/server.py, sky/server/requests/payloads.py, sky/exceptions.py.
"""

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from maintainer.fleet.providers.base import (
    AuthError,
    CapacityError,
    InvalidError,
    ProviderError,
    QuotaError,
    RetryError,
    UnknownError,
)

API_VERSION = "62"
"""API version of this client: SkyPilot 0.14. Servers support versions back to 24."""

ACTIVE = ("PENDING", "WAITING", "RUNNING")

LAUNCH, DOWN = "sky.launch", "sky.down"

_FIELDS = ("request_id", "name", "status", "created_at", "cluster_name", "request_body")
_NEWEST = 2000
"""Number of latest requests that are read: all pools' requests of about an hour."""

_KINDS: tuple[tuple[type[ProviderError], frozenset[str]], ...] = (
    (
        AuthError,
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
        RetryError,
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
        InvalidError,
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
    (CapacityError, frozenset({"ResourcesUnavailableError"})),
)
_QUOTA = re.compile(r"quota|LimitExceeded|limit exceeded|CountExceeded", re.I)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request on the server."""

    id: str
    name: str
    """Name of the operation: `sky.launch`, `sky.down`."""
    status: str
    created_at: float
    cluster: str
    task: str = ""
    """Submitted YAML of a launch. Contains the token."""

    @property
    def is_active(self) -> bool:
        """The request is not finished."""
        return self.status in ACTIVE


class NoCluster(ProviderError):
    """SkyPilot does not know the cluster. Handled inside the provider."""


class SkyPilotApi:
    """Client of a SkyPilot API server. All methods raise ProviderError."""

    def __init__(self, endpoint: str, *, token: Callable[[], str], user: str, timeout_s: float) -> None:
        """token: returns the current token, empty without one; called for each request."""
        self._endpoint = endpoint.rstrip("/")
        self._token = token
        self._user = user
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None

    async def launch(self, cluster: str, task: Mapping[str, Any], *, is_dry: bool = False) -> str:
        """Submits a launch of a cluster and its command; returns the request id. The task's JSON is valid YAML.

        is_dry: SkyPilot only chooses a location.
        """
        payload = {"task": json.dumps(task), "cluster_name": cluster}
        return await self._submit("/launch", payload | ({"dryrun": True} if is_dry else {}))

    async def down(self, cluster: str) -> str:
        """Submits the termination of a cluster; returns the request id."""
        return await self._submit("/down", {"cluster_name": cluster})

    async def cancel(self, requests: Sequence[str]) -> None:
        """Cancels requests. Resources that a cancelled launch has created remain and must be terminated."""
        await self.result(await self._submit("/api/cancel", {"request_ids": list(requests)}), within_s=self._timeout_s)

    async def clusters(self, names: Sequence[str] | None = None, *, refresh: str) -> tuple[Mapping[str, Any], ...]:
        """Returns clusters, all without names. refresh: NONE, AUTO or FORCE: whether SkyPilot queries the clouds."""
        body = {
            "cluster_names": None if names is None else list(names),
            "refresh": refresh,
            "all_users": False,
            "include_credentials": False,
            "include_handle": False,
        }
        clusters = await self.result(await self._submit("/status", body), within_s=self._timeout_s)
        if not isinstance(clusters, list):
            raise RetryError(
                f"cannot list clusters: no answer within {self._timeout_s:g} s; retry later", code="provider.no_answer"
            )
        return tuple(clusters)

    async def requests(self, cluster: str = "") -> tuple[Request, ...]:
        """Returns launch and down requests, newest first, of one cluster or of all."""
        parameters: list[tuple[str, str]] = [("all_status", "true"), ("limit", str(_NEWEST))]
        parameters += [("fields", field) for field in _FIELDS]
        parameters += [("cluster_name", cluster)] if cluster else []
        raw_requests = await self._json("GET", "/api/status", params=parameters)
        if not isinstance(raw_requests, list):
            raise UnknownError(
                f"cannot list requests: the answer is no list; is {self._endpoint} a SkyPilot server?",
                code="provider.foreign_answer",
            )
        requests = [
            _request(request)
            for request in raw_requests
            if request.get("name") in (LAUNCH, DOWN) and request.get("cluster_name")
        ]
        return tuple(sorted(requests, key=lambda request: request.created_at, reverse=True))

    async def result(self, request: str, *, within_s: float) -> Any:
        """Returns a request's result; None while it is active. Raises: the request's error."""
        try:
            return await self.outcome(request, within_s=within_s)
        except TimeoutError:
            return None

    async def outcome(self, request: str, *, within_s: float) -> Any:
        """Returns a request's result. Raises: TimeoutError while it is active; the request's error."""
        async with asyncio.timeout(within_s):
            status, answer = await self._send("GET", "/api/get", params={"request_id": request}, is_patient=True)
        if status == 500 and isinstance(answer.get("detail"), dict):
            raise refusal(json.loads(answer["detail"].get("error") or "null") or {})
        if status != 200:
            raise _http_refusal("read the result of a request", status, answer)
        if answer.get("status") == "CANCELLED":
            raise RetryError("cannot complete the request: it was cancelled; retry", code="provider.request_cancelled")
        return json.loads(answer.get("return_value") or "null")

    async def close(self) -> None:
        """Closes connections."""
        if self._client is not None:
            await self._client.aclose()

    async def _submit(self, path: str, body: Mapping[str, Any]) -> str:
        payload = {
            "env_vars": {"SKYPILOT_USER_ID": self._user, "SKYPILOT_USER": "astraflow"},
            "entrypoint": "astraflow",
            "entrypoint_command": "astraflow serve fleet",
            "using_remote_api_server": True,
            "override_skypilot_config": {},
            **body,
        }
        headers: dict[str, str] = {}
        await self._json("POST", path, json=payload, response_headers=headers)
        request = headers.get("x-skypilot-request-id", "")
        if not request:
            raise UnknownError(
                f"cannot call POST {path}: no request id in the answer; is {self._endpoint} a SkyPilot server?",
                code="provider.no_request_id",
            )
        return request

    async def _json(self, method: str, path: str, **arguments: Any) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                status, answer = await self._send(method, path, **arguments)
        except TimeoutError:
            raise RetryError(
                f"cannot call {method} {path}: no answer within {self._timeout_s:g} s; retry later",
                code="provider.no_answer",
            ) from None
        if status != 200:
            raise _http_refusal(f"call {method} {path}", status, answer)
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        *,
        response_headers: dict[str, str] | None = None,
        is_patient: bool = False,
        **arguments: Any,
    ) -> tuple[int, Any]:
        token = await asyncio.to_thread(self._token)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            answer = await self._connected().request(
                method, path, headers=headers, timeout=None if is_patient else self._timeout_s, **arguments
            )
        except httpx.HTTPError as problem:
            raise RetryError(
                f"cannot call {method} {path}: no connection to {self._endpoint}: {type(problem).__name__}; retry",
                code="provider.unreachable",
            ) from None
        if response_headers is not None:
            response_headers.update({key.lower(): value for key, value in answer.headers.items()})
        try:
            return answer.status_code, answer.json()
        except ValueError:
            return answer.status_code, {}

    def _connected(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(base_url=self._endpoint, headers={"X-SkyPilot-API-Version": API_VERSION})
        return self._client


def refusal(error: Mapping[str, Any]) -> ProviderError:
    """Returns the provider error for a request's error."""
    name = str(error.get("type", "an unknown error"))
    text = f"{name}: {' '.join(_COLOUR.sub('', str(error.get('message', ''))).split())[:500]}"
    if name == "ClusterDoesNotExist":
        return NoCluster(text)
    if name == "ResourcesUnavailableError" and _QUOTA.search(text):
        return QuotaError(text)
    return next((kind for kind, names in _KINDS if name in names), UnknownError)(text)


def _http_refusal(what: str, status: int, answer: Any) -> ProviderError:
    """Returns the provider error for an HTTP status. Non-text details may quote the request, so they are left out."""
    detail = answer.get("detail") if isinstance(answer, dict) else None
    text = f"cannot {what}: HTTP {status}" + (f": {detail[:300]}" if isinstance(detail, str) else "")
    if status in (401, 403):
        return AuthError(text)
    if status in (400, 404, 405, 422):
        return InvalidError(text)
    return RetryError(text) if status in (408, 429, 502, 503, 504) else UnknownError(text)


def _request(fields: Mapping[str, Any]) -> Request:
    body = json.loads(fields.get("request_body") or "null")
    return Request(
        id=fields["request_id"],
        name=fields["name"],
        status=fields["status"],
        created_at=float(fields.get("created_at") or 0.0),
        cluster=fields["cluster_name"],
        task=str(body.get("task", "")) if isinstance(body, dict) else "",
    )
