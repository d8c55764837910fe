"""Open calls and connections of each credential on one listener."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from astraflow.access.callers import Caller, Role
from astraflow.contract.errors import RateLimited
from astraflow.wire.listener_limits import ListenerLimits

_UNLIMITED = (Role.ADMIN, Role.PAGE)
"""Roles of callers that act for many: processes with the run token, and users of the page."""


class OpenCalls:
    """Counts open calls by credential and connection; refuses more than the listener's limits."""

    def __init__(self, limits: ListenerLimits) -> None:
        self._limits = limits
        self._calls: dict[str, Counter[str]] = {}
        """Open calls by holder and connection; holders and connections without any are absent."""

    @contextmanager
    def counting(self, caller: Caller, connection: str) -> Iterator[None]:
        """Counts a call during the block. Raises: RateLimited."""
        if caller.role in _UNLIMITED:
            yield
            return
        calls = self._calls.setdefault(caller.holder, Counter())
        try:
            self._check(caller, calls, connection)
            calls[connection] += 1
            try:
                yield
            finally:
                calls[connection] -= 1
                if not calls[connection]:
                    del calls[connection]
        finally:
            if not calls:
                self._calls.pop(caller.holder, None)

    def _check(self, caller: Caller, calls: Counter[str], connection: str) -> None:
        limits = self._limits
        if calls.total() >= limits.peer_calls:
            raise RateLimited(
                f"cannot call: {caller.role.value} {caller.name!r} has {limits.peer_calls} open calls; wait until some "
                "have ended",
                code="rate_limit.open_calls",
            )
        if connection not in calls and len(calls) >= limits.peer_connections:
            raise RateLimited(
                f"cannot call: {caller.role.value} {caller.name!r} has open calls on {limits.peer_connections} "
                "connections; use one of them",
                code="rate_limit.connections",
            )
