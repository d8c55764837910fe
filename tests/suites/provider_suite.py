"""Contract tests of every provider, about 70 cases. Another provider needs an adapter, which is a `ProviderHarness`.

class TestMyCloud(ProviderSuite):
    @pytest.fixture
    async def harness(self, tmp_path) -> AsyncIterator[ProviderHarness]:
        ...
"""

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
    is_unread,
    unread_places,
)
from tests.errors import raises_code

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
        raise NotImplementedError

    async def renew(self) -> None:
        """Stores new credentials, as another program or a person would."""
        raise NotImplementedError

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
        raise NotImplementedError

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


@pytest.mark.anyio
class RequestSuite:
    """Refusals, quotes, preflight checks, credentials, places and notices. Fixture to provide: `harness`."""

    # Refusals

    async def test_a_launch_id_with_another_spec_is_refused(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        spec = harness.spec()
        await provider.launch(spec, launch)
        with raises_code(InvalidError, "provider.launch_id_reused", "another"):
            await provider.launch(replace(spec, tags=replace(spec.tags, pool="us")), launch)
        assert await launches(harness, provider) == [launch]

    async def test_unsupported_specs_are_refused_before_any_launch(self, harness: ProviderHarness) -> None:
        provider, wrong = await harness.provider(), needed(harness.wrong_spec(), "this harness has everything")
        with pytest.raises(InvalidError):
            await provider.launch(wrong, launch_id())
        assert await provider.list(harness.cluster) == ()

    @pytest.mark.parametrize("error", [QuotaError, CapacityError, AuthError, RetryError, UnknownError])
    async def test_errors_have_a_message_without_secrets(
        self, harness: ProviderHarness, error: type[ProviderError]
    ) -> None:
        failing = needed(await harness.failing(error), f"this harness never answers {error.__name__}")
        with pytest.raises(error) as caught:
            await failing.launch(harness.spec(), launch_id())
        assert len(str(caught.value)) > 8
        assert CANARY not in repr(caught.value)

    async def test_retiring_an_unknown_launch_returns_gone(self, harness: ProviderHarness) -> None:
        provider = await harness.provider()
        assert await provider.retire(launch_id()) is RetireResult.GONE

    async def test_an_unknown_handle_is_gone(self, harness: ProviderHarness) -> None:
        provider = await harness.provider()
        stranger = Handle(provider=provider.capabilities().kind, id="unknown-0", launch_id=launch_id())
        assert (await provider.describe(stranger)).state is State.GONE

    # Properties

    async def test_capabilities_are_constant(self, harness: ProviderHarness) -> None:
        provider, other = await harness.provider(), await harness.provider()
        assert provider.capabilities() == provider.capabilities() == other.capabilities()
        assert provider.capabilities().launches_at_once >= 1
        assert provider.capabilities().launch_delay_s > 0

    async def test_a_quote_starts_no_instance_and_has_its_source(self, harness: ProviderHarness) -> None:
        provider = await harness.provider()
        quote = await provider.quote(harness.spec())
        assert quote.usd_per_hour >= 0
        assert quote.launch_delay_s > 0
        assert quote.source
        assert await provider.list(harness.cluster) == ()

    # Preflight check

    async def test_a_preflight_has_a_message_and_starts_no_instance(self, harness: ProviderHarness) -> None:
        provider = await harness.provider()
        message = await provider.preflight(harness.spec())
        assert len(message) > 8
        assert CANARY not in message
        for _ in range(3):
            await harness.pause()
        assert await provider.list(harness.cluster) == ()
        assert CANARY not in harness.captured_output()

    async def test_a_preflight_does_not_affect_later_launches(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        await provider.preflight(harness.spec())
        await provider.launch(harness.spec(), launch)
        await provider.preflight(harness.spec())
        assert await launches(harness, provider) == [launch]

    async def test_concurrent_preflights_start_no_instance(self, harness: ProviderHarness) -> None:
        provider = await harness.provider()
        await asyncio.gather(*(provider.preflight(harness.spec()) for _ in range(4)))
        assert await provider.list(harness.cluster) == ()

    async def test_unsupported_specs_are_refused_by_the_preflight(self, harness: ProviderHarness) -> None:
        wrong = needed(harness.wrong_spec(), "this harness has everything")
        with pytest.raises(InvalidError):
            await (await harness.provider()).preflight(wrong)

    @pytest.mark.parametrize("error", [QuotaError, AuthError, InvalidError])
    async def test_a_refused_launch_is_refused_by_the_preflight(
        self, harness: ProviderHarness, error: type[ProviderError]
    ) -> None:
        failing = needed(await harness.failing(error), f"this harness never answers {error.__name__}")
        with pytest.raises(error) as caught:
            await failing.preflight(harness.spec())
        assert len(str(caught.value)) > 8
        assert CANARY not in repr(caught.value)
        assert await launches(harness, await harness.provider(), wait_for=0) == []

    async def test_spot_instances_cost_no_more_than_on_demand(self, harness: ProviderHarness) -> None:
        provider = await harness.provider()
        need(provider.capabilities().has_spot, "it has no spot machines")
        spot, full = await provider.quote(harness.spec(is_spot=True)), await provider.quote(harness.spec())
        assert spot.usd_per_hour <= full.usd_per_hour

    async def test_unsupported_specs_have_no_quote(self, harness: ProviderHarness) -> None:
        wrong = needed(harness.wrong_spec(), "this harness has everything")
        with pytest.raises(InvalidError):
            await (await harness.provider()).quote(wrong)

    # Credentials

    async def test_refused_credentials_are_an_auth_error_and_new_ones_need_no_restart(
        self, harness: ProviderHarness
    ) -> None:
        provider = needed(await harness.renewable(), "its credentials do not expire")
        launch, other = launch_id(), launch_id()
        handle = await provider.launch(harness.spec(), launch)
        await harness.expire()
        for call in every_call(provider, harness.spec(), other, handle, cluster=harness.cluster):
            with pytest.raises(AuthError):
                await call()
        await harness.renew()
        assert [instance.handle for instance in await listed(harness, provider)] == [handle]
        await provider.launch(harness.spec(), other)
        await retire(harness, provider, launch)
        assert await launches(harness, provider) == [other]

    async def test_credentials_renewed_before_a_call_fail_no_call(self, harness: ProviderHarness) -> None:
        provider, launch = needed(await harness.renewable(), "its credentials do not expire"), launch_id()
        assert await provider.list(harness.cluster) == ()
        await harness.expire()
        await harness.renew()
        await provider.launch(harness.spec(), launch)
        assert await launches(harness, provider) == [launch]

    # Answers that are missing, foreign or partial

    @pytest.mark.parametrize("is_foreign", [False, True])
    async def test_a_service_that_does_not_answer_is_not_an_empty_one(
        self, harness: ProviderHarness, is_foreign: bool
    ) -> None:
        known, launch = await harness.provider(), launch_id()
        handle = await known.launch(harness.spec(), launch)
        with serving_login_page() as address:
            provider = needed(await harness.at(address if is_foreign else SILENT), "it calls no service over HTTP")
            for call in every_call(provider, harness.spec(), launch_id(), handle, cluster=harness.cluster):
                with pytest.raises(ProviderError) as caught:
                    await call()
                assert type(caught.value) in ERRORS
        assert await launches(harness, known) == [launch]

    async def test_a_silent_place_makes_the_list_partial(self, harness: ProviderHarness) -> None:
        provider, first, second = needed(await harness.two_places(), "it has one place")
        here, there = await provider.launch(first, launch_id()), await provider.launch(second, launch_id())
        assert unread_places(await provider.list(harness.cluster)) == {}
        partial_list = await (await harness.silence_second()).list(harness.cluster)
        assert [instance.handle for instance in partial_list] == [here]
        unread = unread_places(partial_list)
        assert is_unread(unread, handle=there.id, launch_id=there.launch_id)
        assert not is_unread(unread, handle=here.id, launch_id=here.launch_id)
        assert {type(problem) for problem in unread.values()} <= ERRORS

    async def test_a_silent_place_delays_no_termination_in_another(self, harness: ProviderHarness) -> None:
        provider, first, second = needed(await harness.two_places(), "it has one place")
        here, there = await provider.launch(first, launch_id()), await provider.launch(second, launch_id())
        provider = await harness.silence_second()
        await retire(harness, provider, here.launch_id)
        assert (await provider.describe(here)).state is State.GONE
        for call in (provider.retire(there.launch_id), provider.describe(there)):
            with pytest.raises(ProviderError):
                await call

    # Places that are no longer configured

    async def test_an_instance_in_a_removed_place_is_not_gone(self, harness: ProviderHarness) -> None:
        before, after, spec = needed(await harness.removed_place(), "it has no place")
        handle = await before.launch(spec, launch_id())
        await until(harness, before, handle, lambda instance: instance.state is State.RUNNING)
        instances = await after.list(harness.cluster)
        is_unknown = is_unread(unread_places(instances), handle=handle.id, launch_id=handle.launch_id)
        assert is_unknown or handle in [instance.handle for instance in instances]
        try:
            assert (await after.describe(handle)).state is not State.GONE
            await retire(harness, after, handle.launch_id)
        except ProviderError as problem:
            assert problem.code == "provider.place_removed"
            with pytest.raises(InvalidError):
                await after.retire(handle.launch_id)
            assert (await before.describe(handle)).state is State.RUNNING
        else:
            assert (await before.describe(handle)).state is State.GONE

    async def test_a_place_without_instances_can_be_removed(self, harness: ProviderHarness) -> None:
        before, after, spec = needed(await harness.removed_place(), "it has no place")
        handle = await before.launch(spec, launch_id())
        await retire(harness, before, handle.launch_id)
        assert unread_places(await after.list(harness.cluster)) == {}
        assert await after.retire(handle.launch_id) is RetireResult.GONE

    # Preemption

    async def test_a_preempted_instance_has_a_notice(self, harness: ProviderHarness) -> None:
        provider, handle = needed(await harness.preempted(), "it preempts nothing")
        instance = await until(harness, provider, handle, lambda instance: instance.notice_at is not None)
        assert instance.state in (State.TERMINATING, State.STUCK, State.GONE)
        assert instance.is_spot

    async def test_a_retired_instance_has_no_notice(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        is_spot = provider.capabilities().has_spot
        handle = await provider.launch(harness.spec(is_spot=is_spot), launch)
        await retire(harness, provider, launch)
        assert (await provider.describe(handle)).notice_at is None


@pytest.mark.anyio
class LifecycleSuite:
    """Instances that are launched, listed, described and retired. Fixture to provide: `harness`."""

    # Launch

    async def test_a_launch_returns_the_handle_of_its_instance(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        handle = await provider.launch(harness.spec(), launch)
        assert handle.launch_id == launch
        assert handle.provider == provider.capabilities().kind
        assert handle.id

    async def test_a_launched_instance_becomes_running(self, harness: ProviderHarness) -> None:
        provider = await harness.provider()
        handle = await provider.launch(harness.spec(), launch_id())
        instance = await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
        assert instance.handle == handle

    async def test_a_repeated_launch_starts_no_second_instance(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        first = await provider.launch(harness.spec(), launch)
        assert await provider.launch(harness.spec(), launch) == first
        assert await launches(harness, provider) == [launch]

    async def test_a_repeated_launch_of_a_running_instance_starts_no_second_one(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        first = await provider.launch(harness.spec(), launch)
        await until(harness, provider, first, lambda instance: instance.state is State.RUNNING)
        assert await provider.launch(harness.spec(), launch) == first
        assert await launches(harness, provider) == [launch]

    async def test_a_launch_whose_answer_was_lost_is_found_by_another_process(self, harness: ProviderHarness) -> None:
        launch = launch_id()
        first = await (await harness.provider()).launch(harness.spec(), launch)
        again = await harness.provider()
        assert await again.launch(harness.spec(), launch) == first
        assert await launches(harness, again) == [launch]

    async def test_concurrent_launches_of_one_id_start_one_instance(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        handles = await asyncio.gather(*(provider.launch(harness.spec(), launch) for _ in range(4)))
        assert len(set(handles)) == 1
        assert await launches(harness, provider) == [launch]

    async def test_concurrent_launches_of_one_id_by_two_processes_start_one_instance(
        self, harness: ProviderHarness
    ) -> None:
        provider, other, launch = await harness.provider(), await harness.provider(), launch_id()
        handles = await asyncio.gather(provider.launch(harness.spec(), launch), other.launch(harness.spec(), launch))
        assert len(set(handles)) == 1
        assert await launches(harness, provider) == [launch]

    async def test_concurrent_launches_are_all_listed(self, harness: ProviderHarness) -> None:
        provider, wanted = await harness.provider(), sorted(launch_id() for _ in range(6))
        await asyncio.gather(*(provider.launch(harness.spec(), launch) for launch in wanted))
        assert await launches(harness, provider, wait_for=6) == wanted

    async def test_a_later_expiry_or_another_token_is_the_same_launch(self, harness: ProviderHarness) -> None:
        provider, launch, spec = await harness.provider(), launch_id(), harness.spec()
        first = await provider.launch(spec, launch)
        later = replace(spec, token="another", tags=replace(spec.tags, expires_at=spec.tags.expires_at + 9))
        assert await provider.launch(later, launch) == first
        assert await launches(harness, provider) == [launch]

    async def test_tags_are_set_at_the_launch(self, harness: ProviderHarness) -> None:
        provider, launch, spec = await harness.provider(), launch_id(), harness.spec()
        handle = await provider.launch(spec, launch)
        assert (await provider.describe(handle)).tags == spec.tags
        (instance,) = await listed(harness, provider)
        assert instance.tags == spec.tags
        assert instance.handle == handle

    async def test_an_instance_matches_its_spec(self, harness: ProviderHarness) -> None:
        provider = await harness.provider()
        spec = harness.spec(is_spot=provider.capabilities().has_spot)
        instance = await provider.describe(await provider.launch(spec, launch_id()))
        assert instance.is_spot == spec.is_spot
        assert spec.type in ("", instance.type)
        assert spec.region in ("", instance.region)

    async def test_an_instance_has_its_creation_time(self, harness: ProviderHarness) -> None:
        provider, before = await harness.provider(), time.time()
        instance = await provider.describe(await provider.launch(harness.spec(), launch_id()))
        assert before - 60 <= instance.created_at <= time.time() + 60

    @pytest.mark.parametrize("error", [QuotaError, CapacityError, AuthError, InvalidError])
    async def test_a_refused_launch_starts_nothing(self, harness: ProviderHarness, error: type[ProviderError]) -> None:
        failing = needed(await harness.failing(error), f"this harness never answers {error.__name__}")
        with pytest.raises(error):
            await failing.launch(harness.spec(), launch_id())
        assert await launches(harness, await harness.provider(), wait_for=0) == []

    @pytest.mark.parametrize("error", [QuotaError, CapacityError, AuthError, RetryError, UnknownError])
    async def test_a_failed_launch_can_be_repeated(self, harness: ProviderHarness, error: type[ProviderError]) -> None:
        failing = needed(await harness.failing(error), f"this harness never answers {error.__name__}")
        launch, healthy = launch_id(), await harness.provider()
        with pytest.raises(error):
            await failing.launch(harness.spec(), launch)
        handle = await healthy.launch(harness.spec(), launch)
        assert handle.launch_id == launch
        assert await launches(harness, healthy) == [launch]

    async def test_the_token_is_in_no_output(self, harness: ProviderHarness) -> None:
        provider, spec = await harness.provider(), harness.spec()
        handle = await provider.launch(spec, launch_id())
        await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
        outputs = [spec, handle, await provider.list(harness.cluster), await provider.describe(handle)]
        assert CANARY not in repr(outputs)
        assert CANARY not in harness.captured_output()

    # Retire

    async def test_a_retired_instance_is_gone_after_its_end(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        handle = await provider.launch(harness.spec(), launch)
        await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
        await retire(harness, provider, launch)
        assert (await provider.describe(handle)).state is State.GONE

    async def test_a_booting_instance_can_be_retired(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        handle = await provider.launch(harness.spec(), launch)
        await retire(harness, provider, launch)
        assert (await provider.describe(handle)).state is State.GONE

    async def test_a_retired_instance_is_terminating_or_gone(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        handle = await provider.launch(harness.spec(), launch)
        await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
        await provider.retire(launch)
        assert (await provider.describe(handle)).state in (State.TERMINATING, State.GONE)

    async def test_retiring_is_idempotent(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        await provider.launch(harness.spec(), launch)
        await retire(harness, provider, launch)
        assert await provider.retire(launch) is RetireResult.GONE
        assert await provider.retire(launch) is RetireResult.GONE

    async def test_a_lost_instance_can_be_retired(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        handle = await provider.launch(harness.spec(), launch)
        await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
        await harness.lose(launch)
        await retire(harness, provider, launch)
        assert (await provider.describe(handle)).state is State.GONE

    async def test_another_process_can_retire_an_instance(self, harness: ProviderHarness) -> None:
        launch = launch_id()
        handle = await (await harness.provider()).launch(harness.spec(), launch)
        other = await harness.provider()
        await retire(harness, other, launch)
        assert (await other.describe(handle)).state is State.GONE

    async def test_concurrent_retires_end_the_instance(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        handle = await provider.launch(harness.spec(), launch)
        await asyncio.gather(*(provider.retire(launch) for _ in range(4)))
        await retire(harness, provider, launch)
        assert (await provider.describe(handle)).state is State.GONE

    async def test_retiring_one_instance_keeps_the_others(self, harness: ProviderHarness) -> None:
        provider, doomed, other = await harness.provider(), launch_id(), launch_id()
        await provider.launch(harness.spec(), doomed)
        handle = await provider.launch(harness.spec(), other)
        await retire(harness, provider, doomed)
        await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
        assert await launches(harness, provider) == [other]

    async def test_a_retired_launch_is_not_restarted(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        handle = await provider.launch(harness.spec(), launch)
        await retire(harness, provider, launch)
        for _ in range(5):
            await harness.pause()
        assert (await provider.describe(handle)).state is State.GONE

    async def test_retiring_duplicates_keeps_a_single_instance(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        handle = await provider.launch(harness.spec(), launch)
        assert await provider.retire(launch, keep=handle) is RetireResult.GONE
        instance = await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
        assert instance.handle == handle

    async def test_a_duplicate_is_listed_under_its_launch_id(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        await provider.launch(harness.spec(), launch)
        need(await harness.duplicate(launch), "this harness cannot hold two instances of one launch")
        assert await launches(harness, provider, wait_for=2) == [launch, launch]

    async def test_retiring_duplicates_keeps_the_given_instance(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        handle = await provider.launch(harness.spec(), launch)
        need(await harness.duplicate(launch), "this harness cannot hold two instances of one launch")
        await launches(harness, provider, wait_for=2)
        await retire(harness, provider, launch, keep=handle)
        (left,) = [instance for instance in await provider.list(harness.cluster) if instance.state is not State.GONE]
        assert left.handle == handle

    async def test_retiring_a_duplicated_launch_ends_both(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        await provider.launch(harness.spec(), launch)
        need(await harness.duplicate(launch), "this harness cannot hold two instances of one launch")
        await launches(harness, provider, wait_for=2)
        await retire(harness, provider, launch)
        assert await launches(harness, provider, wait_for=0) == []

    # List and describe

    async def test_the_list_is_empty_before_any_launch(self, harness: ProviderHarness) -> None:
        assert await (await harness.provider()).list(harness.cluster) == ()

    async def test_other_clusters_are_not_listed(self, harness: ProviderHarness) -> None:
        provider, spec, own = await harness.provider(), harness.spec(), launch_id()
        await provider.launch(replace(spec, tags=replace(spec.tags, cluster="strangers")), launch_id())
        await provider.launch(spec, own)
        assert await launches(harness, provider) == [own]
        assert all(
            instance.tags is not None and instance.tags.cluster == harness.cluster
            for instance in await listed(harness, provider)
        )

    async def test_another_process_lists_the_same_instances(self, harness: ProviderHarness) -> None:
        provider, wanted = await harness.provider(), sorted(launch_id() for _ in range(3))
        for launch in wanted:
            await provider.launch(harness.spec(), launch)
        assert await launches(harness, await harness.provider(), wait_for=3) == wanted

    async def test_a_lost_instance_is_gone(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        handle = await provider.launch(harness.spec(), launch)
        await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
        await harness.lose(launch)
        await until(harness, provider, handle, lambda instance: instance.state is State.GONE)
        assert await launches(harness, provider, wait_for=0) == []

    async def test_a_retired_instance_is_not_listed_as_alive(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        await provider.launch(harness.spec(), launch)
        await retire(harness, provider, launch)
        assert await launches(harness, provider, wait_for=0) == []

    async def test_a_description_equals_the_list_entry(self, harness: ProviderHarness) -> None:
        provider = await harness.provider()
        handle = await provider.launch(harness.spec(), launch_id())
        await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
        assert await listed(harness, provider) == [await provider.describe(handle)]

    async def test_another_process_describes_the_same_instance(self, harness: ProviderHarness) -> None:
        provider = await harness.provider()
        handle = await provider.launch(harness.spec(), launch_id())
        instance = await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
        assert await (await harness.provider()).describe(handle) == instance

    async def test_listing_and_describing_change_nothing(self, harness: ProviderHarness) -> None:
        provider = await harness.provider()
        handle = await provider.launch(harness.spec(), launch_id())
        await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
        before = await listed(harness, provider)
        for _ in range(3):
            await provider.describe(handle)
            assert await listed(harness, provider) == before

    async def test_instances_survive_the_provider_process(self, harness: ProviderHarness) -> None:
        provider, launch = await harness.provider(), launch_id()
        handle = await provider.launch(harness.spec(), launch)
        await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
        await provider.close()
        await harness.pause()
        assert (await (await harness.provider()).describe(handle)).state is State.RUNNING


class ProviderSuite(RequestSuite, LifecycleSuite):
    """All tests, to inherit. Fixture to provide: `harness`."""


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
