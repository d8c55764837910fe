"""EC2 keeps the port's promises: boto3 over HTTP, moto's server behind what it lacks, instances that are processes."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, NoCredentialsError, ReadTimeoutError

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import SystemClock
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    Auth,
    Capacity,
    Invalid,
    LaunchSpec,
    Provider,
    ProviderError,
    Quota,
    Retired,
    Retry,
    State,
    Unknown,
)
from maintainer.fleet.providers.ec2 import Ec2, Ec2Options
from maintainer.fleet.providers.ec2_calls import explained
from tests.fakes.ec2_server import CREDENTIALS, Ec2Server, serving_ec2
from tests.fakes.instances import InstanceRunner, Machine, running_instances
from tests.maintainer.fleet.test_local_process import SLEEPER
from tests.suites.provider import CANARY, GIVE_UP_S, ProviderSuite, World, launch_id, launches, listed, retire, until

pytestmark = pytest.mark.anyio

REGION, OTHER_REGION = "eu-west-1", "us-east-1"
IMAGE = "ami-12c6146b"

CODES = {
    Quota: ("VcpuLimitExceeded", 400),
    Capacity: ("InsufficientInstanceCapacity", 500),
    Auth: ("UnauthorizedOperation", 403),
    Invalid: ("InvalidParameterValue", 400),
    Retry: ("RequestLimitExceeded", 503),
    Unknown: ("SomethingNobodyKnows", 400),
}

_numbers = count()


@pytest.fixture(scope="module")
def server() -> Iterator[Ec2Server]:
    with serving_ec2() as server:
        yield server


@pytest.fixture(scope="module")
def runner(server: Ec2Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstanceRunner]:
    with running_instances(server.client(REGION), tmp_path_factory.mktemp("instances")) as runner:
        yield runner


class Ec2World(World):
    """A cluster of its own on the account that all tests share."""

    def __init__(self, server: Ec2Server, runner: InstanceRunner) -> None:
        self.server = server
        self.runner = runner
        self.cluster = f"tests-{next(_numbers)}"
        self._made: list[Ec2] = []

    async def provider(self, **options: Any) -> Ec2:
        given = {
            "regions": (REGION,),
            "types": {"t3.micro": 1.0, "m5.large": 4.0},
            "machine": {"image_id": IMAGE},
            "boot": {"program": SLEEPER, "end": ("true",)},
            "endpoint_url": self.server.url,
            "listing_lag_s": 0.0,
        }
        made = Ec2(Ec2Options.parse(given | options, where=""), clock=SystemClock(), directory=Path())
        self._made.append(made)
        return made

    async def lose(self, launch_id: str) -> None:
        self.server.client(REGION).terminate_instances(InstanceIds=self.ids(launch_id))

    async def failing(self, error: type[ProviderError]) -> Provider | None:
        return await self.provider(endpoint_url=self.server.failing(*CODES[error]))

    async def duplicate(self, launch_id: str) -> bool:
        """Two processes, neither of which finds the other's, and no client token: moto makes both."""
        self.server.has_client_tokens = False
        try:
            provider, spec = await self.provider(), self.spec()
            region, request = provider._region(spec), provider._request(spec, launch_id)
            await provider._run(region, request, launch_id)
        finally:
            self.server.has_client_tokens = True
        return True

    def wrong_spec(self) -> LaunchSpec | None:
        return self.spec(type="enormous")

    def spoken(self) -> str:
        """Everything but the user data itself, which only the instance and the account's keepers can read."""
        said = [repr(self.server.client(REGION).describe_instances()), repr(self.server.client(REGION).describe_tags())]
        for machine in tuple(self.runner.machines.values()):  # one may start meanwhile
            said += [machine.log, *machine.command_lines()]
        return "\n".join(said)

    def ids(self, launch_id: str) -> list[str]:
        wanted: Any = [{"Name": "tag:astraflow:launch-id", "Values": [launch_id]}]
        pages = self.server.client(REGION).describe_instances(Filters=wanted)["Reservations"]
        return [seen["InstanceId"] for page in pages for seen in page["Instances"]]

    def machine(self, launch_id: str) -> Machine:
        """The process behind an instance, once it runs."""
        (instance_id,) = self.ids(launch_id)
        deadline = time.monotonic() + GIVE_UP_S
        while instance_id not in self.runner.machines:
            assert time.monotonic() < deadline, self.runner.problems
            time.sleep(0.02)
        return self.runner.machines[instance_id]

    async def end(self) -> None:
        """Whatever a test left running is ended."""
        self.server.has_client_tokens, self.server.lag_s = True, 0.0
        for region in (REGION, OTHER_REGION):
            ec2 = self.server.client(region)
            living: Any = [{"Name": "instance-state-name", "Values": ["running", "stopped"]}]
            found = ec2.describe_instances(Filters=living)["Reservations"]
            left = [seen["InstanceId"] for group in found for seen in group["Instances"]]
            if left:
                ec2.terminate_instances(InstanceIds=left)
        for made in self._made:
            await made.close()


