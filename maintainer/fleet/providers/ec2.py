"""Amazon EC2: an instance for each node, on demand or spot, in one or several regions.

All that is known of an instance is in its tags, which are on it from its first moment. Listings are eventually
consistent: what was launched may not show for some seconds, so a launch looks first, and then has a client token, with
which EC2 itself makes nothing twice. An instance ends itself when its node does (`user_data.py`), also when the fleet
service is long gone.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from pydantic import Field, model_validator

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import Clock
from astraflow.runtime.config import Config, nearest
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    Capabilities,
    Handle,
    Instance,
    Invalid,
    LaunchSpec,
    ProviderError,
    Quote,
    Retired,
    Retry,
    State,
    fingerprint,
    join_arguments,
)
from maintainer.fleet.providers.ec2_calls import MISMATCH, Ec2Calls, code_of
from maintainer.fleet.providers.ec2_instances import KIND, PREFIX, handle_of, instance_of, state_of, tags_for, tags_of
from maintainer.fleet.providers.user_data import BootOptions, boot_script

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

METADATA = "http://169.254.169.254/latest"
"""Where an instance reads about itself; only it can."""

NOTICE_S = 120.0
"""EC2 tells a spot instance so long before it takes it away."""

MAX_USER_DATA_BYTES = 16_384

Seen = tuple[str, Mapping[str, Any]]
"""A region, and one of its instances in EC2's words."""

_LAUNCH_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
_REGION = re.compile(r"([a-z]{2}(?:-[a-z]+)+-\d+)([a-z]?)")
_PAGE = 1000
_PRICE_KEPT_S = 300.0


class MachineOptions(Config):
    """What instances are made of. A pool's `options` may say any of it otherwise."""

    launch_template: str = ""
    """Id (`lt-...`) or name of one that says the rest; what stands here besides goes before it."""
    launch_template_version: str = "$Default"
    """`$Default`, `$Latest` or a number."""
    image_id: str = ""
    """The AMI; needed without a launch template."""
    subnet_id: str = ""
    """Where in the network; the region's default when empty."""
    security_group_ids: tuple[str, ...] = ()
    """A node only dials out: none needs to let anything in."""
    instance_profile: str = ""
    """Name of the instance profile; a node needs none."""


class Ec2Options(Config):
    """The account, what may be started in it, and how an instance becomes a node."""

    regions: tuple[str, ...] = Field(min_length=1)
    """All that are used, as in `eu-west-1`; the first is the default. A pool's `region` may also be a zone of one."""
    types: dict[str, float] = Field(min_length=1)
    """US dollars an hour on demand of each instance type that may be used, as your price list has it; the first is the
    default."""
    machine: MachineOptions = MachineOptions()
    """What instances are made of, unless a pool's `options` say otherwise."""
    boot: BootOptions
    """How an instance becomes a node."""
    profile: str = ""
    """Of the AWS configuration; what the environment says when empty."""
    endpoint_url: str = ""
    """Of another service that speaks EC2's protocol."""
    listing_lag_s: float = Field(default=60.0, ge=0)
    """What was launched is in EC2's listings after so long at the latest; usually after a second or two."""
    launch_delay_s: float = Field(default=120.0, gt=0)
    """From launch to a node that works, as long as nothing better was measured."""
    calls_at_once: int = Field(default=8, ge=1, le=64)
    """Threads for calls."""

    @model_validator(mode="after")
    def _has_machines(self) -> "Ec2Options":
        for region in self.regions:
            found = _REGION.fullmatch(region)
            if found is None or found[2]:
                raise ValueError(f"regions: {region!r} is no region, as eu-west-1 is one")
        if any(price < 0 for price in self.types.values()):
            raise ValueError("types: no price is below zero")
        return self


