"""What every provider must do, in about 55 cases. To run them on another one: an adapter, which is a `World`.

class TestMyCloud(ProviderSuite):
    @pytest.fixture
    async def world(self, tmp_path) -> AsyncIterator[World]:
        ...
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any, TypeVar

import pytest

from maintainer.fleet.providers.base import (
    Auth,
    Capacity,
    Handle,
    Instance,
    Invalid,
    LaunchSpec,
    NodePlan,
    Provider,
    ProviderError,
    Quota,
    Retired,
    Retry,
    State,
    Tags,
    Unknown,
)

GIVE_UP_S = 40.0

CANARY = "canary-token-that-nobody-may-see"

T = TypeVar("T")

_ordinals = count(1)


def launch_id() -> str:
    """A fresh one, of a ULID's form."""
    return f"01J0000000{next(_ordinals):016d}"


class World(ABC):
    """One account, cluster or machine, as a test sees it from outside."""

    cluster = "tests"

    @abstractmethod
    async def provider(self) -> Provider:
        """Another provider object on this same world, as a restarted fleet service has it. The world closes it."""

    @abstractmethod
    async def lose(self, launch_id: str) -> None:
        """End the instance behind the provider's back, as somebody in the cloud's console would."""

    def spec(self, **changes: Any) -> LaunchSpec:
        """Something that can be launched here."""
        tags = Tags(cluster=self.cluster, pool="eu", run="run-1", expires_at=4_000_000_000.0)
        node = NodePlan(dataflow="127.0.0.1:1", capacity=4)
        return replace(LaunchSpec(tags=tags, node=node, token=CANARY), **changes)

    async def failing(self, error: type[ProviderError]) -> Provider | None:
        """A provider on this world whose next launch fails with `error`; None where this world never does so."""
        return None

    async def duplicate(self, launch_id: str) -> bool:
        """Make a second instance under the same launch id, behind the provider's back; False where there cannot be."""
        return False

    def wrong_spec(self) -> LaunchSpec | None:
        """Something that this world has not; None where it has everything."""
        return None

    def spoken(self) -> str:
        """All that the provider said to the world or wrote down where others can read it, for the search of secrets."""
        return ""

    async def pause(self) -> None:
        """A little time passes."""
        await asyncio.sleep(0.02)


