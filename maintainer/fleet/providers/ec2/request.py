"""Options of the provider `ec2`, and the request for an instance. Pure."""

import re
from typing import Any

from pydantic import Field, model_validator

from astraflow.runtime.config.base import Config, suggest_name
from maintainer.fleet.providers.base import InvalidError, LaunchSpec, join_arguments
from maintainer.fleet.providers.ec2.instances import tags_for
from maintainer.fleet.providers.ec2.user_data import BootOptions, boot_script
from maintainer.fleet.providers.launches import chosen_type, pool_options, type_name

REGION = re.compile(r"([a-z]{2}(?:-[a-z]+)+-\d+)([a-z]?)")
"""A region, or a zone of it."""

METADATA = "http://169.254.169.254/latest"
"""Instance metadata service, which only the instance can read."""

MAX_USER_DATA_BYTES = 16_384


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
            match = REGION.fullmatch(region)
            if match is None or match[2]:
                raise ValueError(f"cannot use regions: {region!r} is no region; write it like eu-west-1")
        if any(price < 0 for price in self.types.values()):
            raise ValueError("cannot use types: a price is negative; use 0 or more")
        return self


def run_request(options: Ec2Options, spec: LaunchSpec, launch_id: str) -> dict[str, Any]:
    """Returns the complete `RunInstances` request, so that a repetition is equal. Raises: InvalidError."""
    chosen_type(options.types, spec)
    machine = _machine(options, spec)
    tags = [{"Key": key, "Value": value} for key, value in tags_for(spec, launch_id).items()]
    request: dict[str, Any] = {
        "MinCount": 1,
        "MaxCount": 1,
        "ClientToken": launch_id,
        "InstanceType": type_name(options.types, spec),
        "UserData": _user_data(options, spec, launch_id),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")],
    }
    if spec.is_spot:
        spot = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": spot}
    if spec.region not in ("", region_of(options, spec)):
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


def _user_data(options: Ec2Options, spec: LaunchSpec, launch_id: str) -> str:
    preemption = (
        f"{{ kind = 'http', url = '{METADATA}/meta-data/spot/instance-action', token_url = '{METADATA}/api/token' }}"
    )
    script = boot_script(
        options.boot,
        join=join_arguments(spec, launch_id, preemption=preemption if spec.is_spot else ""),
        token=spec.token,
        expires_at=spec.tags.expires_at,
        drain_s=spec.node.drain_s,
    )
    size = len(script.encode())
    if size > MAX_USER_DATA_BYTES:
        raise InvalidError(
            f"cannot launch: the boot script has {size} bytes, the limit is {MAX_USER_DATA_BYTES}; shorten `boot`",
            code="provider.boot_script_too_long",
        )
    return script


def _machine(options: Ec2Options, spec: LaunchSpec) -> MachineOptions:
    machine = pool_options(MachineOptions, spec, defaults=options.machine.model_dump(exclude_unset=True))
    if not machine.image_id and not machine.launch_template:
        raise InvalidError(
            "cannot launch: image_id or launch_template is missing; set one in `machine` or the pool's options",
            code="provider.no_image",
        )
    return machine


def region_of(options: Ec2Options, spec: LaunchSpec) -> str:
    """Returns the region of the spec's region or zone. Raises: InvalidError."""
    if not spec.region:
        return options.regions[0]
    match = REGION.fullmatch(spec.region)
    if match is None or match[1] not in options.regions:
        hint = suggest_name(spec.region, [*options.regions])
        raise InvalidError(
            f"cannot launch: the region {spec.region!r} is not in `regions`; {hint}", code="provider.unknown_region"
        )
    return match[1]
