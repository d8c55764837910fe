"""Account, cluster or machine of a provider as its user sees it from outside, and waiting for instances."""

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, TypeVar

import pytest

from maintainer.fleet.providers.base import (
    AuthError,
    CapacityError,
    Handle,
    Instance,
    InvalidError,
    LaunchSpec,
    NodePlan,
    Provider,
    ProviderError,
    QuotaError,
    RetireResult,
    RetryError,
    State,
    Tags,
    UnknownError,
)

GIVE_UP_S = 40.0

ERRORS = {AuthError, CapacityError, InvalidError, QuotaError, RetryError, UnknownError}

SILENT = "http://127.0.0.1:1"
"""Address at which no server answers."""

CANARY = "canary-token-that-must-stay-secret"

T = TypeVar("T")

_ordinals = count(1)


def launch_id() -> str:
    """Returns a new launch id in the form of a ULID."""
    return f"01J0000000{next(_ordinals):016d}"


class ProviderHarness(ABC):
    """One account, cluster or machine, as a test sees it from outside."""

    cluster = "tests"

    @abstractmethod
    async def provider(self) -> Provider:
        """Returns another provider object, as after a restart of the fleet service. The harness closes it."""

    @abstractmethod
    async def lose(self, launch_id: str) -> None:
        """Ends the instance behind the provider's back, as a user in the cloud's console would."""

    def spec(self, **changes: Any) -> LaunchSpec:
        """Returns a spec that can be launched here."""
        tags = Tags(cluster=self.cluster, pool="eu", run="run-1", expires_at=4_000_000_000.0)
        node = NodePlan(dataflow="127.0.0.1:1", capacity=4)
        return replace(LaunchSpec(tags=tags, node=node, token=CANARY), **changes)

    async def failing(self, error: type[ProviderError]) -> Provider | None:
        """Returns a provider whose next launch fails with `error`; None where that cannot happen."""
        return None

    async def duplicate(self, launch_id: str) -> bool:
        """Makes a second instance with one launch id, behind the provider's back; False where that is impossible."""
        return False

    async def at(self, address: str) -> Provider | None:
        """Returns a provider whose service has another address, at which something else answers, or nothing.

        None for a provider that calls no service over HTTP.
        """
        return None

    async def renewable(self) -> Provider | None:
        """Returns a provider with credentials of its own; None where none can expire.

        `expire` makes the service refuse them. `renew` stores new ones where the provider finds its credentials.
        """
        return None

    async def expire(self) -> None:
        """Makes the service refuse the credentials of the provider that `renewable` returned."""
        pytest.fail("a harness with `renewable` needs `expire`")

    async def renew(self) -> None:
        """Stores new credentials, as another program or a person would."""
        pytest.fail("a harness with `renewable` needs `renew`")

    async def two_places(self) -> tuple[Provider, LaunchSpec, LaunchSpec] | None:
        """Returns a provider of two places, such as regions or hosts, and a spec for each; None where it has one."""
        return None

    async def removed_place(self) -> tuple[Provider, Provider, LaunchSpec] | None:
        """Returns a provider before and after a change of its configuration, and a spec for a place before it.

        After the change that place (region, host, namespace, server) is missing. None for a provider without places.
        """
        return None

    async def silence_second(self) -> Provider:
        """Returns a provider of both places of `two_places`, of which the second does not answer."""
        pytest.fail("a harness with `two_places` needs `silence_second`")

    async def preempted(self) -> tuple[Provider, Handle] | None:
        """Launches a spot instance, and lets the service take it back; None where that cannot happen."""
        return None

    def wrong_spec(self) -> LaunchSpec | None:
        """Returns a spec that is not available here; None where every spec is."""
        return None

    def captured_output(self) -> str:
        """Returns everything that the provider sent or wrote to readable places, to search it for secrets."""
        return ""

    async def pause(self) -> None:
        """Lets a little time pass."""
        await asyncio.sleep(0.02)


def every_call(
    provider: Provider, spec: LaunchSpec, launch: str, handle: Handle, *, cluster: str
) -> tuple[Callable[[], Awaitable[object]], ...]:
    """Returns all calls that need the service. launch: new launch id. handle: a living instance."""
    return (
        lambda: provider.list(cluster),
        lambda: provider.describe(handle),
        lambda: provider.retire(handle.launch_id),
        lambda: provider.launch(spec, launch),
        lambda: provider.preflight(spec),
    )


@contextmanager
def serving_login_page() -> Iterator[str]:
    """Serves one page for all requests, as a proxy that wants a login; yields its address."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            page = b"<!doctype html><title>Log in</title>"
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        do_POST = do_DELETE = do_GET  # noqa: N815 (as above)

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


async def until(
    harness: ProviderHarness, provider: Provider, handle: Handle, holds: Callable[[Instance], bool]
) -> Instance:
    """Returns the instance once a condition holds for it."""
    deadline = time.monotonic() + GIVE_UP_S
    while not holds(instance := await provider.describe(handle)):
        assert time.monotonic() < deadline, f"it did not come to that within {GIVE_UP_S:.0f} s: {instance}"
        await harness.pause()
    return instance


async def retire(harness: ProviderHarness, provider: Provider, launch: str, *, keep: Handle | None = None) -> None:
    """Requests termination until the instance has ended."""
    deadline = time.monotonic() + GIVE_UP_S
    while await provider.retire(launch, keep=keep) is not RetireResult.GONE:
        assert time.monotonic() < deadline, f"{launch} did not end within {GIVE_UP_S:.0f} s"
        await harness.pause()


async def listed(harness: ProviderHarness, provider: Provider) -> list[Instance]:
    """Returns the instances of the cluster, without ended ones."""
    return [instance for instance in await provider.list(harness.cluster) if instance.state is not State.GONE]


async def launches(harness: ProviderHarness, provider: Provider, *, wait_for: int = 1) -> list[str]:
    """Returns the launch ids of the cluster's living instances, once there are this many, and a moment later."""
    deadline = time.monotonic() + GIVE_UP_S
    while len(await listed(harness, provider)) != wait_for and time.monotonic() < deadline:
        await harness.pause()
    await harness.pause()
    return sorted(instance.handle.launch_id for instance in await listed(harness, provider))


def need(holds: bool, why: str) -> None:
    """Skips a case that is not applicable to this harness."""
    if not holds:
        pytest.skip(why)


def needed(value: T | None, why: str) -> T:
    """Returns the value, or skips the case."""
    if value is None:
        pytest.skip(why)
    return value