@pytest.mark.anyio
class ProviderSuite:
    """Inherit, and provide the fixture `world`."""

    # Launch

    async def test_a_launch_says_what_it_made(self, world: World) -> None:
        provider, launch = await world.provider(), launch_id()
        handle = await provider.launch(world.spec(), launch)
        assert handle.launch_id == launch
        assert handle.provider == provider.capabilities().kind
        assert handle.id

    async def test_what_was_launched_runs_after_a_while(self, world: World) -> None:
        provider = await world.provider()
        handle = await provider.launch(world.spec(), launch_id())
        instance = await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
        assert instance.handle == handle

    async def test_a_launch_again_starts_nothing_more(self, world: World) -> None:
        provider, launch = await world.provider(), launch_id()
        first = await provider.launch(world.spec(), launch)
        assert await provider.launch(world.spec(), launch) == first
        assert await launches(world, provider) == [launch]

    async def test_a_launch_again_of_what_runs_starts_nothing_more(self, world: World) -> None:
        provider, launch = await world.provider(), launch_id()
        first = await provider.launch(world.spec(), launch)
        await until(world, provider, first, lambda seen: seen.state is State.RUNNING)
        assert await provider.launch(world.spec(), launch) == first
        assert await launches(world, provider) == [launch]

    async def test_a_launch_whose_answer_was_lost_is_found_by_another_process(self, world: World) -> None:
        launch = launch_id()
        first = await (await world.provider()).launch(world.spec(), launch)
        again = await world.provider()
        assert await again.launch(world.spec(), launch) == first
        assert await launches(world, again) == [launch]

    async def test_launches_of_one_id_at_once_start_one(self, world: World) -> None:
        provider, launch = await world.provider(), launch_id()
        handles = await asyncio.gather(*(provider.launch(world.spec(), launch) for _ in range(4)))
        assert len(set(handles)) == 1
        assert await launches(world, provider) == [launch]

    async def test_launches_of_one_id_by_two_processes_at_once_start_one(self, world: World) -> None:
        one, other, launch = await world.provider(), await world.provider(), launch_id()
        handles = await asyncio.gather(one.launch(world.spec(), launch), other.launch(world.spec(), launch))
        assert len(set(handles)) == 1
        assert await launches(world, one) == [launch]

    async def test_launches_at_once_are_all_there(self, world: World) -> None:
        provider, wanted = await world.provider(), sorted(launch_id() for _ in range(6))
        await asyncio.gather(*(provider.launch(world.spec(), launch) for launch in wanted))
        assert await launches(world, provider, wait_for=6) == wanted

    async def test_one_id_with_another_spec_is_refused(self, world: World) -> None:
        provider, launch = await world.provider(), launch_id()
        spec = world.spec()
        await provider.launch(spec, launch)
        with pytest.raises(Invalid, match="another"):
            await provider.launch(replace(spec, tags=replace(spec.tags, pool="us")), launch)
        assert await launches(world, provider) == [launch]

    async def test_a_later_expiry_or_another_token_is_the_same_launch(self, world: World) -> None:
        provider, launch, spec = await world.provider(), launch_id(), world.spec()
        first = await provider.launch(spec, launch)
        later = replace(spec, token="another", tags=replace(spec.tags, expires_at=spec.tags.expires_at + 9))
        assert await provider.launch(later, launch) == first
        assert await launches(world, provider) == [launch]

    async def test_tags_are_there_from_the_first_moment(self, world: World) -> None:
        provider, launch, spec = await world.provider(), launch_id(), world.spec()
        handle = await provider.launch(spec, launch)
        assert (await provider.describe(handle)).tags == spec.tags
        (instance,) = await listed(world, provider)
        assert instance.tags == spec.tags
        assert instance.handle == handle

    async def test_an_instance_is_what_was_asked_for(self, world: World) -> None:
        provider = await world.provider()
        spec = world.spec(is_spot=provider.capabilities().has_spot)
        instance = await provider.describe(await provider.launch(spec, launch_id()))
        assert instance.is_spot == spec.is_spot
        assert spec.type in ("", instance.type)
        assert spec.region in ("", instance.region)

    async def test_an_instance_knows_since_when_it_is_there(self, world: World) -> None:
        provider, before = await world.provider(), time.time()
        instance = await provider.describe(await provider.launch(world.spec(), launch_id()))
        assert before - 60 <= instance.created_at <= time.time() + 60

    async def test_what_it_has_not_is_refused_and_starts_nothing(self, world: World) -> None:
        provider, wrong = await world.provider(), needed(world.wrong_spec(), "this world has everything")
        with pytest.raises(Invalid):
            await provider.launch(wrong, launch_id())
        assert await provider.list(world.cluster) == ()

    @pytest.mark.parametrize("error", [Quota, Capacity, Auth, Invalid])
    async def test_a_refused_launch_starts_nothing(self, world: World, error: type[ProviderError]) -> None:
        failing = needed(await world.failing(error), f"this world never answers {error.__name__}")
        with pytest.raises(error):
            await failing.launch(world.spec(), launch_id())
        assert await launches(world, await world.provider(), wait_for=0) == []

    @pytest.mark.parametrize("error", [Quota, Capacity, Auth, Retry, Unknown])
    async def test_a_failed_launch_may_be_tried_again(self, world: World, error: type[ProviderError]) -> None:
        failing = needed(await world.failing(error), f"this world never answers {error.__name__}")
        launch, healthy = launch_id(), await world.provider()
        with pytest.raises(error):
            await failing.launch(world.spec(), launch)
        handle = await healthy.launch(world.spec(), launch)
        assert handle.launch_id == launch
        assert await launches(world, healthy) == [launch]

    @pytest.mark.parametrize("error", [Quota, Capacity, Auth, Retry, Unknown])
    async def test_an_error_says_something_and_no_secret(self, world: World, error: type[ProviderError]) -> None:
        failing = needed(await world.failing(error), f"this world never answers {error.__name__}")
        with pytest.raises(error) as caught:
            await failing.launch(world.spec(), launch_id())
        assert len(str(caught.value)) > 8
        assert CANARY not in repr(caught.value)

    async def test_the_token_is_nowhere_to_be_read(self, world: World) -> None:
        provider, spec = await world.provider(), world.spec()
        handle = await provider.launch(spec, launch_id())
        await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
        said = [spec, handle, await provider.list(world.cluster), await provider.describe(handle)]
        assert CANARY not in repr(said)
        assert CANARY not in world.spoken()

    # Retire

    async def test_what_is_retired_is_gone_after_a_while(self, world: World) -> None:
        provider, launch = await world.provider(), launch_id()
        handle = await provider.launch(world.spec(), launch)
        await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
        await retire(world, provider, launch)
        assert (await provider.describe(handle)).state is State.GONE

    async def test_what_boots_can_be_retired(self, world: World) -> None:
        provider, launch = await world.provider(), launch_id()
        handle = await provider.launch(world.spec(), launch)
        await retire(world, provider, launch)
        assert (await provider.describe(handle)).state is State.GONE

    async def test_what_is_retired_is_not_alive_any_more(self, world: World) -> None:
        provider, launch = await world.provider(), launch_id()
        handle = await provider.launch(world.spec(), launch)
        await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
        await provider.retire(launch)
        assert (await provider.describe(handle)).state in (State.GOING, State.GONE)

    async def test_retiring_again_changes_nothing(self, world: World) -> None:
        provider, launch = await world.provider(), launch_id()
        await provider.launch(world.spec(), launch)
        await retire(world, provider, launch)
        assert await provider.retire(launch) is Retired.GONE
        assert await provider.retire(launch) is Retired.GONE

    async def test_what_never_was_is_gone(self, world: World) -> None:
        provider = await world.provider()
        assert await provider.retire(launch_id()) is Retired.GONE

    async def test_what_was_lost_can_be_retired(self, world: World) -> None:
        provider, launch = await world.provider(), launch_id()
        handle = await provider.launch(world.spec(), launch)
        await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
        await world.lose(launch)
        await retire(world, provider, launch)

    async def test_another_process_can_retire(self, world: World) -> None:
        launch = launch_id()
        handle = await (await world.provider()).launch(world.spec(), launch)
        other = await world.provider()
        await retire(world, other, launch)
        assert (await other.describe(handle)).state is State.GONE

    async def test_retiring_at_once_is_retiring(self, world: World) -> None:
        provider, launch = await world.provider(), launch_id()
        await provider.launch(world.spec(), launch)
        await asyncio.gather(*(provider.retire(launch) for _ in range(4)))
        await retire(world, provider, launch)

    async def test_retiring_one_leaves_the_others(self, world: World) -> None:
        provider, doomed, other = await world.provider(), launch_id(), launch_id()
        await provider.launch(world.spec(), doomed)
        handle = await provider.launch(world.spec(), other)
        await retire(world, provider, doomed)
        await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
        assert await launches(world, provider) == [other]

    async def test_a_retired_launch_does_not_come_back_by_itself(self, world: World) -> None:
        provider, launch = await world.provider(), launch_id()
        handle = await provider.launch(world.spec(), launch)
        await retire(world, provider, launch)
        for _ in range(5):
            await world.pause()
        assert (await provider.describe(handle)).state is State.GONE

    async def test_retiring_all_but_the_only_one_keeps_it(self, world: World) -> None:
        provider, launch = await world.provider(), launch_id()
        handle = await provider.launch(world.spec(), launch)
        assert await provider.retire(launch, keep=handle) is Retired.GONE
        instance = await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
        assert instance.handle == handle

    async def test_a_duplicate_is_listed_under_its_launch_id(self, world: World) -> None:
        provider, launch = await world.provider(), launch_id()
        await provider.launch(world.spec(), launch)
        need(await world.duplicate(launch), "this world cannot hold two instances of one launch")
        assert await launches(world, provider, wait_for=2) == [launch, launch]

    async def test_of_a_duplicate_the_kept_one_stays(self, world: World) -> None:
        provider, launch = await world.provider(), launch_id()
        handle = await provider.launch(world.spec(), launch)
        need(await world.duplicate(launch), "this world cannot hold two instances of one launch")
        await launches(world, provider, wait_for=2)
        await retire(world, provider, launch, keep=handle)
        (left,) = [seen for seen in await provider.list(world.cluster) if seen.state is not State.GONE]
        assert left.handle == handle

    async def test_retiring_a_duplicated_launch_ends_both(self, world: World) -> None:
        provider, launch = await world.provider(), launch_id()
        await provider.launch(world.spec(), launch)
        need(await world.duplicate(launch), "this world cannot hold two instances of one launch")
        await launches(world, provider, wait_for=2)
        await retire(world, provider, launch)
        assert await launches(world, provider, wait_for=0) == []

    # List and describe

    async def test_nothing_is_listed_where_nothing_was_launched(self, world: World) -> None:
        assert await (await world.provider()).list(world.cluster) == ()

    async def test_other_clusters_are_not_listed(self, world: World) -> None:
        provider, spec, own = await world.provider(), world.spec(), launch_id()
        await provider.launch(replace(spec, tags=replace(spec.tags, cluster="strangers")), launch_id())
        await provider.launch(spec, own)
        assert await launches(world, provider) == [own]
        assert all(
            seen.tags is not None and seen.tags.cluster == world.cluster for seen in await listed(world, provider)
        )

    async def test_another_process_lists_the_same(self, world: World) -> None:
        provider, wanted = await world.provider(), sorted(launch_id() for _ in range(3))
        for launch in wanted:
            await provider.launch(world.spec(), launch)
        assert await launches(world, await world.provider(), wait_for=3) == wanted

    async def test_what_was_lost_is_gone(self, world: World) -> None:
        provider, launch = await world.provider(), launch_id()
        handle = await provider.launch(world.spec(), launch)
        await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
        await world.lose(launch)
        await until(world, provider, handle, lambda seen: seen.state is State.GONE)
        assert await launches(world, provider, wait_for=0) == []

    async def test_what_is_retired_is_not_listed_as_alive(self, world: World) -> None:
        provider, launch = await world.provider(), launch_id()
        await provider.launch(world.spec(), launch)
        await retire(world, provider, launch)
        assert await launches(world, provider, wait_for=0) == []

    async def test_a_description_agrees_with_the_list(self, world: World) -> None:
        provider = await world.provider()
        handle = await provider.launch(world.spec(), launch_id())
        await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
        assert await listed(world, provider) == [await provider.describe(handle)]

    async def test_what_nobody_knows_is_gone(self, world: World) -> None:
        provider = await world.provider()
        stranger = Handle(provider=provider.capabilities().kind, id="nobody-0", launch_id=launch_id())
        assert (await provider.describe(stranger)).state is State.GONE

    async def test_another_process_describes_the_same(self, world: World) -> None:
        provider = await world.provider()
        handle = await provider.launch(world.spec(), launch_id())
        seen = await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
        assert await (await world.provider()).describe(handle) == seen

    async def test_looking_changes_nothing(self, world: World) -> None:
        provider = await world.provider()
        handle = await provider.launch(world.spec(), launch_id())
        await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
        before = await listed(world, provider)
        for _ in range(3):
            await provider.describe(handle)
            assert await listed(world, provider) == before

    # What it says of itself

    async def test_capabilities_are_data(self, world: World) -> None:
        one, other = await world.provider(), await world.provider()
        assert one.capabilities() == one.capabilities() == other.capabilities()
        assert one.capabilities().launches_at_once >= 1
        assert one.capabilities().launch_delay_s > 0

    async def test_a_quote_starts_nothing_and_names_its_source(self, world: World) -> None:
        provider = await world.provider()
        quote = await provider.quote(world.spec())
        assert quote.usd_per_hour >= 0
        assert quote.launch_delay_s > 0
        assert quote.source
        assert await provider.list(world.cluster) == ()

    # Rehearse

    async def test_a_rehearsal_says_something_and_starts_nothing(self, world: World) -> None:
        provider = await world.provider()
        said = await provider.rehearse(world.spec())
        assert len(said) > 8
        assert CANARY not in said
        for _ in range(3):
            await world.pause()
        assert await provider.list(world.cluster) == ()
        assert CANARY not in world.spoken()

    async def test_a_rehearsal_is_none_of_what_can_be_launched_later(self, world: World) -> None:
        provider, launch = await world.provider(), launch_id()
        await provider.rehearse(world.spec())
        await provider.launch(world.spec(), launch)
        await provider.rehearse(world.spec())
        assert await launches(world, provider) == [launch]

    async def test_rehearsals_at_once_are_as_one(self, world: World) -> None:
        provider = await world.provider()
        await asyncio.gather(*(provider.rehearse(world.spec()) for _ in range(4)))
        assert await provider.list(world.cluster) == ()

    async def test_what_it_has_not_is_refused_in_a_rehearsal(self, world: World) -> None:
        wrong = needed(world.wrong_spec(), "this world has everything")
        with pytest.raises(Invalid):
            await (await world.provider()).rehearse(wrong)

    @pytest.mark.parametrize("error", [Quota, Auth, Invalid])
    async def test_a_launch_that_would_be_refused_is_refused_in_a_rehearsal(
        self, world: World, error: type[ProviderError]
    ) -> None:
        failing = needed(await world.failing(error), f"this world never answers {error.__name__}")
        with pytest.raises(error) as caught:
            await failing.rehearse(world.spec())
        assert len(str(caught.value)) > 8
        assert CANARY not in repr(caught.value)
        assert await launches(world, await world.provider(), wait_for=0) == []

    async def test_spot_is_not_dearer(self, world: World) -> None:
        provider = await world.provider()
        need(provider.capabilities().has_spot, "it has no spot machines")
        spot, full = await provider.quote(world.spec(is_spot=True)), await provider.quote(world.spec())
        assert spot.usd_per_hour <= full.usd_per_hour

    async def test_what_it_has_not_has_no_price(self, world: World) -> None:
        wrong = needed(world.wrong_spec(), "this world has everything")
        with pytest.raises(Invalid):
            await (await world.provider()).quote(wrong)

    async def test_instances_outlive_the_provider(self, world: World) -> None:
        provider, launch = await world.provider(), launch_id()
        handle = await provider.launch(world.spec(), launch)
        await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
        await provider.close()
        await world.pause()
        assert (await (await world.provider()).describe(handle)).state is State.RUNNING


