"""Rate limits: a token bucket for each caller and kind of request, refilled over time.

They keep a faulty program from blocking the page for other users. The limits are generous: people and correct scripts
do not reach them.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from starlette.types import Scope

from astraflow.contract.errors import RateLimited
from astraflow.runtime.clock import Clock
from web.accounts.accounts import network_of
from web.accounts.viewer import Viewer
from web.process_settings import Settings

MAX_CALLERS = 10_000
MINUTE_S = 60.0

_FILES = (".csv", ".json", ".ndjson")
_DOCUMENT = "/openapi.json"
_LAUNCHING = ("/runs/new", "/runs/new/preflight", "/api/v1/launches", "/api/v1/launch-preview")
_READING = ("GET", "HEAD", "OPTIONS")


class RequestKind(Enum):
    """Kind of request, by cost."""

    READ = "reads"
    WRITE = "changes"
    HEAVY = "exports and launches"
    STRANGER = "requests without a login"


class RateExceeded(RateLimited):
    """A bucket is empty."""

    def __init__(self, message: str, *, wait_s: int) -> None:
        super().__init__(message, code="request.rate_exceeded")
        self.wait_s = wait_s
        """Time until the next request is allowed, whole seconds as in the Retry-After header."""


class RateLimiter:
    """Token buckets of the process. A bucket holds the requests of one minute, and starts full."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._a_minute = {
            RequestKind.READ: settings.reads_a_minute,
            RequestKind.WRITE: settings.changes_a_minute,
            RequestKind.HEAVY: settings.exports_a_minute,
            RequestKind.STRANGER: settings.anonymous_requests_a_minute,
        }
        self._max_sockets = settings.sockets_a_user
        self._buckets: OrderedDict[tuple[str, RequestKind], tuple[float, float]] = OrderedDict()
        """Remaining tokens and their time, by caller and kind. Least recently used first."""
        self._sockets: Counter[int] = Counter()

    def take(self, scope: Scope, viewer: Viewer | None, *, came_from: str) -> None:
        """Takes one token for the request. Raises: RateExceeded if the bucket is empty."""
        kind = RequestKind.STRANGER if viewer is None else request_kind(scope)
        key = (network_of(came_from) if viewer is None else _caller(viewer), kind)
        limit, now = self._a_minute[kind], self._clock.now()
        left, at = self._buckets.get(key, (float(limit), now))
        left = min(float(limit), left + (now - at) * limit / MINUTE_S)
        is_enough = left >= 1.0
        self._buckets[key] = (left - is_enough, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > MAX_CALLERS:
            self._buckets.popitem(last=False)
        if not is_enough:
            wait_s = max(1, math.ceil((1.0 - left) * MINUTE_S / limit))
            raise RateExceeded(f"more than {limit} {kind.value} in a minute; retry in {wait_s} s", wait_s=wait_s)

    @contextmanager
    def socket(self, viewer: Viewer) -> Iterator[None]:
        """Counts a WebSocket of the user for the duration of the block. Raises: RateExceeded if there are too many."""
        if self._sockets[viewer.user_id] >= self._max_sockets:
            raise RateExceeded(f"{self._max_sockets} live pages are open already; close one", wait_s=int(MINUTE_S))
        self._sockets[viewer.user_id] += 1
        try:
            yield
        finally:
            self._sockets[viewer.user_id] -= 1
            if not self._sockets[viewer.user_id]:
                del self._sockets[viewer.user_id]


def request_kind(scope: Scope) -> RequestKind:
    """Kind of an authenticated request.

    >>> request_kind({"type": "http", "method": "GET", "path": "/audit.csv"}).value
    'exports and launches'
    """
    path: str = scope["path"]
    if scope["type"] == "websocket":
        return RequestKind.READ
    if scope["method"] not in _READING:
        return RequestKind.HEAVY if path in _LAUNCHING else RequestKind.WRITE
    return RequestKind.HEAVY if path.endswith(_FILES) and not path.endswith(_DOCUMENT) else RequestKind.READ


def _caller(viewer: Viewer) -> str:
    """Key of the caller: a session, or a token of a user."""
    return viewer.session or f"{viewer.user_id} {viewer.via}"
