"""Amazon EC2: one instance per node, on demand or spot, in one or several regions.

The state of an instance is in its tags, which are set at creation. Listings are eventually consistent: a new instance
may not show for some seconds. A launch therefore lists first, and then uses a client token, with which EC2 creates
nothing twice. An instance terminates itself when its node ends (`user_data.py`), even without the fleet service.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from botocore.exceptions import ClientError

from astraflow.runtime.clock import Clock
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    Capabilities,
    Handle,
    Instance,
    InvalidError,
    LaunchSpec,
    ProviderError,
    Quote,
    RetireResult,
    RetryError,
    State,
)
from maintainer.fleet.providers.ec2.calls import MISMATCH, Ec2Calls, code_of
from maintainer.fleet.providers.ec2.instances import KIND, PREFIX, handle_of, instance_of, state_of, tags_of
from maintainer.fleet.providers.ec2.request import REGION, Ec2Options, region_of, run_request
from maintainer.fleet.providers.launches import check_launch_id, check_same_spec, chosen_type, type_name
from maintainer.fleet.providers.places import LaunchPlaces, ask_all

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

NOTICE_S = 120.0
"""Time between EC2's interruption notice and the interruption. Seconds."""

REGION_S = 15.0
"""Timeout of reading a region's instances, below that of a preflight check. Seconds."""

FoundInstance = tuple[str, Mapping[str, Any]]
"""A region, and an instance there as EC2 describes it."""

_PAGE = 1000
_PRICE_CACHE_S = 300.0