async def until(world: World, provider: Provider, handle: Handle, holds: Callable[[Instance], bool]) -> Instance:
    """The instance once something holds for it."""
    deadline = time.monotonic() + GIVE_UP_S
    while not holds(seen := await provider.describe(handle)):
        assert time.monotonic() < deadline, f"it did not come to that within {GIVE_UP_S:.0f} s: {seen}"
        await world.pause()
    return seen


async def retire(world: World, provider: Provider, launch: str, *, keep: Handle | None = None) -> None:
    """Ask for the end until it has come."""
    deadline = time.monotonic() + GIVE_UP_S
    while await provider.retire(launch, keep=keep) is not Retired.GONE:
        assert time.monotonic() < deadline, f"{launch} did not end within {GIVE_UP_S:.0f} s"
        await world.pause()


async def listed(world: World, provider: Provider) -> list[Instance]:
    """What the cluster has, without what is gone."""
    return [seen for seen in await provider.list(world.cluster) if seen.state is not State.GONE]


async def launches(world: World, provider: Provider, *, wait_for: int = 1) -> list[str]:
    """Launch ids of the cluster's living instances, once there are so many of them, and a moment after."""
    deadline = time.monotonic() + GIVE_UP_S
    while len(await listed(world, provider)) != wait_for and time.monotonic() < deadline:
        await world.pause()
    await world.pause()
    return sorted(seen.handle.launch_id for seen in await listed(world, provider))


def need(holds: bool, why: str) -> None:
    """Skip the case where a world has not what it is about."""
    if not holds:
        pytest.skip(why)


def needed(value: T | None, why: str) -> T:
    """The value, or skip the case."""
    if value is None:
        pytest.skip(why)
    return value
