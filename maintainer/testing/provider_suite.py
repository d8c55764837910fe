"""Contract tests of every provider, about 70 cases. Another provider needs an adapter, which is a `ProviderHarness`.

class TestMyCloud(ProviderSuite):
    @pytest.fixture
    async def harness(self, tmp_path) -> AsyncIterator[ProviderHarness]:
        ...
"""

import asyncio
import time
from dataclasses import replace

import pytest

from maintainer.fleet.providers.base import (
    AuthError,
    CapacityError,
    InvalidError,
    ProviderError,
    QuotaError,
    RetireResult,
    RetryError,
    State,
    UnknownError,
)
from maintainer.testing.provider_harness import (
    CANARY,
    ProviderHarness,
    launch_id,
    launches,
    listed,
    need,
    needed,
    retire,
    until,
)
from maintainer.testing.provider_requests import RequestSuite


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
