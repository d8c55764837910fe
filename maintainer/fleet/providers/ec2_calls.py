"""EC2 by threads: a client for each region, a bounded number of calls at once, and errors as the port has them."""

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
"""A call that may change something is made once: asking again is the fleet service's business."""

_AUTH = ("AuthFailure", "UnauthorizedOperation", "ExpiredToken", "RequestExpired", "OptInRequired", "Blocked")
_AUTH_TOO = (
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
"""A client token that was used for another request: the launch was made before."""


class Ec2Calls:
    """The account, as credentials of the environment or a profile open it."""

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
        self._making = threading.Lock()

    async def call(self, region: str, work: "Callable[[EC2Client], T]") -> T:
        """What `work` returns of that region's client. Raises: ProviderError.

        Cancelled, the call goes on in its thread until it is over: whether it worked is found out later.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._done, region, work)

    def close(self) -> None:
        """Calls that run end by themselves, within their time limit."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for client in self._clients.values():
            client.close()

    def _done(self, region: str, work: "Callable[[EC2Client], T]") -> T:
        try:
            return work(self._client(region))
        except (ClientError, BotoCoreError) as problem:
            raise explained(problem, region) from problem

    def _client(self, region: str) -> "EC2Client":
        with self._making:  # sessions are not for several threads; clients are
            if region not in self._clients:
                if self._session is None:
                    self._session = boto3.Session(profile_name=self._profile)
                self._clients[region] = self._session.client(
                    "ec2", region_name=region, endpoint_url=self._endpoint_url, config=self._config
                )
            return self._clients[region]


def code_of(problem: BaseException | None) -> str:
    """EC2's name of what went wrong; empty for what is no answer of EC2."""
    response: Any = problem.response if isinstance(problem, ClientError) else {}
    return str(response.get("Error", {}).get("Code", ""))


def explained(problem: ClientError | BotoCoreError, region: str) -> ProviderError:
    """One of the port's errors. It never quotes a request, in which the token is."""
    match problem:
        case ClientError():
            code = code_of(problem)
            message = str(problem.response.get("Error", {}).get("Message", ""))[:500]
            return _kind(code, problem)(f"EC2 in {region} says {code}: {message}")
        case NoCredentialsError() | PartialCredentialsError() | ProfileNotFound() | TokenRetrievalError():
            return Auth(f"no credentials for EC2: {problem}; set AWS_PROFILE or an instance role")
        case ParamValidationError() | NoRegionError():
            return Invalid(f"the request to EC2 in {region} is not well-formed: see the pool's options")
        case ConnectionError() | HTTPClientError():
            return Retry(f"EC2 in {region} does not answer: {type(problem).__name__}")
        case _:
            return Unknown(f"the call to EC2 in {region} failed: {type(problem).__name__}")


def _kind(code: str, problem: ClientError) -> type[ProviderError]:
    """By the code; of those that nobody knows, what the status says."""
    if code.startswith((*_AUTH, *_AUTH_TOO)):
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
