"""Amazon EC2: one instance per node, on demand or spot, in one or several regions.

The state of an instance is in its tags, which are set at creation. Listings are eventually consistent: a new instance
may not show for some seconds. A launch therefore lists first, and then uses a client token, with which EC2 creates
nothing twice. An instance terminates itself when its node ends (`user_data.py`), even without the fleet service.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from botocore.exceptions import ClientError
from pydantic import Field, model_validator

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import Clock
from astraflow.runtime.config.base import Config, suggest_name
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    Capabilities,
    Handle,
    Instance,
    Invalid,
    LaunchSpec,
    ProviderError,
    Quote,
    RetireResult,
    Retry,
    State,
    fingerprint,
    join_arguments,
)
from maintainer.fleet.providers.ec2.calls import MISMATCH, Ec2Calls, code_of
from maintainer.fleet.providers.ec2.instances import KIND, PREFIX, handle_of, instance_of, state_of, tags_for, tags_of
from maintainer.fleet.providers.ec2.user_data import BootOptions, boot_script
from maintainer.fleet.providers.places import LaunchPlaces

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

METADATA = "http://169.254.169.254/latest"
"""Instance metadata service, which only the instance can read."""

NOTICE_S = 120.0
"""Time between EC2's interruption notice and the interruption. Seconds."""

MAX_USER_DATA_BYTES = 16_384

REGION_S = 15.0
"""Timeout of reading a region's instances, below that of a preflight check. Seconds."""

FoundInstance = tuple[str, Mapping[str, Any]]
"""A region, and an instance there as EC2 describes it."""

_LAUNCH_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
_REGION = re.compile(r"([a-z]{2}(?:-[a-z]+)+-\d+)([a-z]?)")
_PAGE = 1000
_PRICE_CACHE_S = 300.0


class MachineOptions(Config):
    """Launch parameters of instances. A pool's `options` override them."""

    launch_template: str = ""
    """Id (`lt-...`) or name of a launch template; other options here take precedence over it."""
    launch_template_version: str = "$Default"
    """Version of the launch template: `$Default`, `$Latest` or a number."""
    image_id: str = ""
    """AMI; required without a launch template."""
    subnet_id: str = ""
    """Subnet; the region's default when empty."""
    security_group_ids: tuple[str, ...] = ()
    """Security groups. Nodes need outgoing connections only."""
    instance_profile: str = ""
    """Name of the instance profile; nodes need none."""


