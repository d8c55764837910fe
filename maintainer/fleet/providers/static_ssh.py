"""Your own hosts, over SSH: each runs as many nodes as it has room for.

A node runs as on a machine of its own: in a folder on its host that says what it is for, under a process that outlives
the connection (`machine_folders.py`, sent to the host). Nothing is kept here, so several fleet services may share the
hosts. A launch takes two steps: a place is claimed on a host, then, if no other host holds the same launch, the node is
started. Where two processes claim one launch on two hosts at once, whoever sees the other's claim gives up its own.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Name
from astraflow.runtime.clock import Clock
from astraflow.runtime.config import Config, nearest
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    Auth,
    Capabilities,
    Capacity,
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
from maintainer.fleet.providers.local_process import instance_of
from maintainer.fleet.providers.ssh_link import SshLink

KIND = "static_ssh"

_ROUNDS = 3
"""Two processes that give way to each other try again so often."""


class HostConfig(Config):
    """One host."""

    address: str
    """Name or address under which SSH reaches it, and under which its key is known."""
    port: int = Field(default=22, ge=1, le=65535)
    """Of its SSH server."""
    user: str = ""
    """Who the nodes run as; this provider's `user` when empty."""
    capacity: int = Field(default=1, ge=0)
    """Nodes that it runs at once; 0 starts no more on it."""
    type: str = "host"
    """A name for what it is: pools ask for it by `type`."""
    region: str = ""
    """Where it stands: pools ask for it by `region`."""
    usd_per_hour: float = Field(default=0.0, ge=0)
    """What one node on it costs, in US dollars."""


class StaticSshOptions(Config):
    """Which hosts there are, and how they are reached."""

    hosts: dict[str, HostConfig] = Field(min_length=1)
    """By a name of your own, which stands in handles: keep it for as long as nodes run there."""
    known_hosts: Path
    """File with the hosts' keys, as of OpenSSH: a host whose key is not in it, or is another, is not talked to."""
    user: str = ""
    """Who the nodes run as; the fleet service's own user when empty."""
    key_files: tuple[Path, ...] = ()
    """Private keys to show (PEM or OpenSSH); what an agent has, and the usual files, when empty."""
    directory: str = "~/.local/state/astraflow/machines"
    """On the hosts: where nodes are kept track of."""
    python: str = "python3"
    """On the hosts: Python 3.11 or later, for keeping track."""
    program: tuple[str, ...] = ("/opt/astraflow/bin/astraflow",)
    """On the hosts: what stands before `join ADDRESS ...` in the node's command line; the first is a path."""
    grace_s: float = Field(default=10.0, gt=0)
    """From asking a node to end until it is killed."""
    kept_s: float = Field(default=24 * 3600.0, ge=0)
    """The folder of a node that is gone is kept so long, for its log."""
    timeout_s: float = Field(default=15.0, gt=0)
    """A host that does not answer for so long is away."""

    @field_validator("hosts")
    @classmethod
    def _have_names(cls, value: dict[str, HostConfig]) -> dict[str, HostConfig]:
        for name in value:
            try:
                Name(name)
            except InvalidInput as problem:
                raise ValueError(str(problem)) from None
        return value

    @model_validator(mode="after")
    def _can_be_run(self) -> "StaticSshOptions":
        if not self.program or not self.program[0].startswith("/"):
            raise ValueError("the program is a list that begins with an absolute path")
        if not self.known_hosts.is_file():
            raise ValueError(f"known_hosts: {self.known_hosts} is no file; `ssh-keyscan` writes one, to be checked")
        return self