@pytest.fixture
async def world(server: Ec2Server, runner: InstanceRunner, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ec2World]:
    for key, value in CREDENTIALS.items():
        monkeypatch.setenv(key, value)
    world = Ec2World(server, runner)
    try:
        yield world
    finally:
        await world.end()


class TestEc2(ProviderSuite):
    """The suite, on processes that sleep."""


async def test_an_instance_runs_its_node_with_the_token_in_a_file_of_its_own(world: Ec2World) -> None:
    provider, launch = await world.provider(), launch_id()
    await provider.launch(world.spec(), launch)
    machine = world.machine(launch)
    secret = machine.directory / "secrets" / "token"
    await _holds(lambda: any("join 127.0.0.1:1" in line for line in machine.command_lines()))
    assert (secret.read_text(), secret.stat().st_mode & 0o777) == (f"{CANARY}\n", 0o600)
    (line,) = {line for line in machine.command_lines() if "--name" in line and "timeout" not in line}
    assert f"--name {launch} --pool eu" in line
    assert f"--token-file {secret}" in line
    await retire(world, provider, launch)
    await _holds(lambda: not machine.pids())
    assert not secret.exists()


async def test_an_instance_whose_node_ends_is_gone(world: Ec2World) -> None:
    provider = await world.provider(boot={"program": ("/bin/false",), "end": ("true",)})
    handle = await provider.launch(world.spec(), launch_id())
    await until(world, provider, handle, lambda seen: seen.state is State.GONE)


async def test_a_launch_that_does_not_show_yet_is_not_made_twice(world: Ec2World) -> None:
    provider, launch = await world.provider(), launch_id()
    world.server.lag_s = 3600.0
    first = await provider.launch(world.spec(), launch)
    assert await (await world.provider()).launch(world.spec(), launch) == first  # EC2 knows the client token
    with pytest.raises(Retry, match="does not list it yet"):
        await provider.launch(world.spec(token="another"), launch)
    world.server.lag_s = 0.0
    assert await provider.launch(world.spec(token="another"), launch) == first
    assert await launches(world, provider) == [launch]


async def test_a_launch_whose_answer_was_lost_is_found_by_its_tag(world: Ec2World) -> None:
    deaf, launch = await world.provider(endpoint_url=world.server.losing_answers()), launch_id()
    with pytest.raises(Retry, match="InternalError"):
        await deaf.launch(world.spec(), launch)
    world.server.has_client_tokens = False  # nothing but the tag
    provider = await world.provider()
    handle = await provider.launch(world.spec(), launch)
    assert world.ids(launch) == [handle.id.partition("/")[2]]


async def test_without_client_tokens_two_processes_at_once_make_two_and_one_is_ended(world: Ec2World) -> None:
    provider, launch = await world.provider(), launch_id()
    handle = await provider.launch(world.spec(), launch)
    await world.duplicate(launch)
    assert len(await listed(world, provider)) == 2
    found = await provider.launch(world.spec(), launch)
    assert found.id.partition("/")[2] in world.ids(launch)
    assert await (await world.provider()).launch(world.spec(), launch) == found  # whoever asks
    await retire(world, provider, launch, keep=handle)
    (left,) = await listed(world, provider)
    assert left.handle == handle


async def test_what_stands_in_another_region_is_listed_and_retired_too(world: Ec2World) -> None:
    provider, launch = await world.provider(regions=(REGION, OTHER_REGION)), launch_id()
    handle = await provider.launch(world.spec(region=OTHER_REGION), launch)
    assert handle.id.startswith(f"{OTHER_REGION}/i-")
    (seen,) = await listed(world, provider)
    assert (seen.handle, seen.region) == (handle, OTHER_REGION)
    assert await provider.launch(world.spec(region=OTHER_REGION), launch) == handle
    await retire(world, provider, launch)
    assert await launches(world, provider, wait_for=0) == []


async def test_a_zone_is_a_place_and_a_region_that_is_not_configured_is_none(world: Ec2World) -> None:
    provider, launch = await world.provider(), launch_id()
    instance = await provider.describe(await provider.launch(world.spec(region=f"{REGION}b"), launch))
    assert instance.region == f"{REGION}b"
    wanted: Any = world.ids(launch)
    (group,) = world.server.client(REGION).describe_instances(InstanceIds=wanted)["Reservations"]
    assert group["Instances"][0]["Placement"]["AvailabilityZone"] == f"{REGION}b"
    for wrong in ("eu-central-1", "nowhere"):
        with pytest.raises(Invalid, match="regions"):
            await provider.launch(world.spec(region=wrong), launch_id())


