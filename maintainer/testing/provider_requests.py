"""Suite of a provider's answers: most of its cases start no instance that runs for long."""

import asyncio
from dataclasses import replace

import pytest

from maintainer.fleet.providers.base import (
    AuthError,
    CapacityError,
    Handle,
    InvalidError,
    ProviderError,
    QuotaError,
    RetireResult,
    RetryError,
    State,
    UnknownError,
    is_unread,
    unread_places,
)
from maintainer.testing.provider_harness import (
    CANARY,
    ERRORS,
    SILENT,
    ProviderHarness,
    every_call,
    launch_id,
    launches,
    listed,
    need,
    needed,
    retire,
    serving_login_page,
    until,
)
from tests.errors import raises_code


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
