"""Lifecycle of plugins that own processes, connections or indexes."""

from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Protocol, runtime_checkable


@runtime_checkable
class ManagedPlugin(Protocol):
    """A plugin with resources. Its constructor is cheap and acquires nothing, because recipes are checked by building
    their plugins; the owner calls `start` before the first use and `close` at the end."""

    async def start(self) -> None:
        """Acquires the resources, or raises an error that says what is missing."""

    async def close(self) -> None:
        """Releases them. Idempotent; also called after a failed start."""


async def start_managed(plugins: Iterable[object], resources: AsyncExitStack) -> None:
    """Starts those of the plugins that are managed, in order; `resources` closes them in reverse order."""
    for plugin in plugins:
        if isinstance(plugin, ManagedPlugin):
            resources.push_async_callback(plugin.close)
            await plugin.start()