@providers.register(KIND, options=Ec2Options)
class Ec2:
    """Instances with the cluster's tag."""

    def __init__(self, options: Ec2Options, *, clock: Clock, directory: Path) -> None:
        self._options = options
        self._clock = clock
        self._calls = Ec2Calls(
            endpoint_url=options.endpoint_url, profile=options.profile, calls_at_once=options.calls_at_once
        )
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._prices: dict[tuple[str, str], tuple[float, float]] = {}
        """Of spot instances, by zone and type: when it was read, and US dollars an hour."""

    async def launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        """Look for the launch in its region, then run an instance under a client token."""
        region, request = self._region(spec), self._request(spec, launch_id)
        turn = self._turns.setdefault(launch_id, asyncio.Lock())
        async with turn:
            found = await self._found(launch_id, (region,)) or (await self._run(region, request, launch_id),)
        known = tags_of(found[0][1]).get(f"{PREFIX}spec")
        if known != fingerprint(spec):
            raise Invalid(f"launch {launch_id} was made with another spec: a launch id stands for one instance")
        return handle_of(*found[0])

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> Retired:
        """Terminate all that carry the launch's tag."""
        doomed = [
            (region, seen)
            for region, seen in await self._found(launch_id, self._options.regions)
            if state_of(seen) is not State.GONE and (keep is None or handle_of(region, seen).id != keep.id)
        ]
        left = False
        for region in {region for region, _ in doomed}:
            ids = [seen["InstanceId"] for where, seen in doomed if where == region]
            left |= not await self._calls.call(region, partial(_terminated, ids=ids))
        return Retired.GOING if left else Retired.GONE

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        """Of all regions, by the cluster's tag. What was terminated stays in it for about an hour."""
        found = await self._in_regions(self._options.regions, {f"tag:{PREFIX}cluster": cluster})
        return tuple(instance_of(region, seen) for region, seen in found)

    async def describe(self, handle: Handle) -> Instance:
        """By its id; GONE for one that EC2 does not know, or not yet."""
        region, _, instance_id = handle.id.partition("/")
        if region in self._options.regions:
            for _, seen in await self._in_region(region, {"instance-id": instance_id}):
                return instance_of(region, seen)
        return Instance(handle=handle, tags=None, state=State.GONE)

    def capabilities(self) -> Capabilities:
        """Of EC2, and what the options say."""
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
        """The configured price; of spot instances what EC2 says they cost now, and never more than on demand."""
        full = self._options.types[self._type(spec)]
        region = self._region(spec)
        spot = await self._spot_price(spec, region) if spec.is_spot else None
        if spot is None:
            source = "on demand, as configured" + (": EC2 tells no spot price" if spec.is_spot else "")
            return Quote(usd_per_hour=full, launch_delay_s=self._options.launch_delay_s, source=source)
        source = f"EC2's latest spot price in {spec.region or region}"
        return Quote(usd_per_hour=min(spot, full), launch_delay_s=self._options.launch_delay_s, source=source)

    async def close(self) -> None:
        """Instances go on."""
        self._calls.close()

    async def rehearse(self, spec: LaunchSpec) -> str:
        """Ask whether this launch would be let through; starts nothing. Raises: ProviderError when it would not."""
        region, request = self._region(spec), self._request(spec, "rehearsal")
        del request["ClientToken"]
        try:
            await self._calls.call(region, lambda ec2: ec2.run_instances(**request, DryRun=True))
        except ProviderError as problem:
            if code_of(problem.__cause__) == "DryRunOperation":
                return f"EC2 in {region} would start a {self._type(spec)}"
            raise
        raise Invalid(f"EC2 in {region} knows no dry run: look whether an instance was started there")

    async def _run(self, region: str, request: dict[str, Any], launch_id: str) -> tuple[str, Mapping[str, Any]]:
        try:
            made = await self._calls.call(region, lambda ec2: ec2.run_instances(**request))
        except ProviderError as problem:
            if code_of(problem.__cause__) != MISMATCH:
                raise
        else:
            return region, made["Instances"][0]
        # It was launched before, with another join token or expiry, and did not show when it was looked for.
        found = await self._found(launch_id, (region,))
        if not found:
            raise Retry(f"launch {launch_id} was made before and EC2 does not list it yet: ask again")
        return found[0]

    async def _found(self, launch_id: str, regions: Sequence[str]) -> Sequence[Seen]:
        """Instances of a launch: those that live first, the oldest first."""
        if not _LAUNCH_ID.fullmatch(launch_id):
            raise Invalid(f"{launch_id[:80]!r} is no launch id: use 1 to 64 letters, digits, - and _")
        found = await self._in_regions(regions, {f"tag:{PREFIX}launch-id": launch_id})
        return sorted(
            found, key=lambda one: (state_of(one[1]) is State.GONE, one[1]["LaunchTime"], one[1]["InstanceId"])
        )

    async def _in_regions(self, regions: Sequence[str], filters: Mapping[str, str]) -> Sequence[Seen]:
        answers = await asyncio.gather(*(self._in_region(region, filters) for region in regions))
        return [one for answer in answers for one in answer]

    async def _in_region(self, region: str, filters: Mapping[str, str]) -> Sequence[Seen]:
        wanted = [{"Name": name, "Values": [value]} for name, value in filters.items()]

        def read(ec2: "EC2Client") -> Sequence[Seen]:
            pages = ec2.get_paginator("describe_instances").paginate(
                Filters=wanted,  # type: ignore[arg-type]  # a dictionary of the right keys
                PaginationConfig={"PageSize": _PAGE},
            )
            return [(region, seen) for page in pages for group in page["Reservations"] for seen in group["Instances"]]

        return await self._calls.call(region, read)

    async def _spot_price(self, spec: LaunchSpec, region: str) -> float | None:
        """US dollars an hour now, in its zone or the dearest of the region's; None where EC2 does not say."""
        where, kind, now = spec.region or region, self._type(spec), self._clock.now()
        read_at, price = self._prices.get((where, kind), (-_PRICE_KEPT_S, 0.0))
        if now - read_at < _PRICE_KEPT_S:
            return price
        zone: dict[str, Any] = {"AvailabilityZone": where} if where != region else {}

        def read(ec2: "EC2Client") -> "Sequence[Any]":
            return ec2.describe_spot_price_history(
                InstanceTypes=[kind],  # type: ignore[list-item]  # one of many literals
                ProductDescriptions=["Linux/UNIX"],
                StartTime=datetime.fromtimestamp(self._clock.wall(), UTC),
                **zone,
            )["SpotPriceHistory"]

        prices = [float(one["SpotPrice"]) for one in await self._calls.call(region, read)]
        if not prices:
            return None
        self._prices[where, kind] = now, max(prices)
        return max(prices)

    def _request(self, spec: LaunchSpec, launch_id: str) -> dict[str, Any]:
        """Of `RunInstances`: complete, so that a repetition is the same."""
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
        chosen = {
            "ImageId": machine.image_id,
            "SubnetId": machine.subnet_id,
            "SecurityGroupIds": [*machine.security_group_ids],
            "IamInstanceProfile": {"Name": machine.instance_profile} if machine.instance_profile else {},
        }
        return request | {key: value for key, value in chosen.items() if value}

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
            raise Invalid(f"the boot script has {size} bytes and EC2 takes {MAX_USER_DATA_BYTES}: shorten `boot`")
        return script

    def _machine(self, spec: LaunchSpec) -> MachineOptions:
        values = {**self._options.machine.model_dump(exclude_unset=True), **spec.options}
        try:
            machine = MachineOptions.parse(values, where="options of the pool")
        except InvalidInput as problem:
            raise Invalid(str(problem)) from problem
        if not machine.image_id and not machine.launch_template:
            raise Invalid(
                "an instance needs an image_id or a launch_template: give one in `machine` or the pool's options"
            )
        return machine

    def _type(self, spec: LaunchSpec) -> str:
        kind = spec.type or next(iter(self._options.types))
        if kind not in self._options.types:
            raise Invalid(f"the instance type {kind!r} is not among `types`; {nearest(kind, [*self._options.types])}")
        return kind

    def _region(self, spec: LaunchSpec) -> str:
        """Of what a pool says, which may be a zone."""
        if not spec.region:
            return self._options.regions[0]
        found = _REGION.fullmatch(spec.region)
        if found is None or found[1] not in self._options.regions:
            raise Invalid(f"{spec.region!r} is not among `regions`; {nearest(spec.region, [*self._options.regions])}")
        return found[1]


def _terminated(ec2: "EC2Client", ids: Sequence[str]) -> bool:
    """Whether all are over already."""
    answer = ec2.terminate_instances(InstanceIds=ids)
    return all(one["CurrentState"]["Name"] == "terminated" for one in answer["TerminatingInstances"])
