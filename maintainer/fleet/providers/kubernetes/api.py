"""Requests to a Kubernetes API server with the official client, in threads, with timeouts and translated errors."""

import asyncio
import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from maintainer.fleet.providers.base import AuthError, InvalidError, ProviderError, QuotaError, RetryError, UnknownError
from maintainer.fleet.providers.kubernetes.config import KubernetesOptions

_RESTARTS = 3
"""Attempts to read a list whose pages expire."""

_DENIED = re.compile(r"\buser\b.*\bcannot\b", re.I)
"""Message of a 403 that the roles of the user cause."""


class NotFound(ProviderError):
    """The object does not exist. Handled inside the provider."""


class AlreadyExists(ProviderError):
    """An object of that name exists. Handled inside the provider."""


class Expired(ProviderError):
    """The remaining pages of a list have expired. Handled inside the provider."""


class KubernetesApi:
    """Pods and secrets of one namespace. All methods raise ProviderError."""

    def __init__(self, options: KubernetesOptions, *, threads: int) -> None:
        self._options = options
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="kubernetes")
        self._lock = threading.Lock()
        self._core: Any = None

    async def create_pod(self, manifest: Mapping[str, Any], *, is_dry: bool = False) -> dict[str, Any]:
        """Creates a pod and returns it. is_dry: the server only checks the request. Raises: AlreadyExists."""
        return await self._call("create_namespaced_pod", what="create a pod", body=dict(manifest), **_dry(is_dry))

    async def create_secret(self, manifest: Mapping[str, Any], *, is_dry: bool = False) -> None:
        """Creates a secret. Errors do not quote the answer, which may contain the secret. Raises: AlreadyExists."""
        what = "create the secret of a pod"
        await self._call("create_namespaced_secret", what=what, is_secret=True, body=dict(manifest), **_dry(is_dry))

    async def pod(self, name: str) -> dict[str, Any]:
        """Returns a pod. Raises: NotFound."""
        return await self._call("read_namespaced_pod", what=f"read the pod {name}", name=name)

    async def secret_owners(self, name: str) -> frozenset[str]:
        """Returns the uids of a secret's owners. Raises: NotFound."""
        secret = await self._call("read_namespaced_secret", what=f"read the secret {name}", is_secret=True, name=name)
        return frozenset(owner["uid"] for owner in secret["metadata"].get("ownerReferences") or ())

    async def delete_pod(self, pod: Mapping[str, Any], *, grace_s: int | None = None) -> None:
        """Deletes this pod, by uid; a missing pod is no error. grace_s: None for the pod's own grace period."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        body: dict[str, Any] = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self._call("delete_namespaced_pod", what=f"delete the pod {name}", name=name, body=body)
        except NotFound:
            return

    async def pods(self, labels: Mapping[str, str]) -> tuple[dict[str, Any], ...]:
        """Lists all pods with the labels, page by page. An expired list is read again from the start."""
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        for _ in range(_RESTARTS):
            try:
                return await self._pages(selector)
            except Expired:
                continue
            except NotFound as problem:
                raise InvalidError(str(problem), code="provider.not_found") from None
        raise RetryError(
            f"cannot list pods: the list expired {_RESTARTS} times before its end; raise page_size",
            code="provider.list_expired",
        )

    async def place(self) -> str:
        """Returns the server and the namespace. Raises: AuthError without valid credentials."""
        host = (await asyncio.to_thread(self._client)).api_client.configuration.host
        return f"{self._options.namespace} at {host}"

    async def close(self) -> None:
        """Closes connections; running requests end by their own timeout."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._core is not None:
            await asyncio.to_thread(self._core.api_client.close)

    async def _pages(self, selector: str) -> tuple[dict[str, Any], ...]:
        pods: list[dict[str, Any]] = []
        continuation: str | None = None
        while True:
            page = await self._call(
                "list_namespaced_pod",
                what="list pods",
                label_selector=selector,
                limit=self._options.page_size,
                _continue=continuation,
            )
            if "items" not in page:
                raise _no_answer_of_kubernetes("list pods")
            pods += page["items"] or ()
            continuation = (page.get("metadata") or {}).get("continue")
            if not continuation:
                return tuple(pods)

    async def _call(self, operation: str, *, what: str, is_secret: bool = False, **arguments: Any) -> dict[str, Any]:
        """Sends a request. The thread's timeout is below the caller's, so that threads do not accumulate."""
        loop, limit_s = asyncio.get_running_loop(), self._options.timeout_s
        try:
            async with asyncio.timeout(limit_s + 5.0):
                return await loop.run_in_executor(
                    self._threads, lambda: self._request(operation, what, is_secret, arguments)
                )
        except TimeoutError:
            raise RetryError(
                f"cannot {what}: no answer within {limit_s:g} s; retry later", code="provider.no_answer"
            ) from None

    def _request(self, operation: str, what: str, is_secret: bool, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a request; once more with newly read credentials if the server refuses those in use."""
        try:
            return self._attempt(operation, what, is_secret, arguments)
        except _StaleCredentials:
            with self._lock:
                self._core = None
        try:
            return self._attempt(operation, what, is_secret, arguments)
        except _StaleCredentials as refused:
            raise refused.problem from None

    def _attempt(self, operation: str, what: str, is_secret: bool, arguments: Mapping[str, Any]) -> dict[str, Any]:
        from kubernetes.client import ApiException
        from kubernetes.config import ConfigException
        from urllib3.exceptions import HTTPError, SSLError

        send: Callable[..., Any] = getattr(self._client(), operation)
        limit_s = self._options.timeout_s
        try:  # raw JSON: the client's models take seconds for a thousand pods, and reject values of newer servers
            answer = send(
                namespace=self._options.namespace, _request_timeout=limit_s, _preload_content=False, **arguments
            )
            return _object(answer.data, what)
        except HTTPError as problem:
            unreachable = RetryError(
                f"cannot {what}: no connection to the API server ({type(problem).__name__}); retry later",
                code="provider.unreachable",
            )
            # A certificate of the client or of the server's authority may have been renewed.
            raise (_StaleCredentials(unreachable) if isinstance(problem, SSLError) else unreachable) from None
        except ApiException as problem:
            if not problem.status:
                raise RetryError(f"cannot {what}: {problem.reason}; retry later", code="provider.unreachable") from None
            error = refusal(problem.status, _json(problem.body), what=what, is_secret=is_secret)
            is_stale = problem.status == 401 or (isinstance(error, AuthError) and "system:anonymous" in str(error))
            raise (_StaleCredentials(error) if is_stale else error) from None
        except (ConfigException, OSError) as problem:  # while the client refreshes its token
            raise _StaleCredentials(_no_credentials(problem)) from None

    def _client(self) -> Any:
        with self._lock:
            if self._core is None:
                self._core = connect(self._options)
            return self._core


class _StaleCredentials(Exception):
    """The server refuses the credentials in use, and newer ones may exist. Handled inside this module."""

    def __init__(self, problem: ProviderError) -> None:
        super().__init__(str(problem))
        self.problem = problem


def connect(options: KubernetesOptions) -> Any:
    """Returns the cluster's client. Raises: AuthError without valid credentials."""
    from kubernetes import client, config
    from yaml import YAMLError

    settings = client.Configuration()
    try:
        if not options.kubeconfig and not options.context and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=settings)
        else:
            config.load_kube_config(
                config_file=options.kubeconfig or None,
                context=options.context or None,
                client_configuration=settings,
                persist_config=False,
            )
    except (config.ConfigException, OSError, ValueError, YAMLError) as problem:
        raise _no_credentials(problem) from None
    settings.retries = False  # the fleet service retries by itself, after a check
    return client.CoreV1Api(client.ApiClient(settings))


