"""One thread that computes for all tenants, a pass at a time, so that their tokens are in proportion to their shares.

    submit ─► queue of a model or sampler ─► advance, one pass ─► ... ─► settled in the event loop

Of the tenants with work, the one with the fewest tokens by its share computes next; its queues take turns. A tenant
that begins to work has as many as the one with the fewest, so idle time gives no advantage.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


class Work(Protocol):
    """Work that is divided into passes."""

    def advance(self) -> tuple[int, bool]:
        """Computes one pass; returns its cost in tokens, and whether the work is complete. Raises nothing."""


@dataclass(slots=True, kw_only=True)
class _Tenant:
    share: float
    used: float = 0.0
    """Tokens by share, since the server began."""
    queues: dict[str, deque[Work]] = field(default_factory=dict)
    """Work by model or sampler, in order; the first queue computes next."""


class Executor:
    """Thread that computes."""

    def __init__(self, shares: Mapping[str, float], *, on_start: Callable[[], None]) -> None:
        """on_start: called in the thread before the first work."""
        self._tenants = {name: _Tenant(share=share) for name, share in shares.items()}
        self._on_start = on_start
        self._wake = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="tinker", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread after the pass that it computes; the rest of the work stays undone."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, tenant: str, queue: str, work: Work) -> None:
        """Queues work behind that of the same queue. From any thread."""
        with self._wake:
            self._begin(tenant)
            self._tenants[tenant].queues.setdefault(queue, deque()).append(work)
            self._wake.notify()

    def _begin(self, name: str) -> None:
        tenant = self._tenants[name]
        others = [other.used for other in self._tenants.values() if other.queues]
        if not tenant.queues and others:
            tenant.used = max(tenant.used, min(others))

    def _run(self) -> None:
        self._on_start()
        while (chosen := self._next()) is not None:
            tenant, queue, work = chosen
            cost, is_complete = work.advance()
            with self._wake:
                tenant.used += cost / tenant.share
                waiting = tenant.queues.pop(queue)
                if is_complete:
                    waiting.popleft()
                if waiting:
                    tenant.queues[queue] = waiting  # now the last

    def _next(self) -> tuple[_Tenant, str, Work] | None:
        """Waits for work; returns None when the executor closes."""
        with self._wake:
            self._wake.wait_for(lambda: self._is_closing or any(t.queues for t in self._tenants.values()))
            if self._is_closing:
                return None
            tenant = min((t for t in self._tenants.values() if t.queues), key=lambda t: t.used)
            queue = next(iter(tenant.queues))
            return tenant, queue, tenant.queues[queue][0]
