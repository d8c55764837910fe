"""How much one caller may ask: a bucket of tokens for each caller and kind of request, filled as time goes by.

It keeps a program that has gone wrong from taking the page away from everybody else. The bounds are generous: people
and scripts that work as meant do not meet them.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from starlette.types import Scope

from astraflow.contract.errors import RateLimited
from astraflow.runtime.clock import Clock
from web.accounts.attempts import network_of
from web.accounts.viewer import Viewer
from web.settings import Settings

KNOWN_CALLERS = 10_000
MINUTE_S = 60.0

_FILES = (".csv", ".json", ".ndjson")
_DOCUMENT = "/openapi.json"
_LAUNCHING = ("/runs/new", "/runs/new/rehearsal", "/api/v1/launches", "/api/v1/launch-preview")
_READING = ("GET", "HEAD", "OPTIONS")


class Kind(Enum):
    """What a request costs."""

    READ = "reads"
    WRITE = "changes"
    HEAVY = "exports and launches"
    STRANGER = "requests without a login"


class TooMuch(RateLimited):
    """A bucket is empty."""

    def __init__(self, message: str, *, wait_s: int) -> None:
        super().__init__(message)
        self.wait_s = wait_s
        """Until one request fits again: whole seconds, as the header has them."""


class Limits:
    """The buckets of the process. A bucket holds what is allowed in a minute, and begins full."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._a_minute = {
            Kind.READ: settings.reads_a_minute,
            Kind.WRITE: settings.changes_a_minute,
            Kind.HEAVY: settings.exports_a_minute,
            Kind.STRANGER: settings.strangers_a_minute,
        }
        self._most_sockets = settings.sockets_a_user
        self._buckets: OrderedDict[tuple[str, Kind], tuple[float, float]] = OrderedDict()
        """Caller and kind -> tokens that were left, and when. The one that was used longest ago is first."""
        self._sockets: Counter[int] = Counter()

    def take(self, scope: Scope, viewer: Viewer | None, *, came_from: str) -> None:
        """Take one request's token. Raises: TooMuch when there is none."""
        kind = Kind.STRANGER if viewer is None else kind_of(scope)
        key = (network_of(came_from) if viewer is None else _caller(viewer), kind)
        most, now = self._a_minute[kind], self._clock.now()
        left, at = self._buckets.get(key, (float(most), now))
        left = min(float(most), left + (now - at) * most / MINUTE_S)
        is_enough = left >= 1.0
        self._buckets[key] = (left - is_enough, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > KNOWN_CALLERS:
            self._buckets.popitem(last=False)
        if not is_enough:
            wait_s = max(1, math.ceil((1.0 - left) * MINUTE_S / most))
            raise TooMuch(f"more than {most} {kind.value} in a minute: ask again in {wait_s} s", wait_s=wait_s)

    @contextmanager
    def socket(self, viewer: Viewer) -> Iterator[None]:
        """A WebSocket of this user, open as long as the block. Raises: TooMuch when there are too many."""
        if self._sockets[viewer.user_id] >= self._most_sockets:
            raise TooMuch(f"{self._most_sockets} live pages are open already: close one", wait_s=int(MINUTE_S))
        self._sockets[viewer.user_id] += 1
        try:
            yield
        finally:
            self._sockets[viewer.user_id] -= 1
            if not self._sockets[viewer.user_id]:
                del self._sockets[viewer.user_id]


def kind_of(scope: Scope) -> Kind:
    """What a request of somebody who is logged in costs.

    >>> kind_of({"type": "http", "method": "GET", "path": "/audit.csv"}).value
    'exports and launches'
    """
    path: str = scope["path"]
    if scope["type"] == "websocket":
        return Kind.READ
    if scope["method"] not in _READING:
        return Kind.HEAVY if path in _LAUNCHING else Kind.WRITE
    return Kind.HEAVY if path.endswith(_FILES) and not path.endswith(_DOCUMENT) else Kind.READ


def _caller(viewer: Viewer) -> str:
    """A session, or a token of a user."""
    return viewer.session or f"{viewer.user_id} {viewer.via}"
