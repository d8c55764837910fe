"""Requests to a Kubernetes API server by its official client, in threads and bounded in time; its refusals as ours."""

import asyncio
import json
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from maintainer.fleet.providers.base import Auth, Invalid, ProviderError, Quota, Retry, Unknown
from maintainer.fleet.providers.kubernetes_config import KubernetesOptions

_RESTARTS = 3
"""A list whose pages have expired is begun anew so often."""


class NotFound(ProviderError):
    """It is not there. Always handled here: callers of the port never see it."""


class AlreadyExists(ProviderError):
    """Something of that name is there. Always handled here."""


class Expired(ProviderError):
    """The rest of a list cannot be had any more. Always handled here."""


class KubernetesApi:
    """Pods and secrets of one namespace. Raises: ProviderError everywhere."""

    def __init__(self, options: KubernetesOptions, *, threads: int) -> None:
        self._options = options
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="kubernetes")
        self._lock = threading.Lock()
        self._core: Any = None

    async def create_pod(self, manifest: Mapping[str, Any], *, is_dry: bool = False) -> dict[str, Any]:
        """Returns it as it is then. is_dry: everything is checked and nothing kept. Raises: AlreadyExists."""
        return await self._call("create_namespaced_pod", what="creating a pod", body=dict(manifest), **_dry(is_dry))

    async def create_secret(self, manifest: Mapping[str, Any], *, is_dry: bool = False) -> None:
        """Raises: AlreadyExists. What the server answers is not repeated: it may quote the secret."""
        what = "creating the secret of a pod"
        await self._call("create_namespaced_secret", what=what, is_secret=True, body=dict(manifest), **_dry(is_dry))

    async def pod(self, name: str) -> dict[str, Any]:
        """Raises: NotFound."""
        return await self._call("read_namespaced_pod", what=f"reading the pod {name}", name=name)

    async def secret_owners(self, name: str) -> frozenset[str]:
        """Uids of whom a secret belongs to. Raises: NotFound."""
        found = await self._call("read_namespaced_secret", what=f"reading the secret {name}", is_secret=True, name=name)
        return frozenset(owner["uid"] for owner in found["metadata"].get("ownerReferences") or ())

    async def delete_pod(self, pod: Mapping[str, Any], *, grace_s: int | None = None) -> None:
        """This very pod, and no later one of its name; one that is gone is fine. grace_s: None for its own."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        body: dict[str, Any] = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self._call("delete_namespaced_pod", what=f"deleting the pod {name}", name=name, body=body)
        except NotFound:
            return

    async def pods(self, labels: Mapping[str, str]) -> tuple[dict[str, Any], ...]:
        """All that have these labels, page by page. An expired list is begun anew: half a list is none."""
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        for _ in range(_RESTARTS):
            try:
                return await self._pages(selector)
            except Expired:
                continue
        raise Retry(f"listing pods: the list expired {_RESTARTS} times before its end; a larger page_size may help")

    async def close(self) -> None:
        """Let go of connections; requests under way end by their own bound."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._core is not None:
            await asyncio.to_thread(self._core.api_client.close)

    async def _pages(self, selector: str) -> tuple[dict[str, Any], ...]:
        found: list[dict[str, Any]] = []
        rest: str | None = None
        while True:
            page = await self._call(
                "list_namespaced_pod",
                what="listing pods",
                label_selector=selector,
                limit=self._options.page_size,
                _continue=rest,
            )
            found += page.get("items") or ()
            rest = (page.get("metadata") or {}).get("continue")
            if not rest:
                return tuple(found)

    async def _call(self, operation: str, *, what: str, is_secret: bool = False, **arguments: Any) -> dict[str, Any]:
        """One request. The thread's own bound is below the awaiting one, so that threads do not pile up."""
        loop, limit_s = asyncio.get_running_loop(), self._options.timeout_s
        try:
            async with asyncio.timeout(limit_s + 5.0):
                return await loop.run_in_executor(
                    self._threads, lambda: self._request(operation, what, is_secret, arguments)
                )
        except TimeoutError:
            raise Retry(f"{what}: no answer within {limit_s:g} s") from None

    def _request(self, operation: str, what: str, is_secret: bool, arguments: Mapping[str, Any]) -> dict[str, Any]:
        send: Callable[..., Any] = getattr(self._client(), operation)
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        limit_s = self._options.timeout_s
        try:  # the answer as it is: models of a thousand pods would take seconds, and refuse what a newer server says
            answer = send(
                namespace=self._options.namespace, _request_timeout=limit_s, _preload_content=False, **arguments
            )
            return _json(answer.data)
        except HTTPError as problem:
            raise Retry(f"{what}: {type(problem).__name__} on the way to the API server") from None
        except ApiException as problem:
            if not problem.status:
                raise Retry(f"{what}: {problem.reason}") from None
            raise refusal(problem.status, _json(problem.body), what=what, is_secret=is_secret) from None

    def _client(self) -> Any:
        with self._lock:
            if self._core is None:
                self._core = connect(self._options)
            return self._core


def connect(options: KubernetesOptions) -> Any:
    """Returns the client of the cluster that the options name. Raises: Auth when it gives no credentials."""
    from kubernetes import client, config

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
    except (config.ConfigException, OSError, ValueError) as problem:
        raise Auth(f"no way into the cluster: {problem}") from None
    settings.retries = False  # the fleet service asks again by itself, and looks before it does
    return client.CoreV1Api(client.ApiClient(settings))


def refusal(status: int, said: Mapping[str, Any], *, what: str, is_secret: bool = False) -> ProviderError:
    """The server's status as one of ours.

    Source: https://kubernetes.io/docs/reference/using-api/api-concepts/, https://kubernetes.io/docs/concepts/policy/resource-quotas/
    """
    reason, message = str(said.get("reason") or f"HTTP {status}"), str(said.get("message") or "")
    text = f"{what}: {reason}" if is_secret else f"{what}: {reason}: {message[:500]}".rstrip(": ")
    match status, reason:
        case 409, "AlreadyExists":
            return AlreadyExists(text)
        case 404, _ if "namespaces" not in message:
            return NotFound(text)
        case 410, _:
            return Expired(text)
        case 403, _ if "exceeded quota" in message or ("maximum" in message and "usage" in message):
            return Quota(text)
        case 401 | 403, _:
            return Auth(text)
        case 400 | 404 | 405 | 413 | 415 | 422, _:
            return Invalid(text)
        case 408 | 409 | 429 | 502 | 503 | 504, _:
            return Retry(text)
        case _ if reason in ("ServerTimeout", "Timeout", "TooManyRequests", "ServiceUnavailable"):
            return Retry(text)
        case _:
            return Unknown(text)


def _dry(is_dry: bool) -> dict[str, Any]:
    return {"dry_run": "All"} if is_dry else {}


def _json(body: bytes | str | None) -> dict[str, Any]:
    try:
        found = json.loads(body or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