@providers.register(KIND, options=StaticSshOptions)
class StaticSsh:
    """Hosts that are there anyway."""

    def __init__(self, options: StaticSshOptions, *, clock: Clock, directory: Path) -> None:
        self._options = options
        self._links = {name: self._link(name, host) for name, host in options.hosts.items()}

    async def launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        """Claim a place, look whether it is the only one, then start."""
        candidates = self._candidates(spec, launch_id)
        for _ in range(_ROUNDS):
            holders = await self._holders(launch_id)
            claimed = await self._claimed(holders or candidates, launch_id, self._order(spec, launch_id))
            if claimed is None:
                continue  # a place that had been claimed and never used was taken by another launch
            host, answer = claimed
            if answer["fingerprint"] != fingerprint(spec):
                raise Invalid(f"launch {launch_id} was made with another spec: a launch id stands for one instance")
            if answer["is_new"] and not await self._stands_alone(host, launch_id):
                continue
            if (await self._ask(host, "start", launch_id=launch_id, token=spec.token))["is_started"]:
                return Handle(provider=KIND, id=f"{host}:{launch_id}", launch_id=launch_id)
        raise Retry(f"launch {launch_id} was claimed and withdrawn by others {_ROUNDS} times: ask again")

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> Retired:
        """On every host that has it. One that does not answer may have it too, unless another said that it had."""
        kept = keep.id.partition(":")[0] if keep is not None else None
        names = [name for name in self._links if name != kept]
        answers = await self._everywhere("retire", names, launch_id=launch_id)
        found = [answer["state"] for answer in answers.values() if isinstance(answer, dict)]
        known = [state for state in found if state != "absent"]
        silent = [answer for answer in answers.values() if isinstance(answer, ProviderError)]
        if silent and not known and kept is None:
            raise silent[0]
        return Retired.GOING if "going" in known else Retired.GONE

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        """Of all hosts. Raises: ProviderError when one does not answer: half a list would tell of nodes lost."""
        answers = await self._everywhere("look", tuple(self._links))
        for answer in answers.values():
            if isinstance(answer, ProviderError):
                raise answer
        return tuple(
            _instance(name, seen)
            for name, answer in answers.items()
            if isinstance(answer, dict)
            for seen in answer["machines"]
            if seen["tags"]["cluster"] == cluster
        )

    async def describe(self, handle: Handle) -> Instance:
        """What its host says."""
        name = handle.id.partition(":")[0]
        if name in self._links:
            for seen in (await self._ask(name, "look"))["machines"]:
                if seen["launch_id"] == handle.launch_id:
                    return _instance(name, seen)
        return Instance(handle=handle, tags=None, state=State.GONE)

    def capabilities(self) -> Capabilities:
        """Hosts are there: a node is up as soon as it has started."""
        return Capabilities(kind=KIND, launch_delay_s=10.0, launches_at_once=8)

    async def quote(self, spec: LaunchSpec) -> Quote:
        """The price of the dearest host that it might stand on."""
        prices = [self._options.hosts[name].usd_per_hour for name in self._candidates(spec, "")]
        source = "the configuration of its host" if any(prices) else "hosts that are there anyway cost nothing"
        return Quote(usd_per_hour=max(prices), launch_delay_s=self.capabilities().launch_delay_s, source=source)

    async def close(self) -> None:
        """Nodes go on."""
        await asyncio.gather(*(link.close() for link in self._links.values()))

    async def rehearse(self, spec: LaunchSpec) -> str:
        """Ask each host that a launch might choose; nothing is started. Raises: ProviderError."""
        self._order(spec, "rehearsal")
        names = self._candidates(spec, "")
        answers = await self._everywhere("look", names)
        for answer in answers.values():
            if isinstance(answer, ProviderError):
                raise answer
        return f"{len(names)} hosts answer: {', '.join(names)}"

    async def _holders(self, launch_id: str) -> tuple[str, ...]:
        """Hosts that have the launch already, those where it lives first.

        One that does not answer is passed over: while it is away, others must be able to take its nodes' place.
        """
        answers = await self._everywhere("look", tuple(self._links))
        states = {
            name: seen["state"]
            for name, answer in answers.items()
            if isinstance(answer, dict)
            for seen in answer["machines"]
            if seen["launch_id"] == launch_id
        }
        return tuple(sorted(states, key=lambda name: (states[name] == "gone", name)))

    async def _claimed(
        self, names: Sequence[str], launch_id: str, order: dict[str, Any]
    ) -> tuple[str, dict[str, Any]] | None:
        """The first host that has room, and what it answered; None where the only one is a holder without.

        Raises: Capacity; what kept hosts from answering.
        """
        troubles: list[ProviderError] = []
        for name in names:
            host = self._options.hosts[name]
            own = {**order, "type": host.type, "region": host.region}
            try:
                answer = await self._ask(name, "claim", launch_id=launch_id, order=own, capacity=host.capacity)
            except ProviderError as problem:
                troubles.append(problem)
                continue
            if answer["is_claimed"]:
                return name, answer
            if answer["was_known"]:
                return None
        for trouble in troubles:
            if not isinstance(trouble, Auth) or len(troubles) == len(names):
                raise trouble
        told = "".join(f"; {trouble}" for trouble in troubles)
        raise Capacity(f"no host has room for another node ({', '.join(names)}){told}")

    async def _stands_alone(self, host: str, launch_id: str) -> bool:
        """Whether a fresh claim may be used: not beside another's, for which it is withdrawn."""
        if not [name for name in await self._holders(launch_id) if name != host]:
            return True
        return not (await self._ask(host, "withdraw", launch_id=launch_id))["is_withdrawn"]

    def _candidates(self, spec: LaunchSpec, launch_id: str) -> tuple[str, ...]:
        """Hosts of that type and region, in an order of the launch's own: everybody asks them in the same one."""
        hosts = self._options.hosts
        for what, asked in (("type", spec.type), ("region", spec.region)):
            known = sorted({getattr(host, what) for host in hosts.values()})
            if asked and asked not in known:
                raise Invalid(f"no host has the {what} {asked!r}; {nearest(asked, known)}")
        fitting = [
            name for name, host in hosts.items() if spec.type in ("", host.type) and spec.region in ("", host.region)
        ]
        if not fitting:
            raise Invalid(f"no host of type {spec.type!r} stands in {spec.region!r}")
        return tuple(sorted(fitting, key=lambda name: hashlib.blake2b(f"{launch_id}:{name}".encode()).digest()))

    def _order(self, spec: LaunchSpec, launch_id: str) -> dict[str, Any]:
        if spec.options:
            raise Invalid(f"static_ssh knows no options of a pool, found: {', '.join(sorted(spec.options))}")
        if spec.is_spot:
            raise Invalid("hosts of one's own are no spot machines: set is_spot = false for the pool")
        return {
            "fingerprint": fingerprint(spec),
            "tags": asdict(spec.tags),
            "argv": [*self._options.program, *join_arguments(spec, launch_id)],
            "is_spot": False,
            "delay_s": 0.0,
            "boots": True,
            "speed": 1.0,
            "life_s": None,
            "notice_s": 0.0,
            "grace_s": self._options.grace_s,
        }

    async def _everywhere(
        self, do: str, names: Sequence[str], **request: Any
    ) -> dict[str, dict[str, Any] | ProviderError]:
        """Each host's answer, or why there is none."""

        async def ask(name: str) -> dict[str, Any] | ProviderError:
            try:
                return await self._ask(name, do, **request)
            except ProviderError as problem:
                return problem

        answers = await asyncio.gather(*(ask(name) for name in names))
        return dict(zip(names, answers, strict=True))

    async def _ask(self, name: str, do: str, **request: Any) -> dict[str, Any]:
        times = {"grace_s": self._options.grace_s, "kept_s": self._options.kept_s}
        return await self._links[name].ask(do, **times, **request)

    def _link(self, name: str, host: HostConfig) -> SshLink:
        options = self._options
        return SshLink(
            name=name,
            address=host.address,
            port=host.port,
            user=host.user or options.user,
            key_files=options.key_files,
            known_hosts=options.known_hosts,
            directory=options.directory,
            python=options.python,
            timeout_s=options.timeout_s,
        )


def _instance(host: str, seen: dict[str, Any]) -> Instance:
    launch_id = seen["launch_id"]
    return instance_of(seen, Handle(provider=KIND, id=f"{host}:{launch_id}", launch_id=launch_id))
