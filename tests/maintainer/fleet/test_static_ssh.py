"""Hosts over SSH keep the port's promises; two of Debian's SSH servers on loopback are the hosts."""

import asyncio
import json
import os
import shlex
import shutil
import signal
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
    Auth,
    Capacity,
    Invalid,
    LaunchSpec,
    Provider,
    ProviderError,
    Retired,
    Retry,
    State,
    Unknown,
)
from maintainer.fleet.providers.static_ssh import StaticSsh, StaticSshOptions
from tests.fakes.ssh_server import SshServer, serving_ssh
from tests.maintainer.fleet.test_local_process import SLEEPER
from tests.suites.provider import CANARY, ProviderSuite, World, launch_id, launches, listed, retire, until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.needs("sshd"),
]

_numbers = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Two hosts, and the key that opens them."""

    one: SshServer
    other: SshServer
    key_file: Path
    known_hosts: Path


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    place = tmp_path_factory.mktemp("lab")
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(str(place / "key"))
    with serving_ssh(place / "one", key=key) as one, serving_ssh(place / "other", key=key) as other:
        (place / "known_hosts").write_text(one.known_host() + other.known_host())
        yield Lab(one=one, other=other, key_file=place / "key", known_hosts=place / "known_hosts")


class SshWorld(World):
    """A folder of machines on each of the two hosts."""

    def __init__(self, lab: Lab, *, capacity: int = 8) -> None:
        self.lab = lab
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
        given = {
            "hosts": hosts,
            "known_hosts": self.lab.known_hosts,
            "key_files": (self.lab.key_file,),
            "directory": f"~/{self.name}",
            "program": SLEEPER,
            "grace_s": 5.0,
        }
        made = StaticSsh(StaticSshOptions.parse(given | options, where=""), clock=SystemClock(), directory=Path())
        self._made.append(made)
        return made

    async def lose(self, launch_id: str) -> None:
        os.killpg(self.pid(launch_id), signal.SIGKILL)

    async def failing(self, error: type[ProviderError]) -> Provider | None:
        if error is Auth:
            stranger = self.lab.key_file.with_name("stranger")
            asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(stranger))
            return await self.provider(key_files=(stranger,))
        if error is Retry:
            hosts = {"one": {"address": "127.0.0.1", "port": 1}}
            return await self.provider(hosts=hosts)
        if error is Capacity:
            hosts = {"one": {"address": "127.0.0.1", "port": self.lab.one.port, "capacity": 0}}
            return await self.provider(hosts=hosts)
        if error is Unknown:
            return await self.provider(directory="/proc/nobody-writes-here")
        return None

    async def duplicate(self, launch_id: str) -> bool:
        """As where a host was away while its launch was asked for again."""
        (place,) = self.places(launch_id)
        held_by_one = place.is_relative_to(self.lab.one.home)
        alone = await self.provider(only=("other",) if held_by_one else ("one",))
        await alone.launch(self.spec(), launch_id)
        return True

    def wrong_spec(self) -> LaunchSpec | None:
        return self.spec(type="enormous")

    def spoken(self) -> str:
        files = [path for host in self.homes() for path in host.rglob("*") if path.is_file()]
        files += [server.directory / "log" for server in (self.lab.one, self.lab.other)]
        lines = [Path(f"/proc/{self.pid(place.name)}/cmdline") for place in self.places("01*")]
        return "".join(path.read_text(errors="replace") for path in [*files, *lines])

    def homes(self) -> list[Path]:
        return [server.home / self.name for server in (self.lab.one, self.lab.other)]

    def places(self, pattern: str) -> list[Path]:
        return [path for host in self.homes() for path in host.glob(pattern)]

    def pid(self, launch_id: str) -> int:
        (place,) = self.places(launch_id)
        return int(json.loads((place / "machine.json").read_text())["pid"])

    async def end(self) -> None:
        """Whatever a test left running is ended, and all connections."""
        provider = await self.provider()
        for cluster in (self.cluster, "strangers"):
            for instance in await provider.list(cluster):
                await retire(self, provider, instance.handle.launch_id)
        for made in self._made:
            await made.close()


@pytest.fixture
async def world(lab: Lab) -> AsyncIterator[SshWorld]:
    world = SshWorld(lab)
    try:
        yield world
    finally:
        await world.end()


class TestStaticSsh(ProviderSuite):
    """The suite, on processes that sleep on two hosts."""


async def test_a_node_gets_its_token_in_its_environment_and_outlives_the_connection(world: SshWorld) -> None:
    provider, launch = await world.provider(), launch_id()
    handle = await provider.launch(world.spec(), launch)
    await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
    await provider.close()
    environment = Path(f"/proc/{world.pid(launch)}/environ").read_text()
    assert f"ASTRAFLOW_TOKEN={CANARY}\0" in environment
    assert "SSH_CONNECTION" not in environment
    assert os.getsid(world.pid(launch)) == world.pid(launch)


async def test_hosts_are_filled_up_to_their_capacity_and_no_further(world: SshWorld, lab: Lab) -> None:
    hosts = {
        "one": {"address": "127.0.0.1", "port": lab.one.port, "capacity": 1},
        "other": {"address": "127.0.0.1", "port": lab.other.port, "capacity": 2},
    }
    provider = await world.provider(hosts=hosts)
    handles = await asyncio.gather(*(provider.launch(world.spec(), launch_id()) for _ in range(3)))
    assert sorted(handle.id.partition(":")[0] for handle in handles) == ["one", "other", "other"]
    late = launch_id()
    with pytest.raises(Capacity, match="no host has room"):
        await provider.launch(world.spec(), late)
    await retire(world, provider, handles[0].launch_id)
    assert (await provider.launch(world.spec(), late)).launch_id == late


async def test_a_pool_chooses_hosts_by_type_and_region(world: SshWorld) -> None:
    provider = await world.provider()
    handles = [await provider.launch(world.spec(type="large", region="here"), launch_id()) for _ in range(3)]
    assert {handle.id.partition(":")[0] for handle in handles} == {"other"}
    with pytest.raises(Invalid, match=r"region 'there'.*here"):
        await provider.launch(world.spec(region="there"), launch_id())


async def test_hosts_are_no_spot_machines_and_know_no_options(world: SshWorld) -> None:
    provider = await world.provider()
    with pytest.raises(Invalid, match="is_spot"):
        await provider.launch(world.spec(is_spot=True), launch_id())
    with pytest.raises(Invalid, match="colour"):
        await provider.launch(world.spec(options={"colour": "red"}), launch_id())


async def test_a_host_whose_key_is_not_known_is_not_talked_to(world: SshWorld, lab: Lab, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(lab.one.known_host().replace(str(lab.one.port), "22"))
    provider = await world.provider(known_hosts=known)
    with pytest.raises(Auth, match=r"not who .*known_hosts says"):
        await provider.launch(world.spec(), launch_id())
    assert world.places("*") == []


async def test_a_host_with_another_key_is_not_talked_to(world: SshWorld, lab: Lab, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    swapped = lab.other.known_host().replace(str(lab.other.port), str(lab.one.port))
    known.write_text(swapped)
    provider = await world.provider(known_hosts=known, only=("one",))
    with pytest.raises(Auth, match="host one"):
        await provider.launch(world.spec(), launch_id())
    assert world.places("*") == []


async def test_while_a_host_is_away_others_take_launches_and_no_list_is_had(world: SshWorld, lab: Lab) -> None:
    hosts = {
        "one": {"address": "127.0.0.1", "port": lab.one.port, "capacity": 8},
        "away": {"address": "127.0.0.1", "port": 1, "capacity": 8},
    }
    provider, wanted = await world.provider(hosts=hosts), [launch_id() for _ in range(3)]
    handles = [await provider.launch(world.spec(), launch) for launch in wanted]
    assert {handle.id for handle in handles} == {f"one:{launch}" for launch in wanted}
    with pytest.raises(Retry, match="host away"):
        await provider.list(world.cluster)
    with pytest.raises(Retry, match="host away"):
        await provider.retire(launch_id())  # it may be there
    await retire(world, provider, wanted[0])  # it was found elsewhere
    assert await launches(world, await world.provider(), wait_for=2) == wanted[1:]


async def test_a_claim_beside_anothers_is_withdrawn_and_the_others_is_used(world: SshWorld) -> None:
    one, other = await world.provider(only=("one",)), await world.provider(only=("other",))
    launch, spec = launch_id(), world.spec()
    claims = [
        await provider._claimed([name], launch, provider._order(spec, launch))  # both looked, and saw none
        for provider, name in ((one, "one"), (other, "other"))
    ]
    assert [claim[1]["is_new"] for claim in claims if claim is not None] == [True, True]
    both = await world.provider()
    assert not await both._stands_alone("one", launch)
    assert await both._stands_alone("other", launch)
    handle = await both.launch(spec, launch)
    assert handle.id == f"other:{launch}"
    assert await launches(world, both) == [launch]


async def test_what_was_started_is_not_withdrawn(world: SshWorld) -> None:
    one, launch, spec = await world.provider(only=("one",)), launch_id(), world.spec()
    await one.launch(spec, launch)
    await world.duplicate(launch)
    assert await (await world.provider())._stands_alone("one", launch)
    assert await launches(world, await world.provider(), wait_for=2) == [launch, launch]


async def test_a_claim_that_was_never_started_is_started_by_the_next_launch(world: SshWorld) -> None:
    provider, launch, spec = await world.provider(), launch_id(), world.spec()
    claim = await provider._claimed(["one"], launch, provider._order(spec, launch))  # the crash comes here
    assert claim is not None
    (seen,) = await listed(world, provider)
    assert (seen.state, seen.handle.id) == (State.PENDING, f"one:{launch}")
    handle = await (await world.provider()).launch(spec, launch)
    await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
    assert len(await listed(world, provider)) == 1


async def test_a_notice_in_a_nodes_folder_is_where_it_looks(world: SshWorld) -> None:
    provider, launch = await world.provider(), launch_id()
    await provider.launch(world.spec(), launch)
    (place,) = world.places(launch)
    argv = json.loads((place / "order.json").read_text())["argv"]
    assert argv[-2:] == ["--preemption", f"{{ kind = 'file', path = '{place}/notice.json' }}"]
    assert argv[: len(SLEEPER) + 2] == [*SLEEPER, "join", "127.0.0.1:1"]


async def test_a_connection_that_broke_is_made_anew(world: SshWorld) -> None:
    provider, launch = await world.provider(), launch_id()
    handle = await provider.launch(world.spec(), launch)
    for link in provider._links.values():
        assert link._connection is not None
        link._connection.abort()
    assert (await provider.describe(handle)).state is not State.GONE


async def test_a_host_without_python_says_so(world: SshWorld) -> None:
    provider = await world.provider(python="python-of-nobody")
    with pytest.raises(Invalid, match=r"no such Python.*3.11"):
        await provider.launch(world.spec(), launch_id())


async def test_a_folder_that_others_may_write_to_is_not_used(world: SshWorld) -> None:
    for home in world.homes():
        home.mkdir()
        home.chmod(0o777)
    with pytest.raises(Unknown, match="nobody else may write"):
        await (await world.provider()).launch(world.spec(), launch_id())
    for home in world.homes():
        home.chmod(0o700)


@pytest.mark.parametrize("wrong", ["", "../up", "; touch x", "$(touch x)", "a b", "x" * 65])
async def test_an_id_that_is_no_name_is_refused(world: SshWorld, wrong: str) -> None:
    with pytest.raises(Invalid, match="no launch id"):
        await (await world.provider()).launch(world.spec(), wrong)


async def test_nothing_that_is_asked_for_is_ever_part_of_the_command(world: SshWorld, lab: Lab) -> None:
    provider, launch = await world.provider(), launch_id()
    spec = world.spec()
    await provider.launch(spec, launch)
    (link, *_) = provider._links.values()
    words = shlex.split(link._command)
    assert words[:4] == ["python3", "-I", "-S", "-c"]
    assert len(words) == 5
    assert not [word for word in (launch, spec.tags.pool + ":", CANARY) if word in link._command]


async def test_a_rehearsal_asks_the_hosts_and_starts_nothing(world: SshWorld) -> None:
    provider = await world.provider()
    assert "2 hosts answer" in await provider.rehearse(world.spec())
    assert await provider.list(world.cluster) == ()
    failing = await world.failing(Auth)
    assert isinstance(failing, StaticSsh)
    with pytest.raises(Auth):
        await failing.rehearse(world.spec())


async def test_retiring_twice_ends_a_node_that_does_not_listen(world: SshWorld, tmp_path: Path) -> None:
    deaf = tmp_path / "deaf.py"
    deaf.write_text("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()\n")
    provider, launch = await world.provider(grace_s=0.2, program=(SLEEPER[0], "-S", str(deaf))), launch_id()
    handle = await provider.launch(world.spec(), launch)
    await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
    assert await provider.retire(launch) is Retired.GOING
    await until(world, provider, handle, lambda seen: seen.state is State.GONE)


def test_a_wrong_configuration_is_refused_with_what_would_work(lab: Lab, tmp_path: Path) -> None:
    host = {"one": {"address": "127.0.0.1"}}
    good: dict[str, Any] = {"kind": "static_ssh", "hosts": host, "known_hosts": lab.known_hosts}
    providers.check(good)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"known_hosts": tmp_path / "absent"}, "ssh-keyscan"),
        ({"program": ("astraflow",)}, "absolute path"),
        ({"hosts": {}}, "hosts"),
        ({"hosts": {"a b": {"address": "x"}}}, "not a name"),
        ({"hosts": {"one": {"addr": "x"}}}, "address"),
    ]
    for change, said in wrong:
        with pytest.raises(InvalidInput, match=said):
            providers.check(good | change)
    without = {key: value for key, value in good.items() if key != "known_hosts"}
    with pytest.raises(InvalidInput, match="known_hosts: missing"):
        providers.check(without)


@pytest.fixture(scope="module", autouse=True)
def _no_home_is_left(lab: Lab) -> Iterator[None]:
    yield
    for server in (lab.one, lab.other):
        shutil.rmtree(server.home)
