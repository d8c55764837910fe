"""EC2 provider suite: boto3 over HTTP, an extended moto server, and processes as instances."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    InvalidConfigError,
    NoCredentialsError,
    NoRegionError,
    ReadTimeoutError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)
from botocore.parsers import ResponseParserError

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import SystemClock
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    AuthError,
    CapacityError,
    Handle,
    InvalidError,
    LaunchSpec,
    Provider,
    ProviderError,
    QuotaError,
    RetireResult,
    RetryError,
    State,
    UnknownError,
    unread_places,
)
from maintainer.fleet.providers.ec2.calls import explained
from maintainer.fleet.providers.ec2.instances import instance_of
from maintainer.fleet.providers.ec2.provider import Ec2, _terminated
from maintainer.fleet.providers.ec2.request import Ec2Options, region_of, run_request
from maintainer.testing.provider_harness import (
    CANARY,
    GIVE_UP_S,
    ProviderHarness,
    launch_id,
    launches,
    listed,
    retire,
    until,
)
from maintainer.testing.provider_requests import RequestSuite
from maintainer.testing.provider_suite import LifecycleSuite
from tests.errors import raises_code
from tests.fakes.ec2_instances import InstanceRunner, Machine, running_instances
from tests.fakes.ec2_server import CREDENTIALS, Ec2Server, serving_ec2
from tests.maintainer.fleet.providers.test_local_process import SLEEPER

pytestmark = pytest.mark.anyio

REGION, OTHER_REGION = "eu-west-1", "us-east-1"
IMAGE = "ami-12c6146b"

CODES = {
    QuotaError: ("VcpuLimitExceeded", 400),
    CapacityError: ("InsufficientInstanceCapacity", 500),
    AuthError: ("UnauthorizedOperation", 403),
    InvalidError: ("InvalidParameterValue", 400),
    RetryError: ("RequestLimitExceeded", 503),
    UnknownError: ("SomethingNobodyKnows", 400),
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


class Ec2Harness(ProviderHarness):
    """Separate cluster on the account that all tests share."""

    def __init__(self, server: Ec2Server, runner: InstanceRunner, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.runner = runner
        self.cluster = f"tests-{next(_numbers)}"
        self._made: list[Ec2] = []

    def options(self, **options: Any) -> Ec2Options:
        defaults = {
            "regions": (REGION,),
            "types": {"t3.micro": 1.0, "m5.large": 4.0},
            "machine": {"image_id": IMAGE},
            "boot": {"program": SLEEPER, "end": ("true",)},
            "endpoint_url": self.server.url,
            "listing_lag_s": 0.0,
        }
        return Ec2Options.parse(defaults | options, where="")

    async def provider(self, **options: Any) -> Ec2:
        provider = Ec2(self.options(**options), clock=SystemClock(), directory=self.directory)
        self._made.append(provider)
        return provider

    async def lose(self, launch_id: str) -> None:
        self.server.client(REGION).terminate_instances(InstanceIds=self.ids(launch_id))

    async def failing(self, error: type[ProviderError]) -> Provider | None:
        return await self.provider(endpoint_url=self.server.failing(*CODES[error]))

    async def duplicate(self, launch_id: str) -> bool:
        """Launches twice without a client token, as two processes at once would; moto creates both instances."""
        self.server.has_client_tokens = False
        try:
            provider, spec = await self.provider(), self.spec()
            request = run_request(self.options(), spec, launch_id)
            await provider._run(region_of(self.options(), spec), request, launch_id)
        finally:
            self.server.has_client_tokens = True
        return True

    def wrong_spec(self) -> LaunchSpec | None:
        return self.spec(type="enormous")

    def captured_output(self) -> str:
        """Returns all output except the user data, which only the instance and account administrators can read."""
        texts = [
            repr(self.server.client(REGION).describe_instances()),
            repr(self.server.client(REGION).describe_tags()),
        ]
        for machine in tuple(self.runner.machines.values()):  # an instance may start during the loop
            texts += [machine.log, *machine.command_lines()]
        return "\n".join(texts)

    def ids(self, launch_id: str) -> list[str]:
        wanted: Any = [{"Name": "tag:astraflow:launch-id", "Values": [launch_id]}]
        pages = self.server.client(REGION).describe_instances(Filters=wanted)["Reservations"]
        return [instance["InstanceId"] for page in pages for instance in page["Instances"]]

    async def at(self, address: str) -> Provider | None:
        return await self.provider(endpoint_url=address)

    async def renewable(self) -> Provider | None:
        self.write_key("OLD")
        return await self.provider(profile="renewed")

    async def expire(self) -> None:
        self.server.expired_keys.add("OLD")

    async def renew(self) -> None:
        self.write_key("NEW")

    def write_key(self, key: str) -> None:
        text = f"[renewed]\naws_access_key_id={key}\naws_secret_access_key=s\naws_session_token=t\n"
        (self.directory / "credentials").write_text(text)

    async def two_places(self) -> tuple[Provider, LaunchSpec, LaunchSpec] | None:
        self.server.silent_regions.clear()
        return await self.provider(regions=(REGION, OTHER_REGION)), self.spec(), self.spec(region=OTHER_REGION)

    async def removed_place(self) -> tuple[Provider, Provider, LaunchSpec] | None:
        both = await self.provider(regions=(REGION, OTHER_REGION))
        return both, await self.provider(), self.spec(region=OTHER_REGION)

    async def silence_second(self) -> Provider:
        self.server.silent_regions.add(OTHER_REGION)
        return await self.provider(regions=(REGION, OTHER_REGION))

    async def preempted(self) -> tuple[Provider, Handle] | None:
        provider, launch = await self.provider(), launch_id()
        handle = await provider.launch(self.spec(is_spot=True), launch)
        self.server.client(REGION).terminate_instances(InstanceIds=self.ids(launch))
        self.server.interrupted |= set(self.ids(launch))
        return provider, handle

    def machine(self, launch_id: str) -> Machine:
        """Waits for the process behind an instance and returns it."""
        (instance_id,) = self.ids(launch_id)
        deadline = time.monotonic() + GIVE_UP_S
        while instance_id not in self.runner.machines:
            assert time.monotonic() < deadline, self.runner.problems
            time.sleep(0.02)
        return self.runner.machines[instance_id]

    async def end(self) -> None:
        """Terminates all instances that a test left running."""
        self.server.has_client_tokens, self.server.lag_s = True, 0.0
        self.server.expired_keys.clear()
        self.server.silent_regions.clear()
        for region in (REGION, OTHER_REGION):
            ec2 = self.server.client(region)
            living: Any = [{"Name": "instance-state-name", "Values": ["running", "stopped"]}]
            reservations = ec2.describe_instances(Filters=living)["Reservations"]
            left = [instance["InstanceId"] for group in reservations for instance in group["Instances"]]
            if left:
                ec2.terminate_instances(InstanceIds=left)
        for provider in self._made:
            await provider.close()


@pytest.fixture
async def harness(
    server: Ec2Server, runner: InstanceRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[Ec2Harness]:
    for key, value in CREDENTIALS.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    harness = Ec2Harness(server, runner, tmp_path)
    try:
        yield harness
    finally:
        await harness.end()


class TestEc2(RequestSuite):
    """Runs the provider suite with sleeping processes as instances."""


@pytest.mark.long
class TestEc2Lifecycle(LifecycleSuite):
    """Runs the provider suite with sleeping processes as instances."""


@pytest.mark.long
async def test_an_instance_runs_its_node_with_the_token_in_a_private_file(harness: Ec2Harness) -> None:
    provider, launch = await harness.provider(), launch_id()
    await provider.launch(harness.spec(), launch)
    machine = harness.machine(launch)
    secret = machine.directory / "secrets" / "token"
    await _holds(lambda: any("join 127.0.0.1:1" in line for line in machine.command_lines()))
    assert (secret.read_text(), secret.stat().st_mode & 0o777) == (f"{CANARY}\n", 0o600)
    (line,) = {line for line in machine.command_lines() if "--name" in line and not line.split()[0].endswith("timeout")}
    assert f"--name {launch} --pool eu" in line
    assert f"--token-file {secret}" in line
    await retire(harness, provider, launch)
    await _holds(lambda: not machine.pids())
    assert not secret.exists()


@pytest.mark.long
async def test_an_instance_whose_node_ends_is_gone(harness: Ec2Harness) -> None:
    provider = await harness.provider(boot={"program": ("/bin/false",), "end": ("true",)})
    launch = launch_id()
    handle = await provider.launch(harness.spec(), launch)
    await until(harness, provider, handle, lambda instance: instance.state is State.GONE)
    assert await provider.retire(launch) is RetireResult.GONE


async def test_a_launch_that_is_not_listed_yet_is_not_repeated(harness: Ec2Harness) -> None:
    provider, launch = await harness.provider(), launch_id()
    harness.server.lag_s = 3600.0
    first = await provider.launch(harness.spec(), launch)
    assert await (await harness.provider()).launch(harness.spec(), launch) == first  # EC2 recognizes the client token
    with pytest.raises(RetryError, check=lambda problem: problem.code == "provider.not_listed_yet"):
        await provider.launch(harness.spec(token="another"), launch)
    harness.server.lag_s = 0.0
    assert await provider.launch(harness.spec(token="another"), launch) == first
    assert await launches(harness, provider) == [launch]


@pytest.mark.long
async def test_a_launch_whose_answer_was_lost_is_found_by_its_tag(harness: Ec2Harness) -> None:
    deaf, launch = await harness.provider(endpoint_url=harness.server.losing_answers()), launch_id()
    with raises_code(RetryError, "retry_error", "InternalError"):
        await deaf.launch(harness.spec(), launch)
    harness.server.has_client_tokens = False  # only the tag identifies the launch
    provider = await harness.provider()
    handle = await provider.launch(harness.spec(), launch)
    assert harness.ids(launch) == [handle.id.partition("/")[2]]


@pytest.mark.long
async def test_without_client_tokens_one_of_two_concurrent_instances_is_terminated(harness: Ec2Harness) -> None:
    provider, launch = await harness.provider(), launch_id()
    handle = await provider.launch(harness.spec(), launch)
    await harness.duplicate(launch)
    assert len(await listed(harness, provider)) == 2
    second_handle = await provider.launch(harness.spec(), launch)
    assert second_handle.id.partition("/")[2] in harness.ids(launch)
    assert (
        await (await harness.provider()).launch(harness.spec(), launch) == second_handle
    )  # same result from another process
    await retire(harness, provider, launch, keep=handle)
    (left,) = await listed(harness, provider)
    assert left.handle == handle


@pytest.mark.long
async def test_instances_of_other_regions_are_listed_and_retired_too(harness: Ec2Harness) -> None:
    provider, launch = await harness.provider(regions=(REGION, OTHER_REGION)), launch_id()
    handle = await provider.launch(harness.spec(region=OTHER_REGION), launch)
    assert handle.id.startswith(f"{OTHER_REGION}/i-")
    (instance,) = await listed(harness, provider)
    assert (instance.handle, instance.region) == (handle, OTHER_REGION)
    assert await provider.launch(harness.spec(region=OTHER_REGION), launch) == handle
    await retire(harness, provider, launch)
    assert await launches(harness, provider, wait_for=0) == []


async def test_a_zone_is_accepted_and_an_unconfigured_region_is_refused(harness: Ec2Harness) -> None:
    provider, launch = await harness.provider(), launch_id()
    instance = await provider.describe(await provider.launch(harness.spec(region=f"{REGION}b"), launch))
    assert instance.region == f"{REGION}b"
    wanted: Any = harness.ids(launch)
    (group,) = harness.server.client(REGION).describe_instances(InstanceIds=wanted)["Reservations"]
    assert group["Instances"][0]["Placement"]["AvailabilityZone"] == f"{REGION}b"
    for wrong in ("eu-central-1", "nowhere"):
        with raises_code(InvalidError, "provider.unknown_region", "regions"):
            await provider.launch(harness.spec(region=wrong), launch_id())


async def test_a_launch_template_supplies_the_remaining_options(harness: Ec2Harness) -> None:
    data: Any = {"ImageId": IMAGE, "InstanceType": "m5.xlarge"}
    name = f"{harness.cluster}-template"
    created = harness.server.client(REGION).create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)
    for template in (name, created["LaunchTemplate"]["LaunchTemplateId"]):
        provider, launch = await harness.provider(machine={"launch_template": template}), launch_id()
        instance = await provider.describe(await provider.launch(harness.spec(type="m5.large"), launch))
        assert instance.type == "m5.large"


async def test_a_pools_options_override_the_providers(harness: Ec2Harness) -> None:
    provider, launch = await harness.provider(), launch_id()
    await provider.launch(harness.spec(options={"image_id": "ami-760aaa0f"}), launch)
    (group,) = harness.server.client(REGION).describe_instances(InstanceIds=harness.ids(launch))["Reservations"]
    assert group["Instances"][0]["ImageId"] == "ami-760aaa0f"
    with raises_code(InvalidError, "provider.invalid_pool_options", "image_id"):
        await provider.launch(harness.spec(options={"image": "x"}), launch_id())
    with pytest.raises(InvalidError, check=lambda problem: problem.code == "provider.no_image"):
        await (await harness.provider(machine={})).launch(harness.spec(), launch_id())


@pytest.mark.long
async def test_a_spot_instance_gets_a_notice_two_minutes_before_its_end(harness: Ec2Harness) -> None:
    provider, launch = await harness.provider(), launch_id()
    handle = await provider.launch(harness.spec(is_spot=True), launch)
    assert (await provider.describe(handle)).is_spot
    machine = harness.machine(launch)
    script = (machine.directory / "user-data").read_text()
    assert f"{machine.metadata.url}/latest/meta-data/spot/instance-action" in script
    harness.runner.interrupt(harness.ids(launch)[0], in_s=0.5)
    await until(harness, provider, handle, lambda instance: instance.state is State.GONE)
    await _holds(lambda: not machine.pids())


@pytest.mark.long
async def test_only_spot_instances_look_for_a_notice(harness: Ec2Harness) -> None:
    provider, launch = await harness.provider(), launch_id()
    await provider.launch(harness.spec(), launch)
    assert "--preemption" not in (harness.machine(launch).directory / "user-data").read_text()


async def test_an_instance_is_launched_with_hardened_settings(harness: Ec2Harness) -> None:
    request = run_request(harness.options(), harness.spec(is_spot=True), "01X")
    assert request["MetadataOptions"]["HttpTokens"] == "required"
    assert request["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert request["InstanceMarketOptions"]["SpotOptions"]["InstanceInterruptionBehavior"] == "terminate"
    assert {kind["ResourceType"] for kind in request["TagSpecifications"]} == {"instance", "volume"}
    assert CANARY not in repr({key: value for key, value in request.items() if key != "UserData"})


@pytest.mark.long
async def test_a_list_reads_all_pages(harness: Ec2Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maintainer.fleet.providers.ec2.provider._PAGE", 5)
    provider, wanted = await harness.provider(), sorted(launch_id() for _ in range(12))
    await asyncio.gather(*(provider.launch(harness.spec(), launch) for launch in wanted))
    before = len(harness.server.calls)
    assert sorted(instance.handle.launch_id for instance in await provider.list(harness.cluster)) == wanted
    assert harness.server.calls[before:].count("DescribeInstances") >= 3


@pytest.mark.long
async def test_spot_prices_are_requested_once_in_five_minutes(harness: Ec2Harness) -> None:
    provider = await harness.provider()
    before = harness.server.calls.count("DescribeSpotPriceHistory")
    quotes = [await provider.quote(harness.spec(is_spot=True)) for _ in range(3)]
    assert quotes[0] == quotes[1] == quotes[2]
    assert quotes[0].usd_per_hour <= 1.0
    assert "spot price" in quotes[0].source
    assert harness.server.calls.count("DescribeSpotPriceHistory") == before + 1


@pytest.mark.long
async def test_a_preflight_check_starts_nothing(harness: Ec2Harness) -> None:
    provider = await harness.provider()
    answer = await provider.preflight(harness.spec())
    assert REGION in answer
    assert "t3.micro" in answer
    assert await provider.list(harness.cluster) == ()
    for error in (AuthError, QuotaError):
        failing = await harness.failing(error)
        assert isinstance(failing, Ec2)
        with pytest.raises(error):
            await failing.preflight(harness.spec())


async def test_a_boot_script_that_is_too_long_is_refused(harness: Ec2Harness) -> None:
    provider = await harness.provider(boot={"program": ("/bin/true", "x" * 16_384)})
    with raises_code(InvalidError, "provider.boot_script_too_long"):
        await provider.launch(harness.spec(), launch_id())
    assert await provider.list(harness.cluster) == ()


async def test_a_missing_endpoint_or_missing_credentials_are_reported(
    harness: Ec2Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    with raises_code(RetryError, "provider.no_answer", "no answer"):
        await (await harness.provider(endpoint_url="http://127.0.0.1:1")).list(harness.cluster)
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(key)
    with raises_code(AuthError, "provider.no_credentials", "credentials"):
        await (await harness.provider()).list(harness.cluster)
    with pytest.raises(AuthError, match="unknown-profile"):
        await (await harness.provider(profile="unknown-profile")).list(harness.cluster)


@pytest.mark.long
async def test_calls_use_no_more_threads_than_allowed(harness: Ec2Harness) -> None:
    provider = await harness.provider(calls_at_once=2)
    await asyncio.gather(*(provider.list(harness.cluster) for _ in range(12)))
    assert len(provider._calls._threads[REGION]._threads) <= 2


async def test_cancelled_calls_end_immediately_and_their_instances_are_found_later(harness: Ec2Harness) -> None:
    provider, launch = await harness.provider(), launch_id()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await provider.launch(harness.spec(), launch)
    assert (await provider.launch(harness.spec(), launch)).launch_id == launch
    assert await launches(harness, provider) == [launch]


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("InstanceLimitExceeded", 400, QuotaError),
        ("MaxSpotInstanceCountExceeded", 400, QuotaError),
        ("InsufficientFreeAddressesInSubnet", 400, CapacityError),
        ("SpotMaxPriceTooLow", 400, CapacityError),
        ("AuthFailure", 401, AuthError),
        ("InvalidClientTokenId", 403, AuthError),
        ("OptInRequired", 403, AuthError),
        ("InvalidAMIID.NotFound", 400, InvalidError),
        ("Unsupported", 400, InvalidError),
        ("MissingParameter", 400, InvalidError),
        ("Throttling", 400, RetryError),
        ("InternalError", 500, RetryError),
        ("Unavailable", 503, RetryError),
        ("UnfulfillableCapacity", 400, CapacityError),
        ("ReservationCapacityExceeded", 400, CapacityError),
        ("InsufficientCapacityOnHost", 400, CapacityError),
        ("UnavailableHostRequirements", 400, CapacityError),
        ("MaxScheduledInstanceCapacityExceeded", 400, CapacityError),
        ("EC2ThrottledException", 400, RetryError),
        ("ThrottlingException", 400, RetryError),
        ("RequestThrottledException", 400, RetryError),
        ("TooManyRequestsException", 400, RetryError),
        ("BandwidthLimitExceeded", 400, RetryError),
        ("ServerInternal", 500, RetryError),
        ("ConcurrentTagAccess", 400, RetryError),
        ("IDPCommunicationError", 400, RetryError),
        ("MaxIOPSLimitExceeded", 400, QuotaError),
        ("VolumeIOPSLimit", 400, QuotaError),
        ("ResourceCountExceeded", 400, QuotaError),
        ("ServiceQuotaExceededException", 400, QuotaError),
        ("SecurityGroupsPerInterfaceLimitExceeded", 400, QuotaError),
        ("ExpiredTokenException", 403, AuthError),
        ("RequestExpired", 400, AuthError),
        ("MissingAuthenticationToken", 403, AuthError),
        ("InvalidIdentityToken", 400, AuthError),
        ("InvalidGrantException", 400, AuthError),
        ("IncompleteSignature", 400, AuthError),
        ("ForbiddenException", 403, AuthError),
        ("PendingVerification", 400, AuthError),
        ("Odd", 403, AuthError),
        ("InvalidClientToken", 400, InvalidError),
        ("OperationNotPermitted", 400, InvalidError),
        ("VPCIdNotSpecified", 400, InvalidError),
        ("EncryptedVolumesNotSupported", 400, InvalidError),
        ("InstanceCreditSpecification.NotSupported", 400, InvalidError),
        ("UnknownPrincipalType.Unsupported", 400, InvalidError),
        ("VolumeTypeNotAvailableInZone", 400, InvalidError),
        ("InvalidLaunchTemplateName.NotFoundException", 400, InvalidError),
        ("TagPolicyViolation", 400, InvalidError),
        ("IncorrectInstanceState", 400, InvalidError),
        ("Odd", 503, RetryError),
        ("Odd", 500, UnknownError),
    ],
)
def test_each_error_of_ec2_has_a_provider_error(code: str, status: int, error: type[ProviderError]) -> None:
    reply: Any = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    provider_error = explained(ClientError(reply, "RunInstances"), REGION)
    assert type(provider_error) is error
    assert code in str(provider_error)


@pytest.mark.parametrize(
    ("problem", "error"),
    [
        (NoCredentialsError(), AuthError),
        (UnauthorizedSSOTokenError(), AuthError),
        (TokenRetrievalError(provider="sso", error_msg="expired"), AuthError),
        (CredentialRetrievalError(provider="custom-process", error_msg="expired"), AuthError),
        (InvalidConfigError(error_msg="a loop"), AuthError),
        (FileNotFoundError("no such program"), AuthError),
        (RuntimeError("the refreshed credentials are still expired"), AuthError),
        (ReadTimeoutError(endpoint_url="x"), RetryError),
        (ResponseParserError("html"), RetryError),
        (NoRegionError(), InvalidError),
        (ValueError("Invalid endpoint: x y"), InvalidError),
        (BotoCoreError(), UnknownError),
    ],
)
def test_each_failure_before_ec2_has_a_provider_error(problem: Exception, error: type[ProviderError]) -> None:
    assert type(explained(problem, REGION)) is error


@pytest.mark.parametrize(
    "program",
    ["/no/such/program", "/bin/false", "/bin/echo text", "/bin/echo {}", "/bin/sh -c 'echo ended >&2; exit 3'"],
)
async def test_a_credential_process_that_fails_is_an_auth_error(
    harness: Ec2Harness, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (harness.directory / "config").write_text(f"[profile renewed]\ncredential_process = {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(harness.directory / "config"))
    provider = await harness.provider(profile="renewed")
    with pytest.raises(AuthError, check=lambda problem: problem.code == "provider.no_credentials"):
        await provider.list(harness.cluster)
    harness.write_key("NEW")  # the shared file comes before the program
    assert await provider.list(harness.cluster) == ()


@pytest.mark.parametrize(
    ("code", "transition", "notice_at"),
    [
        ("Server.SpotInstanceTermination", "Server.SpotInstanceTermination (2026-11-28 07:00:00 GMT)", 1795849200.0),
        ("Server.SpotInstanceTermination", "", 1795845600.0),
        ("Server.SpotInstanceShutdown", "", 1795845600.0),
        ("Client.InstanceInitiatedShutdown", "User initiated (2026-11-28 07:00:00 GMT)", None),
        ("Server.InternalError", "", None),
        ("", "", None),
    ],
)
def test_a_spot_interruption_is_known_by_its_reason(code: str, transition: str, notice_at: float | None) -> None:
    instance = instance_of(
        REGION,
        {
            "InstanceId": "i-1",
            "State": {"Name": "terminated"},
            "LaunchTime": datetime(2026, 11, 28, 6, tzinfo=UTC),
            "InstanceType": "g6.xlarge",
            "InstanceLifecycle": "spot",
            "StateReason": {"Code": code, "Message": code},
            "StateTransitionReason": transition,
        },
    )
    assert instance.notice_at == notice_at


async def test_a_hanging_region_delays_no_call_in_another(harness: Ec2Harness) -> None:
    provider = await harness.provider(regions=(REGION, OTHER_REGION), calls_at_once=1)
    harness.server.hanging_regions.add(OTHER_REGION)
    try:
        listings = [asyncio.create_task(provider.list(harness.cluster)) for _ in range(3)]
        handle = await provider.launch(harness.spec(region=REGION), launch_id())
        await retire(harness, provider, handle.launch_id)
        assert not any(listing.done() for listing in listings)
    finally:
        harness.server.hanging_regions.clear()
    first, *_ = [unread_places(instances) for instances in await asyncio.gather(*listings)]
    assert list(first) == [f"{OTHER_REGION}/"]


async def test_a_region_that_answers_too_late_is_silent(harness: Ec2Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maintainer.fleet.providers.ec2.provider.REGION_S", 0.0)
    with pytest.raises(RetryError, check=lambda problem: problem.code == "provider.no_answer"):
        await (await harness.provider()).list(harness.cluster)


async def test_an_instance_that_ec2_has_just_forgotten_is_not_an_error(harness: Ec2Harness) -> None:
    provider, launch = await harness.provider(), launch_id()
    await provider.launch(harness.spec(), launch)
    ended = await provider._calls.call(REGION, lambda ec2: _terminated(ec2, ("i-0123456789abcdef0",)))
    assert not ended
    await retire(harness, provider, launch)


def test_an_invalid_configuration_is_refused_with_valid_values() -> None:
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
    for change, message in wrong:
        with raises_code(InvalidInput, "config.invalid", message):
            providers.check(good | change)


@pytest.mark.parametrize("wrong", ["", "a*", "a?", "a b", "x" * 65])
async def test_an_invalid_launch_id_is_refused(harness: Ec2Harness, wrong: str) -> None:
    provider = await harness.provider()
    with pytest.raises(InvalidError, check=lambda problem: problem.code == "provider.invalid_launch_id"):
        await provider.launch(harness.spec(), wrong)
    with pytest.raises(InvalidError, check=lambda problem: problem.code == "provider.invalid_launch_id"):
        await provider.retire(wrong)


@pytest.mark.long
async def test_a_manually_stopped_instance_is_terminating(harness: Ec2Harness) -> None:
    provider, launch = await harness.provider(), launch_id()
    handle = await provider.launch(harness.spec(), launch)
    harness.machine(launch)
    harness.server.client(REGION).stop_instances(InstanceIds=harness.ids(launch))
    assert (await provider.describe(handle)).state is State.TERMINATING
    assert await provider.retire(launch) in (RetireResult.TERMINATING, RetireResult.GONE)


async def test_incomplete_tags_are_ignored(harness: Ec2Harness) -> None:
    provider, spec = await harness.provider(), harness.spec()
    handle = await provider.launch(replace(spec, tags=replace(spec.tags, pool="p" * 64)), launch_id())
    key: Any = [{"Key": "astraflow:run"}]
    harness.server.client(REGION).delete_tags(Resources=[handle.id.partition("/")[2]], Tags=key)
    assert (await provider.describe(handle)).tags is None


async def _holds(claim: Any) -> None:
    deadline = time.monotonic() + GIVE_UP_S
    while not claim():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