class Ec2Options(Config):
    """Account, regions, instance types, and the boot process of nodes."""

    regions: tuple[str, ...] = Field(min_length=1)
    """Regions in use, as in `eu-west-1`; the first is the default. A pool's `region` may also be a zone of one."""
    types: dict[str, float] = Field(min_length=1)
    """On-demand price in US dollars an hour of each allowed instance type, from your price list; the first is the
    default."""
    machine: MachineOptions = MachineOptions()
    """Launch parameters, unless overridden by a pool's `options`."""
    boot: BootOptions
    """Boot process of nodes."""
    profile: str = ""
    """Profile of the AWS configuration; credentials of the environment when empty."""
    endpoint_url: str = ""
    """Endpoint of another service with EC2's protocol; AWS when empty."""
    listing_lag_s: float = Field(default=60.0, ge=0)
    """Maximum time until a launched instance is listed, usually a second or two. Seconds."""
    launch_delay_s: float = Field(default=120.0, gt=0)
    """Estimated time from launch to a ready node, until it is measured. Seconds."""
    calls_at_once: int = Field(default=8, ge=1, le=64)
    """Maximum number of concurrent calls in each region."""

    @model_validator(mode="after")
    def _has_machines(self) -> "Ec2Options":
        for region in self.regions:
            match = _REGION.fullmatch(region)
            if match is None or match[2]:
                raise ValueError(f"cannot use regions: {region!r} is no region; write it like eu-west-1")
        if any(price < 0 for price in self.types.values()):
            raise ValueError("cannot use types: a price is negative; use 0 or more")
        return self


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
        region, request = self._region(spec), self._request(spec, launch_id)
        lock = self._launch_locks.setdefault(launch_id, asyncio.Lock())
        async with lock:
            await asyncio.to_thread(self._places.remember, launch_id, region)
            regions = await asyncio.to_thread(self._places.of, launch_id)  # the default region may have changed
            instances = await self._instances(launch_id, regions) or (await self._run(region, request, launch_id),)
        spec_fingerprint = tags_of(instances[0][1]).get(f"{PREFIX}spec")
        if spec_fingerprint != fingerprint(spec):
            raise Invalid(
                f"cannot launch {launch_id}: the launch id was used with another spec; use a new launch id",
                code="provider.launch_id_reused",
            )
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
        if _REGION.fullmatch(region):
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
        full = self._options.types[self._type(spec)]
        region = self._region(spec)
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
        region, request = self._region(spec), self._request(spec, "preflight")
        del request["ClientToken"]
        try:
            await self._calls.call(region, lambda ec2: ec2.run_instances(**request, DryRun=True))
        except ProviderError as problem:
            if code_of(problem.__cause__) == "DryRunOperation":
                return f"EC2 in {region} would start a {self._type(spec)}"
            raise
        raise Invalid(
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
            raise Retry(
                f"cannot launch {launch_id}: it was launched before, and EC2 does not list it yet; retry",
                code="provider.not_listed_yet",
            )
        return instances[0]

    async def _instances(self, launch_id: str, regions: Iterable[str]) -> Sequence[FoundInstance]:
        """Returns instances of a launch, live ones first, oldest first.

        A launch has one region: once it is found, other regions may be silent.
        """
        if not _LAUNCH_ID.fullmatch(launch_id):
            raise Invalid(
                f"cannot use {launch_id[:80]!r}: it is no launch id; use 1 to 64 letters, digits, - and _",
                code="provider.invalid_launch_id",
            )
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

        async def answer(region: str) -> Sequence[FoundInstance] | ProviderError:
            try:
                async with asyncio.timeout(REGION_S):
                    return await self._in_region(region, filters)
            except TimeoutError:
                return Retry(
                    f"cannot list instances in {region}: no answer within {REGION_S:g} s; retry later",
                    code="provider.no_answer",
                )
            except ProviderError as problem:
                return problem

        names = tuple(regions)
        return dict(zip(names, await asyncio.gather(*map(answer, names)), strict=True))

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
        zone_or_region, kind, now = spec.region or region, self._type(spec), self._clock.now()
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

    def _request(self, spec: LaunchSpec, launch_id: str) -> dict[str, Any]:
        """Returns the complete `RunInstances` request, so that a repetition is equal."""
        machine = self._machine(spec)
        tags = [{"Key": key, "Value": value} for key, value in tags_for(spec, launch_id).items()]
        request: dict[str, Any] = {
            "MinCount": 1,
            "MaxCount": 1,
            "ClientToken": launch_id,
            "InstanceType": self._type(spec),
            "UserData": self._user_data(spec, launch_id),
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
            "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")],
        }
        if spec.is_spot:
            spot = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": spot}
        if spec.region not in ("", self._region(spec)):
            request["Placement"] = {"AvailabilityZone": spec.region}
        if machine.launch_template:
            key = "LaunchTemplateId" if machine.launch_template.startswith("lt-") else "LaunchTemplateName"
            request["LaunchTemplate"] = {key: machine.launch_template, "Version": machine.launch_template_version}
        optional_fields = {
            "ImageId": machine.image_id,
            "SubnetId": machine.subnet_id,
            "SecurityGroupIds": [*machine.security_group_ids],
            "IamInstanceProfile": {"Name": machine.instance_profile} if machine.instance_profile else {},
        }
        return request | {key: value for key, value in optional_fields.items() if value}

    def _user_data(self, spec: LaunchSpec, launch_id: str) -> str:
        preemption = (
            f"{{ kind = 'http', url = '{METADATA}/meta-data/spot/instance-action', "
            f"token_url = '{METADATA}/api/token' }}"
        )
        script = boot_script(
            self._options.boot,
            join=join_arguments(spec, launch_id, preemption=preemption if spec.is_spot else ""),
            token=spec.token,
            expires_at=spec.tags.expires_at,
            drain_s=spec.node.drain_s,
        )
        size = len(script.encode())
        if size > MAX_USER_DATA_BYTES:
            raise Invalid(
                f"cannot launch: the boot script has {size} bytes, the limit is {MAX_USER_DATA_BYTES}; shorten `boot`",
                code="provider.boot_script_too_long",
            )
        return script

    def _machine(self, spec: LaunchSpec) -> MachineOptions:
        values = {**self._options.machine.model_dump(exclude_unset=True), **spec.options}
        try:
            machine = MachineOptions.parse(values, where="options of the pool")
        except InvalidInput as problem:
            raise Invalid(str(problem), code="provider.invalid_pool_options") from problem
        if not machine.image_id and not machine.launch_template:
            raise Invalid(
                "cannot launch: image_id or launch_template is missing; set one in `machine` or the pool's options",
                code="provider.no_image",
            )
        return machine

    def _type(self, spec: LaunchSpec) -> str:
        kind = spec.type or next(iter(self._options.types))
        if kind not in self._options.types:
            hint = suggest_name(kind, [*self._options.types])
            raise Invalid(
                f"cannot launch: the instance type {kind!r} is not in `types`; {hint}", code="provider.unknown_type"
            )
        return kind

    def _region(self, spec: LaunchSpec) -> str:
        """Returns the region of the spec's region or zone."""
        if not spec.region:
            return self._options.regions[0]
        match = _REGION.fullmatch(spec.region)
        if match is None or match[1] not in self._options.regions:
            hint = suggest_name(spec.region, [*self._options.regions])
            raise Invalid(
                f"cannot launch: the region {spec.region!r} is not in `regions`; {hint}", code="provider.unknown_region"
            )
        return match[1]


def _terminated(ec2: "EC2Client", ids: Sequence[str]) -> bool:
    """Terminates instances; returns whether all have ended already."""
    try:
        answer = ec2.terminate_instances(InstanceIds=ids)
    except ClientError as problem:
        if code_of(problem) == "InvalidInstanceID.NotFound":
            return False  # one has just been forgotten; the next call lists the others
        raise
    return all(instance["CurrentState"]["Name"] == "terminated" for instance in answer["TerminatingInstances"])