@providers.register(KIND, options=Ec2Options)
class Ec2:
    """EC2 instances with the cluster's tag."""

    def __init__(self, options: Ec2Options, *, clock: Clock, directory: Path) -> None:
        self._options = options
        self._clock = clock
        self._calls = Ec2Calls(
            endpoint_url=options.endpoint_url, profile=options.profile, calls_at_once=options.calls_at_once
        )
        self._places = LaunchPlaces(directory)
        self._launch_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._prices: dict[tuple[str, str], tuple[float, float]] = {}
        """Spot prices by zone and type: time of the query, and US dollars an hour."""

    async def launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        """Searches for the launch in its region, then runs an instance with a client token."""
        region, request = region_of(self._options, spec), run_request(self._options, spec, launch_id)
        lock = self._launch_locks.setdefault(launch_id, asyncio.Lock())
        async with lock:
            await asyncio.to_thread(self._places.remember, launch_id, region)
            regions = await asyncio.to_thread(self._places.of, launch_id)  # the default region may have changed
            instances = await self._instances(launch_id, regions) or (await self._run(region, request, launch_id),)
        check_same_spec(tags_of(instances[0][1]).get(f"{PREFIX}spec"), spec, launch_id)
        return handle_of(*instances[0])

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> RetireResult:
        """Terminates all instances with the launch's tag, also in a region that is no longer configured."""
        regions = await asyncio.to_thread(self._places.of, launch_id) or await self._regions()
        live_instances = [
            (region, description)
            for region, description in await self._instances(launch_id, regions)
            if state_of(description) is not State.GONE
            and (keep is None or handle_of(region, description).id != keep.id)
        ]
        is_terminating = False
        for region in {region for region, _ in live_instances}:
            ids = [
                description["InstanceId"]
                for instance_region, description in live_instances
                if instance_region == region
            ]
            is_terminating |= not await self._calls.call(region, partial(_terminated, ids=ids))
        if is_terminating:
            return RetireResult.TERMINATING
        if keep is None:
            await asyncio.to_thread(self._places.end, launch_id, regions)
        return RetireResult.GONE

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        """Lists all regions by the cluster's tag. Terminated instances remain listed for about an hour."""
        regions = await self._regions()
        answers = await self._answers(regions, {f"tag:{PREFIX}cluster": cluster})
        instances_by_region = {
            region: answer
            if isinstance(answer, ProviderError)
            else [instance_of(region, description) for _, description in answer]
            for region, answer in answers.items()
        }
        return await asyncio.to_thread(self._places.listed, instances_by_region, handles="{}/")

    async def describe(self, handle: Handle) -> Instance:
        """Describes an instance by id; GONE when EC2 does not know it (yet)."""
        region, _, instance_id = handle.id.partition("/")
        if REGION.fullmatch(region):
            for _, description in await self._in_region(region, {"instance-id": instance_id}):
                return instance_of(region, description)
        return Instance(handle=handle, tags=None, state=State.GONE)

    def capabilities(self) -> Capabilities:
        """Returns the capabilities, as configured."""
        options = self._options
        return Capabilities(
            kind=KIND,
            has_spot=True,
            notice_s=NOTICE_S,
            listing_lag_s=options.listing_lag_s,
            launch_delay_s=options.launch_delay_s,
            launches_at_once=options.calls_at_once,
        )

    async def quote(self, spec: LaunchSpec) -> Quote:
        """Returns the configured price; for spot instances EC2's current price, at most the on-demand price."""
        full = chosen_type(self._options.types, spec)
        region = region_of(self._options, spec)
        spot = await self._spot_price(spec, region) if spec.is_spot else None
        if spot is None:
            source = "on demand, as configured" + (": EC2 has no spot price" if spec.is_spot else "")
            return Quote(usd_per_hour=full, launch_delay_s=self._options.launch_delay_s, source=source)
        source = f"EC2's latest spot price in {spec.region or region}"
        return Quote(usd_per_hour=min(spot, full), launch_delay_s=self._options.launch_delay_s, source=source)

    async def close(self) -> None:
        """Closes connections. Instances keep running."""
        self._calls.close()

    async def preflight(self, spec: LaunchSpec) -> str:
        """Checks a launch with a dry run. Raises: ProviderError when it would be refused."""
        region, request = region_of(self._options, spec), run_request(self._options, spec, "preflight")
        del request["ClientToken"]
        try:
            await self._calls.call(region, lambda ec2: ec2.run_instances(**request, DryRun=True))
        except ProviderError as problem:
            if code_of(problem.__cause__) == "DryRunOperation":
                return f"EC2 in {region} would start a {type_name(self._options.types, spec)}"
            raise
        raise InvalidError(
            f"cannot check the launch: EC2 in {region} does not support dry runs; check for a started instance",
            code="provider.no_dry_run",
        )

    async def _run(self, region: str, request: dict[str, Any], launch_id: str) -> tuple[str, Mapping[str, Any]]:
        try:
            response = await self._calls.call(region, lambda ec2: ec2.run_instances(**request))
        except ProviderError as problem:
            if code_of(problem.__cause__) != MISMATCH:
                raise
        else:
            return region, response["Instances"][0]
        # It was launched before, with another join token or expiry, and was not listed yet.
        instances = await self._instances(launch_id, (region,))
        if not instances:
            raise RetryError(
                f"cannot launch {launch_id}: it was launched before, and EC2 does not list it yet; retry",
                code="provider.not_listed_yet",
            )
        return instances[0]

    async def _instances(self, launch_id: str, regions: Iterable[str]) -> Sequence[FoundInstance]:
        """Returns instances of a launch, live ones first, oldest first.

        A launch has one region: once it is found, other regions may be silent.
        """
        check_launch_id(launch_id)
        answers = (await self._answers(regions, {f"tag:{PREFIX}launch-id": launch_id})).values()
        instances = [instance for answer in answers if not isinstance(answer, ProviderError) for instance in answer]
        errors = [answer for answer in answers if isinstance(answer, ProviderError)]
        if errors and not instances:
            raise errors[0]  # the region may have it
        return sorted(
            instances,
            key=lambda instance: (
                state_of(instance[1]) is State.GONE,
                instance[1]["LaunchTime"],
                instance[1]["InstanceId"],
            ),
        )

    async def _regions(self) -> Sequence[str]:
        """Returns the configured regions, and others with launches that have not ended."""
        removed_regions = await asyncio.to_thread(self._places.elsewhere, self._options.regions)
        return (*self._options.regions, *sorted(set(removed_regions.values())))

    async def _answers(
        self, regions: Iterable[str], filters: Mapping[str, str]
    ) -> Mapping[str, Sequence[FoundInstance] | ProviderError]:
        """Returns the instances or the error of each region."""

        async def answer(region: str) -> Sequence[FoundInstance]:
            try:
                async with asyncio.timeout(REGION_S):
                    return await self._in_region(region, filters)
            except TimeoutError:
                raise RetryError(
                    f"cannot list instances in {region}: no answer within {REGION_S:g} s; retry later",
                    code="provider.no_answer",
                ) from None

        return await ask_all(regions, answer)

    async def _in_region(self, region: str, filters: Mapping[str, str]) -> Sequence[FoundInstance]:
        ec2_filters = [{"Name": name, "Values": [value]} for name, value in filters.items()]

        def read(ec2: "EC2Client") -> Sequence[FoundInstance]:
            pages = ec2.get_paginator("describe_instances").paginate(
                Filters=ec2_filters,  # type: ignore[arg-type]  # a dictionary of the right keys
                PaginationConfig={"PageSize": _PAGE},
            )
            return [
                (region, description)
                for page in pages
                for group in page["Reservations"]
                for description in group["Instances"]
            ]

        return await self._calls.call(region, read)

    async def _spot_price(self, spec: LaunchSpec, region: str) -> float | None:
        """Returns the spot price in the zone, or the region's highest, in US dollars an hour; None when unknown."""
        zone_or_region, kind, now = spec.region or region, type_name(self._options.types, spec), self._clock.now()
        read_at, price = self._prices.get((zone_or_region, kind), (-_PRICE_CACHE_S, 0.0))
        if now - read_at < _PRICE_CACHE_S:
            return price
        zone: dict[str, Any] = {"AvailabilityZone": zone_or_region} if zone_or_region != region else {}

        def read(ec2: "EC2Client") -> "Sequence[Any]":
            return ec2.describe_spot_price_history(
                InstanceTypes=[kind],  # type: ignore[list-item]  # one of many literals
                ProductDescriptions=["Linux/UNIX"],
                StartTime=datetime.fromtimestamp(self._clock.wall(), UTC),
                **zone,
            )["SpotPriceHistory"]

        prices = [float(entry["SpotPrice"]) for entry in await self._calls.call(region, read)]
        if not prices:
            return None
        self._prices[zone_or_region, kind] = now, max(prices)
        return max(prices)


def _terminated(ec2: "EC2Client", ids: Sequence[str]) -> bool:
    """Terminates instances; returns whether all have ended already."""
    try:
        answer = ec2.terminate_instances(InstanceIds=ids)
    except ClientError as problem:
        if code_of(problem) == "InvalidInstanceID.NotFound":
            return False  # one has just been forgotten; the next call lists the others
        raise
    return all(instance["CurrentState"]["Name"] == "terminated" for instance in answer["TerminatingInstances"])
