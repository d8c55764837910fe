"""Nodes on a fixed set of hosts, over SSH: each host runs nodes up to its capacity.

A node runs under a process that outlives the connection, with its request in a folder on the host
(`machine_folders.py`, sent to the host). The provider stores nothing locally, so several fleet services can share the
hosts. A launch takes two steps: it claims a slot on a host, then starts the node if no other host holds the same
launch. If two processes claim one launch on two hosts at once, the one that sees the other's claim withdraws its own.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Name
from astraflow.runtime.clock import Clock
from astraflow.runtime.config.base import Config, suggest_name
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    AuthError,
    Capabilities,
    CapacityError,
    Handle,
    Instance,
    InvalidError,
    LaunchSpec,
    ProviderError,
    Quote,
    RetireResult,
    RetryError,
    State,
    join_arguments,
)
from maintainer.fleet.providers.launches import check_same_spec, launch_order
from maintainer.fleet.providers.local_process.provider import instance_of
from maintainer.fleet.providers.places import LaunchPlaces, ask_all
from maintainer.fleet.providers.static_ssh.link import SshLink

KIND = "static_ssh"

_ROUNDS = 3
"""Attempts of a launch whose claim is withdrawn in favour of another."""


class HostConfig(Config):
    """Configuration of a host."""

    address: str
    """Name or address for SSH, under which the known hosts list the key."""
    port: int = Field(default=22, ge=1, le=65535)
    """Port of the SSH server."""
    user: str = ""
    """User that runs the nodes; the provider's `user` when empty."""
    capacity: int = Field(default=1, ge=0)
    """Maximum number of nodes; 0 starts no further nodes."""
    type: str = "host"
    """Type of the host, which pools select by `type`."""
    region: str = ""
    """Region of the host, which pools select by `region`."""
    usd_per_hour: float = Field(default=0.0, ge=0)
    """Price of a node on this host. US dollars an hour."""


class StaticSshOptions(Config):
    """Hosts, and how SSH reaches them."""

    hosts: dict[str, HostConfig] = Field(min_length=1)
    """Hosts by a name of your choice, which is part of handles: do not change it while nodes run there."""
    known_hosts: Path
    """File with the hosts' keys in OpenSSH's format. Hosts with unknown or different keys are refused."""
    user: str = ""
    """User that runs the nodes; the fleet service's user when empty."""
    key_files: tuple[Path, ...] = ()
    """Private keys (PEM or OpenSSH); keys of the SSH agent and the default files when empty."""
    directory: str = "~/.local/state/astraflow/machines"
    """Directory on the hosts for the state of nodes."""
    python: str = "python3"
    """Python 3.11 or later on the hosts, for the management of nodes."""
    program: tuple[str, ...] = ("/opt/astraflow/bin/astraflow",)
    """Command before `join ADDRESS ...` in the node's command line on the hosts; the first element is a path."""
    grace_s: float = Field(default=10.0, gt=0)
    """Time from a termination request until the node is killed. Seconds."""
    retention_s: float = Field(default=24 * 3600.0, ge=0)
    """Time for which the folder of an ended node is kept for its log. Seconds."""
    timeout_s: float = Field(default=15.0, gt=0)
    """Timeout of a call to a host. Seconds."""

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
            raise ValueError("cannot use this program: it does not begin with an absolute path; give a list that does")
        if not self.known_hosts.is_file():
            raise ValueError(
                f"cannot use known_hosts: {str(self.known_hosts)!r} is no file; create it with `ssh-keyscan`, verify it"
            )
        return self


