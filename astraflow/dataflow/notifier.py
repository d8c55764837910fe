"""Notifies waiters when state may have changed."""

import asyncio
from collections.abc import Callable


class Notifier:
    """Notifies the subscribers of a name, or of all names. The cost depends on the subscribers, not on the names.

    >>> notifier = Notifier()
    >>> subscription = notifier.subscribe("node-1")
    >>> notifier.notify("node-2"), subscription.is_notified
    (None, False)
    >>> notifier.notify(), subscription.is_notified
    (None, True)
    """

    def __init__(self) -> None:
        self._events: dict[str, asyncio.Event] = {}
        self._is_stopping = False

    def subscribe(self, name: str) -> "Subscription":
        """Returns a subscription to the next notification: subscribe before reading the state, then wait."""
        event = self._events.setdefault(name, asyncio.Event())
        return Subscription(event, lambda: self._is_stopping)

    def notify(self, name: str | None = None) -> None:
        """Notifies the subscribers of this name; of all names by default."""
        names = list(self._events) if name is None else [name]
        for notified_name in names:
            event = self._events.pop(notified_name, None)
            if event is not None:
                event.set()

    def stop(self) -> None:
        """Ends all waits, current and future, without a notification."""
        self._is_stopping = True
        self.notify()


class Subscription:
    """Subscription to one notification."""

    def __init__(self, event: asyncio.Event, is_stopping: Callable[[], bool]) -> None:
        self._event = event
        self._is_stopping = is_stopping

    @property
    def is_notified(self) -> bool:
        """True once the notification arrived."""
        return self._event.is_set()

    async def wait(self, wait_s: float) -> bool:
        """Returns whether the notification arrives within `wait_s` seconds; False at once when the run stops."""
        if wait_s <= 0 or self._is_stopping():
            return False
        try:
            async with asyncio.timeout(wait_s):
                await self._event.wait()
        except TimeoutError:
            return False
        return not self._is_stopping()