def _no_credentials(problem: Exception) -> AuthError:
    return AuthError(
        f"cannot authenticate to the Kubernetes API server: {problem}; set kubeconfig, or use a service account",
        code="provider.no_credentials",
    )


def refusal(status: int, answer: Mapping[str, Any], *, what: str, is_secret: bool = False) -> ProviderError:
    """Returns the provider error for a status of the server.

    Source: https://kubernetes.io/docs/reference/using-api/api-concepts/, https://kubernetes.io/docs/concepts/policy/resource-quotas/
    """
    reason, message = str(answer.get("reason") or f"HTTP {status}"), str(answer.get("message") or "")
    text = f"cannot {what}: {reason}" if is_secret else f"cannot {what}: {reason}: {message[:500]}".rstrip(": ")
    match status, reason:
        case 409, "AlreadyExists":
            return AlreadyExists(text)
        case 404, _ if "namespaces" not in message:
            return NotFound(text)
        case 410, _:
            return Expired(text)
        case 403, _ if "exceeded quota" in message or ("maximum" in message and "usage" in message):
            return QuotaError(text)
        case 403, _ if message and not _DENIED.search(message):
            return InvalidError(text)  # an admission plugin, policy or webhook refuses the object
        case 401 | 403, _:
            return AuthError(text)
        case 400 | 404 | 405 | 413 | 415 | 422, _:
            return InvalidError(text)
        case 408 | 409 | 429 | 502 | 503 | 504, _:
            return RetryError(text)
        case _ if reason in ("ServerTimeout", "Timeout", "TooManyRequests", "ServiceUnavailable"):
            return RetryError(text)
        case _:
            return UnknownError(text)


def _dry(is_dry: bool) -> dict[str, Any]:
    return {"dry_run": "All"} if is_dry else {}


def _object(body: bytes, what: str) -> dict[str, Any]:
    """Returns the JSON of a successful answer. Raises: UnknownError for another answer, as of a proxy's login page."""
    answer = _json(body)
    if not answer:
        raise _no_answer_of_kubernetes(what)
    return answer


def _no_answer_of_kubernetes(what: str) -> UnknownError:
    return UnknownError(
        f"cannot {what}: the answer is not that of a Kubernetes API server; check its address and proxies between",
        code="provider.foreign_answer",
    )


def _json(body: bytes | str | None) -> dict[str, Any]:
    try:
        value = json.loads(body or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