async def test_a_launch_template_says_the_rest(world: Ec2World) -> None:
    data: Any = {"ImageId": IMAGE, "InstanceType": "m5.xlarge"}
    name = f"{world.cluster}-template"
    made = world.server.client(REGION).create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)
    for template in (name, made["LaunchTemplate"]["LaunchTemplateId"]):
        provider, launch = await world.provider(machine={"launch_template": template}), launch_id()
        instance = await provider.describe(await provider.launch(world.spec(type="m5.large"), launch))
        assert instance.type == "m5.large"


async def test_a_pools_options_go_before_the_providers(world: Ec2World) -> None:
    provider, launch = await world.provider(), launch_id()
    await provider.launch(world.spec(options={"image_id": "ami-760aaa0f"}), launch)
    (group,) = world.server.client(REGION).describe_instances(InstanceIds=world.ids(launch))["Reservations"]
    assert group["Instances"][0]["ImageId"] == "ami-760aaa0f"
    with pytest.raises(Invalid, match="image_id"):
        await provider.launch(world.spec(options={"image": "x"}), launch_id())
    with pytest.raises(Invalid, match="image_id or a launch_template"):
        await (await world.provider(machine={})).launch(world.spec(), launch_id())


async def test_a_spot_instance_hears_of_its_end_two_minutes_before(world: Ec2World) -> None:
    provider, launch = await world.provider(), launch_id()
    handle = await provider.launch(world.spec(is_spot=True), launch)
    assert (await provider.describe(handle)).is_spot
    machine = world.machine(launch)
    script = (machine.directory / "user-data").read_text()
    assert f"{machine.metadata.url}/latest/meta-data/spot/instance-action" in script
    world.runner.interrupt(world.ids(launch)[0], in_s=0.5)
    await until(world, provider, handle, lambda seen: seen.state is State.GONE)
    await _holds(lambda: not machine.pids())


async def test_only_spot_instances_look_for_a_notice(world: Ec2World) -> None:
    provider, launch = await world.provider(), launch_id()
    await provider.launch(world.spec(), launch)
    assert "--preemption" not in (world.machine(launch).directory / "user-data").read_text()


async def test_an_instance_is_launched_with_care(world: Ec2World) -> None:
    request = (await world.provider())._request(world.spec(is_spot=True), "01X")
    assert request["MetadataOptions"]["HttpTokens"] == "required"
    assert request["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert request["InstanceMarketOptions"]["SpotOptions"]["InstanceInterruptionBehavior"] == "terminate"
    assert {kind["ResourceType"] for kind in request["TagSpecifications"]} == {"instance", "volume"}
    assert CANARY not in repr({key: value for key, value in request.items() if key != "UserData"})


async def test_a_list_has_as_many_pages_as_it_needs(world: Ec2World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maintainer.fleet.providers.ec2._PAGE", 5)
    provider, wanted = await world.provider(), sorted(launch_id() for _ in range(12))
    await asyncio.gather(*(provider.launch(world.spec(), launch) for launch in wanted))
    before = len(world.server.calls)
    assert sorted(seen.handle.launch_id for seen in await provider.list(world.cluster)) == wanted
    assert world.server.calls[before:].count("DescribeInstances") >= 3


async def test_spot_prices_are_asked_for_once_in_five_minutes(world: Ec2World) -> None:
    provider = await world.provider()
    before = world.server.calls.count("DescribeSpotPriceHistory")
    quotes = [await provider.quote(world.spec(is_spot=True)) for _ in range(3)]
    assert quotes[0] == quotes[1] == quotes[2]
    assert quotes[0].usd_per_hour <= 1.0
    assert "spot price" in quotes[0].source
    assert world.server.calls.count("DescribeSpotPriceHistory") == before + 1


async def test_a_rehearsal_asks_and_starts_nothing(world: Ec2World) -> None:
    provider = await world.provider()
    assert await provider.rehearse(world.spec()) == f"EC2 in {REGION} would start a t3.micro"
    assert await provider.list(world.cluster) == ()
    for error in (Auth, Quota):
        failing = await world.failing(error)
        assert isinstance(failing, Ec2)
        with pytest.raises(error):
            await failing.rehearse(world.spec())


async def test_a_boot_script_that_is_too_long_is_refused(world: Ec2World) -> None:
    provider = await world.provider(boot={"program": ("/bin/true", "x" * 16_384)})
    with pytest.raises(Invalid, match="16384"):
        await provider.launch(world.spec(), launch_id())
    assert await provider.list(world.cluster) == ()


async def test_without_an_ec2_or_credentials_it_says_so(world: Ec2World, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Retry, match="does not answer"):
        await (await world.provider(endpoint_url="http://127.0.0.1:1")).list(world.cluster)
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(key)
    with pytest.raises(Auth, match="credentials"):
        await (await world.provider()).list(world.cluster)
    with pytest.raises(Auth, match="nobody"):
        await (await world.provider(profile="nobody")).list(world.cluster)


async def test_calls_leave_no_more_threads_than_allowed(world: Ec2World) -> None:
    provider = await world.provider(calls_at_once=2)
    await asyncio.gather(*(provider.list(world.cluster) for _ in range(12)))
    assert len(provider._calls._threads._threads) <= 2


async def test_cancelled_calls_end_at_once_and_are_found_later(world: Ec2World) -> None:
    provider, launch = await world.provider(), launch_id()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await provider.launch(world.spec(), launch)
    assert (await provider.launch(world.spec(), launch)).launch_id == launch
    assert await launches(world, provider) == [launch]


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("InstanceLimitExceeded", 400, Quota),
        ("MaxSpotInstanceCountExceeded", 400, Quota),
        ("InsufficientFreeAddressesInSubnet", 400, Capacity),
        ("SpotMaxPriceTooLow", 400, Capacity),
        ("AuthFailure", 401, Auth),
        ("InvalidClientTokenId", 403, Auth),
        ("OptInRequired", 403, Auth),
        ("InvalidAMIID.NotFound", 400, Invalid),
        ("Unsupported", 400, Invalid),
        ("MissingParameter", 400, Invalid),
        ("Throttling", 400, Retry),
        ("InternalError", 500, Retry),
        ("Unavailable", 503, Retry),
        ("Odd", 503, Retry),
        ("Odd", 500, Unknown),
    ],
)
def test_what_ec2_says_is_one_of_six(code: str, status: int, error: type[ProviderError]) -> None:
    said: Any = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    found = explained(ClientError(said, "RunInstances"), REGION)
    assert type(found) is error
    assert code in str(found)


