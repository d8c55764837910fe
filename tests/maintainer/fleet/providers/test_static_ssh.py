"""The SSH provider satisfies the provider interface, with two Debian SSH servers on loopback as hosts."""

import asyncio
import json
import os
import shlex
import shutil
import signal
import tomllib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import SystemClock
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    AuthError,
    CapacityError,
    InvalidError,
    LaunchSpec,
    Provider,
    ProviderError,
    RetireResult,
    RetryError,
    State,
    UnknownError,
    unread_places,
)
from maintainer.fleet.providers.static_ssh.provider import StaticSsh, StaticSshOptions
from maintainer.testing.provider_harness import CANARY, ProviderHarness, launch_id, launches, listed, retire, until
from maintainer.testing.provider_requests import RequestSuite
from maintainer.testing.provider_suite import LifecycleSuite
from tests.errors import raises_code
from tests.fakes.ssh_server import SshServer, serving_ssh
from tests.maintainer.fleet.providers.test_local_process import SLEEPER

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.needs("sshd"),
]

_numbers = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Two hosts and their login key."""

    one: SshServer
    other: SshServer
    key_file: Path
    known_hosts: Path


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp("lab")
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(str(directory / "key"))
    with serving_ssh(directory / "one", key=key) as host, serving_ssh(directory / "other", key=key) as other_host:
        (directory / "known_hosts").write_text(host.known_host() + other_host.known_host())
        key.write_public_key(str(directory / "key.pub"))
        yield Lab(one=host, other=other_host, key_file=directory / "key", known_hosts=directory / "known_hosts")


class SshHarness(ProviderHarness):
    """Provider harness with a folder of machines on each of the two hosts."""

    def __init__(self, lab: Lab, directory: Path, *, capacity: int = 8) -> None:
        self.lab = lab
        self.directory = directory
        self.capacity = capacity
        self.name = f"machines-{next(_numbers)}"
        self._made: list[StaticSsh] = []

    async def provider(self, *, only: tuple[str, ...] = ("one", "other"), **options: Any) -> StaticSsh:
        servers = {"one": self.lab.one, "other": self.lab.other}
        hosts = {
            name: {
                "address": "127.0.0.1",
                "port": servers[name].port,
                "capacity": self.capacity,
                "type": "large" if name == "other" else "small",
                "region": "here",
                "usd_per_hour": 2.0,
            }
            for name in only
        }
        defaults = {
            "hosts": hosts,
            "known_hosts": self.lab.known_hosts,
            "key_files": (self.lab.key_file,),
            "directory": f"~/{self.name}",
            "program": SLEEPER,
            "grace_s": 5.0,
        }
        provider = StaticSsh(
            StaticSshOptions.parse(defaults | options, where=""), clock=SystemClock(), directory=self.directory
        )
        self._made.append(provider)
        return provider

    async def lose(self, launch_id: str) -> None:
        os.killpg(self.pid(launch_id), signal.SIGKILL)

    async def pause(self) -> None:
        """Lets more time pass than elsewhere: each question to a host starts an interpreter there."""
        await asyncio.sleep(0.1)

    async def failing(self, error: type[ProviderError]) -> Provider | None:
        if error is AuthError:
            stranger = self.lab.key_file.with_name("stranger")
            asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(stranger))
            return await self.provider(key_files=(stranger,))
        if error is RetryError:
            hosts = {"one": {"address": "127.0.0.1", "port": 1}}
            return await self.provider(hosts=hosts)
        if error is CapacityError:
            hosts = {"one": {"address": "127.0.0.1", "port": self.lab.one.port, "capacity": 0}}
            return await self.provider(hosts=hosts)
        if error is UnknownError:
            return await self.provider(directory="/proc/not-writable")
        return None

    async def duplicate(self, launch_id: str) -> bool:
        """Launches again on the other host, as when the first host was unreachable."""
        (folder,) = self.places(launch_id)
        held_by_one = folder.is_relative_to(self.lab.one.home)
        alone = await self.provider(only=("other",) if held_by_one else ("one",))
        await alone.launch(self.spec(), launch_id)
        return True

    async def renewable(self) -> Provider | None:
        self._accept("old")
        return await self.provider(key_files=(self.directory.with_name("key"),))

    async def expire(self) -> None:
        for server in (self.lab.one, self.lab.other):
            shutil.copy(self.lab.key_file.with_name("key.pub"), server.directory / "authorized_keys")
        for provider in self._made:
            await provider.close()  # the servers end the sessions of the key

    async def renew(self) -> None:
        self._accept("new")

    def _accept(self, name: str) -> None:
        """Makes another key, which both hosts accept."""
        self.directory.mkdir(exist_ok=True)
        key = asyncssh.generate_private_key("ssh-ed25519", comment=name)
        key.write_private_key(str(self.directory.with_name("key")))
        for server in (self.lab.one, self.lab.other):
            key.append_public_key(str(server.directory / "authorized_keys"))

    async def two_places(self) -> tuple[Provider, LaunchSpec, LaunchSpec] | None:
        return await self.provider(), self.spec(type="small"), self.spec(type="large")

    async def silence_second(self) -> Provider:
        hosts = {
            "one": {"address": "127.0.0.1", "port": self.lab.one.port},
            "other": {"address": "127.0.0.1", "port": 1},
        }
        return await self.provider(hosts=hosts)

    async def removed_place(self) -> tuple[Provider, Provider, LaunchSpec] | None:
        return await self.provider(), await self.provider(only=("one",)), self.spec(type="large")

    def wrong_spec(self) -> LaunchSpec | None:
        return self.spec(type="enormous")

    def captured_output(self) -> str:
        files = [path for host in self.homes() for path in host.rglob("*") if path.is_file()]
        files += [server.directory / "log" for server in (self.lab.one, self.lab.other)]
        lines = [Path(f"/proc/{self.pid(folder.name)}/cmdline") for folder in self.places("01*")]
        return "".join(path.read_text(errors="replace") for path in [*files, *lines])

    def homes(self) -> list[Path]:
        return [server.home / self.name for server in (self.lab.one, self.lab.other)]

    def places(self, pattern: str) -> list[Path]:
        return [path for host in self.homes() for path in host.glob(pattern)]

    def pid(self, launch_id: str) -> int:
        (folder,) = self.places(launch_id)
        return int(json.loads((folder / "machine.json").read_text())["pid"])

    async def end(self) -> None:
        """Ends all machines that a test left running, and closes all connections."""
        provider = await self.provider()
        for cluster in (self.cluster, "strangers"):
            for instance in await provider.list(cluster):
                await retire(self, provider, instance.handle.launch_id)
        for own_provider in self._made:
            await own_provider.close()


@pytest.fixture
async def harness(lab: Lab, tmp_path: Path) -> AsyncIterator[SshHarness]:
    harness = SshHarness(lab, tmp_path / "own")
    try:
        yield harness
    finally:
        await harness.end()


class TestStaticSsh(RequestSuite):
    """Runs the provider suite with sleeping processes on two hosts."""


@pytest.mark.long
class TestStaticSshLifecycle(LifecycleSuite):
    """Runs the provider suite with sleeping processes on two hosts."""


@pytest.mark.long
async def test_a_node_gets_its_token_by_environment_and_survives_the_connection(harness: SshHarness) -> None:
    provider, launch = await harness.provider(), launch_id()
    handle = await provider.launch(harness.spec(), launch)
    await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
    await provider.close()
    environment = Path(f"/proc/{harness.pid(launch)}/environ").read_text()
    assert f"ASTRAFLOW_TOKEN={CANARY}\0" in environment
    assert "SSH_CONNECTION" not in environment
    assert os.getsid(harness.pid(launch)) == harness.pid(launch)


@pytest.mark.long
async def test_hosts_are_filled_up_to_their_capacity(harness: SshHarness, lab: Lab) -> None:
    hosts = {
        "one": {"address": "127.0.0.1", "port": lab.one.port, "capacity": 1},
        "other": {"address": "127.0.0.1", "port": lab.other.port, "capacity": 2},
    }
    provider = await harness.provider(hosts=hosts)
    handles = await asyncio.gather(*(provider.launch(harness.spec(), launch_id()) for _ in range(3)))
    assert sorted(handle.id.partition(":")[0] for handle in handles) == ["one", "other", "other"]
    late = launch_id()
    with pytest.raises(CapacityError) as caught:
        await provider.launch(harness.spec(), late)
    assert caught.value.code == "provider.no_free_slot"
    await retire(harness, provider, handles[0].launch_id)
    assert (await provider.launch(harness.spec(), late)).launch_id == late


@pytest.mark.long
async def test_a_pool_chooses_hosts_by_type_and_region(harness: SshHarness) -> None:
    provider = await harness.provider()
    handles = [await provider.launch(harness.spec(type="large", region="here"), launch_id()) for _ in range(3)]
    assert {handle.id.partition(":")[0] for handle in handles} == {"other"}
    with raises_code(InvalidError, "provider.no_matching_host", "'there'"):
        await provider.launch(harness.spec(region="there"), launch_id())


async def test_spot_and_pool_options_are_refused(harness: SshHarness) -> None:
    provider = await harness.provider()
    with pytest.raises(InvalidError, match="is_spot"):
        await provider.launch(harness.spec(is_spot=True), launch_id())
    with raises_code(InvalidError, "provider.invalid_pool_options", "colour"):
        await provider.launch(harness.spec(options={"colour": "red"}), launch_id())


@pytest.mark.long
async def test_a_host_with_an_unknown_key_is_refused(harness: SshHarness, lab: Lab, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(lab.one.known_host().replace(str(lab.one.port), "22"))
    provider = await harness.provider(known_hosts=known)
    with pytest.raises(AuthError) as caught:
        await provider.launch(harness.spec(), launch_id())
    assert caught.value.code == "provider.unknown_host_key"
    assert harness.places("*") == []


async def test_a_host_with_another_key_is_refused(harness: SshHarness, lab: Lab, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    swapped = lab.other.known_host().replace(str(lab.other.port), str(lab.one.port))
    known.write_text(swapped)
    provider = await harness.provider(known_hosts=known, only=("one",))
    with raises_code(AuthError, "provider.unknown_host_key"):
        await provider.launch(harness.spec(), launch_id())
    assert harness.places("*") == []


async def test_while_a_host_is_unreachable_others_take_launches_and_the_list_is_partial(
    harness: SshHarness, lab: Lab
) -> None:
    hosts = {
        "one": {"address": "127.0.0.1", "port": lab.one.port, "capacity": 8},
        "away": {"address": "127.0.0.1", "port": 1, "capacity": 8},
    }
    provider, wanted = await harness.provider(hosts=hosts), [launch_id() for _ in range(3)]
    handles = [await provider.launch(harness.spec(), launch) for launch in wanted]
    assert {handle.id for handle in handles} == {f"one:{launch}" for launch in wanted}
    instances = await provider.list(harness.cluster)
    assert sorted(instance.handle.launch_id for instance in instances) == wanted
    assert list(unread_places(instances)) == ["away:"]
    with raises_code(RetryError, "provider.host_unreachable"):
        await provider.retire(launch_id())  # it may run on the unreachable host
    await retire(harness, provider, wanted[0])  # found on a reachable host
    assert await launches(harness, await harness.provider(), wait_for=2) == wanted[1:]


@pytest.mark.long
async def test_a_second_claim_is_withdrawn_and_the_first_is_used(harness: SshHarness) -> None:
    first, second = await harness.provider(only=("one",)), await harness.provider(only=("other",))
    launch, spec = launch_id(), harness.spec()
    claims = [
        await provider._claim([name], launch, provider._order(spec, launch))  # both checked and found no claim
        for provider, name in ((first, "one"), (second, "other"))
    ]
    assert [claim[1]["is_new"] for claim in claims if claim is not None] == [True, True]
    both = await harness.provider()
    assert not await both._is_only_claim("one", launch)
    assert await both._is_only_claim("other", launch)
    handle = await both.launch(spec, launch)
    assert handle.id == f"other:{launch}"
    assert await launches(harness, both) == [launch]


@pytest.mark.long
async def test_a_started_claim_is_not_withdrawn(harness: SshHarness) -> None:
    provider, launch, spec = await harness.provider(only=("one",)), launch_id(), harness.spec()
    await provider.launch(spec, launch)
    await harness.duplicate(launch)
    assert await (await harness.provider())._is_only_claim("one", launch)
    assert await launches(harness, await harness.provider(), wait_for=2) == [launch, launch]


@pytest.mark.long
async def test_a_claim_is_started_by_the_repeated_launch(harness: SshHarness) -> None:
    provider, launch, spec = await harness.provider(), launch_id(), harness.spec()
    claim = await provider._claim(["one"], launch, provider._order(spec, launch))  # simulates a crash before the start
    assert claim is not None
    (instance,) = await listed(harness, provider)
    assert (instance.state, instance.handle.id) == (State.PENDING, f"one:{launch}")
    handle = await (await harness.provider()).launch(spec, launch)
    await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
    assert len(await listed(harness, provider)) == 1


@pytest.mark.long
async def test_a_node_reads_preemption_notices_from_its_folder(harness: SshHarness) -> None:
    provider, launch = await harness.provider(), launch_id()
    await provider.launch(harness.spec(), launch)
    (folder,) = harness.places(launch)
    argv = json.loads((folder / "order.json").read_text())["argv"]
    option, table = argv[-2:]
    assert option == "--preemption"
    assert tomllib.loads(f"source = {table}")["source"] == {"kind": "file", "path": f"{folder}/notice.json"}
    assert argv[: len(SLEEPER) + 2] == [*SLEEPER, "join", "127.0.0.1:1"]


async def test_a_broken_connection_is_opened_again(harness: SshHarness) -> None:
    provider, launch = await harness.provider(), launch_id()
    handle = await provider.launch(harness.spec(), launch)
    for link in provider._links.values():
        assert link._connection is not None
        link._connection.abort()
    assert (await provider.describe(handle)).state is not State.GONE


async def test_a_host_without_python_is_reported(harness: SshHarness) -> None:
    provider = await harness.provider(python="missing-python")
    with pytest.raises(InvalidError) as caught:
        await provider.launch(harness.spec(), launch_id())
    assert caught.value.code == "provider.python_missing"


@pytest.mark.long
async def test_a_folder_writable_by_others_is_refused(harness: SshHarness) -> None:
    for home in harness.homes():
        home.mkdir()
        home.chmod(0o777)
    with raises_code(UnknownError, "provider.host_error"):
        await (await harness.provider()).launch(harness.spec(), launch_id())
    for home in harness.homes():
        home.chmod(0o700)


@pytest.mark.parametrize("wrong", ["", "../up", "; touch x", "$(touch x)", "a b", "x" * 65])
async def test_an_invalid_launch_id_is_refused(harness: SshHarness, wrong: str) -> None:
    with raises_code(InvalidError, "provider.invalid_request"):
        await (await harness.provider()).launch(harness.spec(), wrong)


@pytest.mark.long
async def test_the_remote_command_contains_nothing_of_the_request(harness: SshHarness, lab: Lab) -> None:
    provider, launch = await harness.provider(), launch_id()
    spec = harness.spec()
    await provider.launch(spec, launch)
    (link, *_) = provider._links.values()
    words = shlex.split(link._command)
    assert words[:4] == ["python3", "-I", "-S", "-c"]
    assert len(words) == 5
    assert not [word for word in (launch, spec.tags.pool + ":", CANARY) if word in link._command]


async def test_a_preflight_check_calls_the_hosts_and_starts_nothing(harness: SshHarness) -> None:
    provider = await harness.provider()
    assert "2 hosts answer" in await provider.preflight(harness.spec())
    assert await provider.list(harness.cluster) == ()
    failing = await harness.failing(AuthError)
    assert isinstance(failing, StaticSsh)
    with pytest.raises(AuthError):
        await failing.preflight(harness.spec())


@pytest.mark.long
async def test_a_second_retire_ends_a_node_that_ignores_the_first(harness: SshHarness, tmp_path: Path) -> None:
    deaf = tmp_path / "deaf.py"
    deaf.write_text("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()\n")
    provider, launch = await harness.provider(grace_s=0.2, program=(SLEEPER[0], "-S", str(deaf))), launch_id()
    handle = await provider.launch(harness.spec(), launch)
    await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
    assert await provider.retire(launch) is RetireResult.TERMINATING
    await until(harness, provider, handle, lambda instance: instance.state is State.GONE)


def test_an_invalid_configuration_is_refused_with_valid_values(lab: Lab, tmp_path: Path) -> None:
    host = {"one": {"address": "127.0.0.1"}}
    good: dict[str, Any] = {"kind": "static_ssh", "hosts": host, "known_hosts": lab.known_hosts}
    providers.check(good)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"known_hosts": tmp_path / "absent"}, "ssh-keyscan"),
        ({"program": ("astraflow",)}, "absolute path"),
        ({"hosts": {}}, "hosts"),
        ({"hosts": {"a b": {"address": "x"}}}, "not a valid name"),
        ({"hosts": {"one": {"addr": "x"}}}, "address"),
    ]
    for change, message in wrong:
        with raises_code(InvalidInput, "config.invalid", message):
            providers.check(good | change)
    without = {key: value for key, value in good.items() if key != "known_hosts"}
    with raises_code(InvalidInput, "config.invalid", "known_hosts"):
        providers.check(without)


@pytest.fixture(scope="module", autouse=True)
def check_no_folder_is_left(lab: Lab) -> Iterator[None]:
    yield
    for server in (lab.one, lab.other):
        shutil.rmtree(server.home)
