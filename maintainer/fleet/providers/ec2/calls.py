"""Calls of EC2 in threads: a client per region, bounded concurrency, and translated errors."""

import asyncio
import re
import threading
from collections import defaultdict
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
    IncompleteReadError,
)
from botocore.parsers import ResponseParserError

from maintainer.fleet.providers.base import (
    AuthError,
    CapacityError,
    InvalidError,
    ProviderError,
    QuotaError,
    RetryError,
    UnknownError,
)

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

T = TypeVar("T")

CONNECT_S, READ_S = 5, 30
"""Timeouts of a call in seconds. Calls are not retried here, but by the fleet service."""

_CODES: tuple[tuple[type[ProviderError], re.Pattern[str]], ...] = (
    (
        AuthError,
        re.compile(
            r"^(AuthFailure|Unauthorized|ExpiredToken|RequestExpired|OptInRequired|Blocked|PendingVerification|Signature"
            r"|IncompleteSignature|Invalid(ClientTokenId|AccessKeyId|IdentityToken|Token$|Grant|ClientException|UserID)"
            r"|UnrecognizedClient|AccessDenied|Forbidden|MissingAuthenticationToken|NotAuthorized|IDPRejected"
            r"|RegionDisabled|RequestTimeTooSkewed)"
        ),
    ),
    (
        RetryError,
        re.compile(
            r"Throttl|^(RequestLimitExceeded|TooManyRequests|BandwidthLimitExceeded|SlowDown|ServiceUnavailable"
            r"|Unavailable$|ServerInternal|Internal|PriorRequestNotComplete|ConcurrentTagAccess|RequestTimeout"
            r"|TransactionInProgress|IDPCommunicationError)"
        ),
    ),
    (
        CapacityError,
        re.compile(
            r"^(Insufficient|Unfulfillable|ReservationCapacityExceeded|SpotMaxPriceTooLow|CapacityNotAvailable"
            r"|UnavailableHostRequirements|MaxScheduledInstanceCapacity|ScheduledInstanceSlot)"
        ),
    ),
    (QuotaError, re.compile(r"(Limit|Count|Quota|Capacity)Exceeded|^(MaxSpot|VolumeIOPSLimit)")),
    (
        InvalidError,
        re.compile(
            r"^(Invalid|Malformed|Missing|Unsupported|Unknown|Validation|Idempotent|Incorrect|Ineligible|VPC\w+Specified"
            r"|OperationNotPermitted|TagPolicyViolation)|Not(Supported|Found\w*|AvailableIn\w+)$|\.(Malformed|Unsupported)"
        ),
    ),
)
"""Error codes of EC2, and of the services that give it credentials. The first match counts.

Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html, the same of STS and Identity Center
"""

_CREDENTIALS = re.compile(
    r"Credential|Token|SSO|Login|Profile|MFA|Metadata|MissingDependency|Config(NotFound|ParseError)"
    r"|(Invalid|InfiniteLoop)ConfigError"
)
"""Names of botocore's errors about credentials, and about the files that it reads them from."""

_REQUEST = re.compile(r"^(Invalid|Unknown|Unsupported|ParamValidation|Validation|NoRegion|Endpoint\w+Resolution)")
"""Names of botocore's errors about a request that it does not send."""

MISMATCH = "IdempotentParameterMismatch"
"""Error code for a client token that was used for another request: the launch was made before."""


class Ec2Calls:
    """EC2 clients with credentials of the environment or a profile, which are read again when they are refused."""

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
        self._threads = defaultdict[str, ThreadPoolExecutor](
            lambda: ThreadPoolExecutor(calls_at_once, thread_name_prefix="ec2")
        )
        """Threads of each region, so that a silent one delays no other."""
        self._clients: dict[str, EC2Client] = {}
        self._session: boto3.Session | None = None
        self._clients_lock = threading.Lock()

    async def call(self, region: str, work: "Callable[[EC2Client], T]") -> T:
        """Runs `work` with the region's client; returns its result. Raises: ProviderError.

        A cancelled call continues in its thread; a later call checks whether it succeeded.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads[region], self._run, region, work)

    def close(self) -> None:
        """Closes clients. Running calls end by their own timeout."""
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)
        for client in self._clients.values():
            client.close()

    def _run(self, region: str, work: "Callable[[EC2Client], T]") -> T:
        """Runs `work`; once more with newly read credentials if AWS or botocore refuses those in use."""
        try:
            return self._attempt(region, work)
        except AuthError:
            with self._clients_lock:
                self._session = None
                self._clients.clear()
            return self._attempt(region, work)

    def _attempt(self, region: str, work: "Callable[[EC2Client], T]") -> T:
        try:
            return work(self._client(region))
        except (ClientError, BotoCoreError, ResponseParserError, OSError, ValueError, RuntimeError) as problem:
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


def explained(problem: Exception, region: str) -> ProviderError:
    """Returns the provider error for a failed call. It never quotes the request, which contains the token."""
    name = type(problem).__name__
    match problem:
        case ClientError():
            code = code_of(problem)
            message = str(problem.response.get("Error", {}).get("Message", ""))[:500]
            return _kind(code, problem)(f"EC2 in {region} refused the call with {code}: {message}")
        case ConnectionError() | HTTPClientError() | IncompleteReadError() | ResponseParserError():
            return RetryError(
                f"cannot call EC2 in {region}: no answer ({name}); retry later", code="provider.no_answer"
            )
        case BotoCoreError() if not _CREDENTIALS.search(name):
            if _REQUEST.search(name):
                return InvalidError(
                    f"cannot call EC2 in {region}: the request is malformed ({name}); correct the pool's options",
                    code="provider.malformed_request",
                )
            return UnknownError(f"cannot call EC2 in {region}: {name}; check AWS's status", code="provider.call_failed")
        case ValueError() if "endpoint" in str(problem):
            return InvalidError(f"cannot call EC2: {problem}; correct endpoint_url", code="provider.malformed_request")
        case _:  # botocore starts `credential_process` and parses its output without translating errors
            return AuthError(
                f"cannot call EC2: no valid credentials: {str(problem)[:500]}; renew them, or set "
                "AWS_PROFILE or an instance role",
                code="provider.no_credentials",
            )


def _kind(code: str, problem: ClientError) -> type[ProviderError]:
    """Returns the error type for EC2's code, or for the HTTP status of unknown codes."""
    status = int(problem.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    by_status = {401: AuthError, 403: AuthError, 429: RetryError, 502: RetryError, 503: RetryError, 504: RetryError}
    return next((kind for kind, codes in _CODES if codes.search(code)), by_status.get(status, UnknownError))