@providers.register(KIND, options=StaticSshOptions)
class StaticSsh:
    """Processes on a fixed set of hosts, started over SSH."""

    def __init__(self, options: StaticSshOptions, *, clock: Clock, directory: Path) -> None:
        self._options = options
        self._links = {name: self._link(name, host) for name, host in options.hosts.items()}
        self._places = LaunchPlaces(directory)

    async def launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        """Claims a slot, checks that no other host holds the launch, then starts the node."""
        candidates = self._candidates(spec, launch_id)
        for _ in range(_ROUNDS):
            holders = await self._holders(launch_id)
            claimed = await self._claim(holders or candidates, launch_id, self._order(spec, launch_id))
            if claimed is None:
                continue  # another launch took the slot of an unused claim
            host, answer = claimed
            check_same_spec(answer["fingerprint"], spec, launch_id)
            if answer["is_new"] and not await self._is_only_claim(host, launch_id):
                continue
            await asyncio.to_thread(self._places.remember, launch_id, host)
            if (await self._ask(host, "start", launch_id=launch_id, token=spec.token))["is_started"]:
                return Handle(provider=KIND, id=f"{host}:{launch_id}", launch_id=launch_id)
        raise RetryError(
            f"cannot launch {launch_id}: other processes claimed and withdrew it {_ROUNDS} times; retry",
            code="provider.claim_contention",
        )

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> RetireResult:
        """Retires the launch on every host that has it. A silent host may have it, unless another host has.

        Raises: InvalidError for a launch on a host that is no longer configured.
        """
        kept_host = keep.id.partition(":")[0] if keep is not None else None
        names = [name for name in self._links if name != kept_host]
        answers = await self._ask_all("retire", names, launch_id=launch_id)
        states = [answer["state"] for answer in answers.values() if isinstance(answer, dict)]
        known_states = [state for state in states if state != "absent"]
        hosts = await asyncio.to_thread(self._places.of, launch_id) or self._links.keys()
        errors = [answer for name, answer in answers.items() if isinstance(answer, ProviderError) and name in hosts]
        if errors and not known_states and kept_host is None:
            raise errors[0]
        if "terminating" in known_states:
            return RetireResult.TERMINATING
        if kept_host is None:
            await asyncio.to_thread(self._places.end, launch_id, self._links.keys())
        return RetireResult.GONE

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        """Lists all hosts; partial while a host is silent, or has nodes and is no longer configured."""
        answers = await self._ask_all("look", tuple(self._links))
        instances_by_host = {
            name: answer
            if isinstance(answer, ProviderError)
            else [_instance(name, machine) for machine in answer["machines"] if machine["tags"]["cluster"] == cluster]
            for name, answer in answers.items()
        }
        return await asyncio.to_thread(self._places.listed, instances_by_host, handles="{}:")

    async def describe(self, handle: Handle) -> Instance:
        """Asks the instance's host. Raises: InvalidError for a host that is no longer configured."""
        name, is_of_host, _ = handle.id.partition(":")
        if is_of_host and name not in self._links:
            raise self._places.removed(name)
        if name in self._links:
            for machine in (await self._ask(name, "look"))["machines"]:
                if machine["launch_id"] == handle.launch_id:
                    return _instance(name, machine)
        return Instance(handle=handle, tags=None, state=State.GONE)

    def capabilities(self) -> Capabilities:
        """Returns the capabilities. Hosts are always running, so a node is ready as soon as it has started."""
        return Capabilities(kind=KIND, launch_delay_s=10.0, launches_at_once=8)

    async def quote(self, spec: LaunchSpec) -> Quote:
        """Returns the price of the most expensive candidate host."""
        prices = [self._options.hosts[name].usd_per_hour for name in self._candidates(spec, "")]
        source = "the host's configuration" if any(prices) else "no price is configured"
        return Quote(usd_per_hour=max(prices), launch_delay_s=self.capabilities().launch_delay_s, source=source)

    async def close(self) -> None:
        """Closes connections. Nodes keep running."""
        await asyncio.gather(*(link.close() for link in self._links.values()))

    async def preflight(self, spec: LaunchSpec) -> str:
        """Contacts each candidate host, without starting a node. Raises: ProviderError."""
        self._order(spec, "preflight")
        names = self._candidates(spec, "")
        answers = await self._ask_all("look", names)
        for answer in answers.values():
            if isinstance(answer, ProviderError):
                raise answer
        return f"{len(names)} hosts answer: {', '.join(names)}"

    async def _holders(self, launch_id: str) -> tuple[str, ...]:
        """Returns hosts that hold the launch, live ones first.

        Skips silent hosts, so that other hosts can replace their nodes.
        """
        answers = await self._ask_all("look", tuple(self._links))
        states = {
            name: machine["state"]
            for name, answer in answers.items()
            if isinstance(answer, dict)
            for machine in answer["machines"]
            if machine["launch_id"] == launch_id
        }
        return tuple(sorted(states, key=lambda name: (states[name] == "gone", name)))

    async def _claim(
        self, names: Sequence[str], launch_id: str, order: dict[str, Any]
    ) -> tuple[str, dict[str, Any]] | None:
        """Claims a slot; returns the host and its answer, or None when a holder has no free slot.

        Raises: CapacityError; errors of hosts that did not answer.
        """
        problems: list[ProviderError] = []
        for name in names:
            host = self._options.hosts[name]
            host_order = {**order, "type": host.type, "region": host.region}
            try:
                answer = await self._ask(name, "claim", launch_id=launch_id, order=host_order, capacity=host.capacity)
            except ProviderError as problem:
                problems.append(problem)
                continue
            if answer["is_claimed"]:
                return name, answer
            if answer["was_known"]:
                return None
        for error in problems:
            if not isinstance(error, AuthError) or len(problems) == len(names):
                raise error
        errors = "".join(f"; {error}" for error in problems)
        raise CapacityError(
            f"cannot launch: no free slot on {', '.join(names)}; raise a host's capacity or add hosts{errors}",
            code="provider.no_free_slot",
        )

    async def _is_only_claim(self, host: str, launch_id: str) -> bool:
        """Returns whether a new claim is the only one; otherwise withdraws it."""
        if not [name for name in await self._holders(launch_id) if name != host]:
            return True
        return not (await self._ask(host, "withdraw", launch_id=launch_id))["is_withdrawn"]

    def _candidates(self, spec: LaunchSpec, launch_id: str) -> tuple[str, ...]:
        """Returns hosts of the type and region, in an order that the launch id determines for all processes."""
        hosts = self._options.hosts
        for what, requested in (("type", spec.type), ("region", spec.region)):
            configured = sorted({getattr(host, what) for host in hosts.values()})
            if requested and requested not in configured:
                raise InvalidError(
                    f"cannot launch: no host has the {what} {requested!r}; {suggest_name(requested, configured)}",
                    code="provider.no_matching_host",
                )
        matching = [
            name for name, host in hosts.items() if spec.type in ("", host.type) and spec.region in ("", host.region)
        ]
        if not matching:
            raise InvalidError(
                f"cannot launch: no host of type {spec.type!r} is in {spec.region!r}; change the pool's spec",
                code="provider.no_matching_host",
            )
        return tuple(sorted(matching, key=lambda name: hashlib.blake2b(f"{launch_id}:{name}".encode()).digest()))

    def _order(self, spec: LaunchSpec, launch_id: str) -> dict[str, Any]:
        if spec.options:
            raise InvalidError(
                f"cannot launch: static_ssh has no pool options, found {', '.join(sorted(spec.options))}; remove them",
                code="provider.invalid_pool_options",
            )
        if spec.is_spot:
            raise InvalidError(
                "cannot launch: static hosts are no spot instances; set is_spot = false for the pool",
                code="provider.spot_unsupported",
            )
        return launch_order(spec, launch_id, kind=spec.type) | {
            "argv": [*self._options.program, *join_arguments(spec, launch_id)],
            "delay_s": 0.0,
            "boots": True,
            "speed": 1.0,
            "life_s": None,
            "notice_s": 0.0,
            "grace_s": self._options.grace_s,
        }

    async def _ask_all(
        self, do: str, names: Sequence[str], **request: Any
    ) -> dict[str, dict[str, Any] | ProviderError]:
        """Sends a request to hosts concurrently; returns each answer or error."""
        return await ask_all(names, lambda name: self._ask(name, do, **request))

    async def _ask(self, name: str, do: str, **request: Any) -> dict[str, Any]:
        times = {"grace_s": self._options.grace_s, "retention_s": self._options.retention_s}
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


def _instance(host: str, machine: dict[str, Any]) -> Instance:
    launch_id = machine["launch_id"]
    return instance_of(machine, Handle(provider=KIND, id=f"{host}:{launch_id}", launch_id=launch_id))
