"""Calls of EC2 in threads: a client per region, bounded concurrency, and translated errors."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
from botocore.config import Config as ClientConfig
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,  # noqa: A004 (botocore's own)
    HTTPClientError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    TokenRetrievalError,
)

from maintainer.fleet.providers.base import Auth, Capacity, Invalid, ProviderError, Quota, Retry, Unknown

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

T = TypeVar("T")

CONNECT_S, READ_S = 5, 30
"""Timeouts of a call in seconds. Calls are not retried here, but by the fleet service."""

_AUTH = ("AuthFailure", "UnauthorizedOperation", "ExpiredToken", "RequestExpired", "OptInRequired", "Blocked")
_AUTH_CODES = (
    "InvalidClientTokenId",
    "SignatureDoesNotMatch",
    "UnrecognizedClient",
    "AccessDenied",
    "PendingVerification",
)
_QUOTA = ("LimitExceeded", "MaxSpotInstanceCount", "MaxSpotFleet", "ResourceCountExceeded")
_CAPACITY = ("Insufficient", "SpotMaxPriceTooLow", "CapacityNotAvailable")
_RETRY = ("RequestLimitExceeded", "Throttl", "RequestThrottled", "ServiceUnavailable", "Unavailable", "Internal")
_INVALID = ("Invalid", "Malformed", "Missing", "Unsupported", "UnknownParameter", "IdempotentParameterMismatch")

MISMATCH = "IdempotentParameterMismatch"
"""Error code for a client token that was used for another request: the launch was made before."""


class Ec2Calls:
    """EC2 clients with credentials of the environment or a profile."""

    def __init__(self, *, endpoint_url: str, profile: str, calls_at_once: int) -> None:
        self._endpoint_url = endpoint_url or None
        self._profile = profile or None
        self._config = ClientConfig(
            connect_timeout=CONNECT_S,
            read_timeout=READ_S,
            max_pool_connections=calls_at_once,
            retries={"mode": "standard", "total_max_attempts": 1},
            user_agent_extra="astraflow",
        )
        self._threads = ThreadPoolExecutor(calls_at_once, thread_name_prefix="ec2")
        self._clients: dict[str, EC2Client] = {}
        self._session: boto3.Session | None = None
        self._clients_lock = threading.Lock()

    async def call(self, region: str, work: "Callable[[EC2Client], T]") -> T:
        """Runs `work` with the region's client; returns its result. Raises: ProviderError.

        A cancelled call continues in its thread; a later call checks whether it succeeded.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, region, work)

    def close(self) -> None:
        """Closes clients. Running calls end by their own timeout."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for client in self._clients.values():
            client.close()

    def _run(self, region: str, work: "Callable[[EC2Client], T]") -> T:
        try:
            return work(self._client(region))
        except (ClientError, BotoCoreError) as problem:
            raise explained(problem, region) from problem

    def _client(self, region: str) -> "EC2Client":
        with self._clients_lock:  # sessions are not thread-safe; clients are
            if region not in self._clients:
                if self._session is None:
                    self._session = boto3.Session(profile_name=self._profile)
                self._clients[region] = self._session.client(
                    "ec2", region_name=region, endpoint_url=self._endpoint_url, config=self._config
                )
            return self._clients[region]


def code_of(problem: BaseException | None) -> str:
    """Returns EC2's error code; empty for other errors."""
    response: Any = problem.response if isinstance(problem, ClientError) else {}
    return str(response.get("Error", {}).get("Code", ""))


def explained(problem: ClientError | BotoCoreError, region: str) -> ProviderError:
    """Returns the provider error for a failed call. It never quotes the request, which contains the token."""
    match problem:
        case ClientError():
            code = code_of(problem)
            message = str(problem.response.get("Error", {}).get("Message", ""))[:500]
            return _kind(code, problem)(f"EC2 in {region} refused the call with {code}: {message}")
        case NoCredentialsError() | PartialCredentialsError() | ProfileNotFound() | TokenRetrievalError():
            return Auth(
                f"cannot call EC2: no valid credentials: {problem}; set AWS_PROFILE or an instance role",
                code="provider.no_credentials",
            )
        case ParamValidationError() | NoRegionError():
            return Invalid(
                f"cannot call EC2 in {region}: the request is malformed; correct the pool's options",
                code="provider.malformed_request",
            )
        case ConnectionError() | HTTPClientError():
            return Retry(
                f"cannot call EC2 in {region}: no answer ({type(problem).__name__}); retry later",
                code="provider.no_answer",
            )
        case _:
            return Unknown(
                f"cannot call EC2 in {region}: {type(problem).__name__}; check AWS's status",
                code="provider.call_failed",
            )


def _kind(code: str, problem: ClientError) -> type[ProviderError]:
    """Returns the error type for EC2's code, or for the HTTP status of unknown codes."""
    if code.startswith((*_AUTH, *_AUTH_CODES)):
        return Auth
    if code.startswith(_RETRY):
        return Retry
    if code.startswith(_CAPACITY):
        return Capacity
    if any(part in code for part in _QUOTA):
        return Quota
    if code.startswith(_INVALID) or code.endswith((".NotFound", ".Malformed")):
        return Invalid
    status = int(problem.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return Retry if status in (429, 502, 503, 504) else Unknown