def test_what_never_reached_ec2_is_one_of_six() -> None:
    assert type(explained(NoCredentialsError(), REGION)) is Auth
    assert type(explained(ReadTimeoutError(endpoint_url="x"), REGION)) is Retry


def test_a_wrong_configuration_is_refused_with_what_would_work() -> None:
    good: dict[str, Any] = {
        "kind": "ec2",
        "regions": [REGION],
        "types": {"t3.micro": 1.0},
        "boot": {"program": ["/opt/astraflow/bin/astraflow"]},
    }
    providers.check(good)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"regions": []}, "regions"),
        ({"regions": ["eu-west-1b"]}, "eu-west-1"),
        ({"types": {}}, "types"),
        ({"boot": {}}, "wheel, image, program"),
        ({"boot": {"program": ["/x"], "image": "y"}}, "program"),
        ({"machine": {"ami": "x"}}, "image_id"),
    ]
    for change, said in wrong:
        with pytest.raises(InvalidInput, match=said):
            providers.check(good | change)


@pytest.mark.parametrize("wrong", ["", "a*", "a?", "a b", "x" * 65])
async def test_an_id_that_is_no_name_is_refused(world: Ec2World, wrong: str) -> None:
    provider = await world.provider()
    with pytest.raises(Invalid, match="no launch id"):
        await provider.launch(world.spec(), wrong)
    with pytest.raises(Invalid, match="no launch id"):
        await provider.retire(wrong)


async def test_a_machine_that_was_stopped_by_hand_is_on_its_way_out(world: Ec2World) -> None:
    provider, launch = await world.provider(), launch_id()
    handle = await provider.launch(world.spec(), launch)
    world.machine(launch)
    world.server.client(REGION).stop_instances(InstanceIds=world.ids(launch))
    assert (await provider.describe(handle)).state is State.GOING
    assert await provider.retire(launch) in (Retired.GOING, Retired.GONE)


async def test_tags_of_others_are_no_tags(world: Ec2World) -> None:
    provider, spec = await world.provider(), world.spec()
    handle = await provider.launch(replace(spec, tags=replace(spec.tags, pool="p" * 64)), launch_id())
    key: Any = [{"Key": "astraflow:run"}]
    world.server.client(REGION).delete_tags(Resources=[handle.id.partition("/")[2]], Tags=key)
    assert (await provider.describe(handle)).tags is None


async def _holds(claim: Any) -> None:
    deadline = time.monotonic() + GIVE_UP_S
    while not claim():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
