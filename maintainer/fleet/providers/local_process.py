"""Processes of this machine as instances: the reference of the port, for demos, tests and runs on one machine.

The nodes are real; what a cloud does to machines (delays, failures, slowness, preemption) is simulated where the
options ask for it, and said so. All that is known of an instance is in its folder (`machine_folders.py`).
"""

import asyncio
import math
import os
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from astraflow.runtime.clock import Clock
from astraflow.runtime.config import Config, nearest
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    Capabilities,
    Capacity,
    Handle,
    Instance,
    Invalid,
    LaunchSpec,
    Quota,
    Quote,
    Retired,
    State,
    Tags,
    Unknown,
    fingerprint,
    join_arguments,
)
from maintainer.fleet.providers.machine_folders import MachineFolders

KIND = "local_process"


class LocalProcessOptions(Config):
    """What the machines are like. Without any of it they start at once, cost nothing and last."""

    types: dict[str, float] = Field(default={"process": 0.0}, min_length=1)
    """US dollars an hour of each type of machine, made up; the first is the default."""
    spot_discount: float = Field(default=0.6, ge=0, lt=1)
    """By how much of the price spot machines are cheaper."""
    max_instances: int = Field(default=64, ge=0)
    """Machines at once; beyond, launches are refused as over quota."""
    launch_delay_s: float = Field(default=0.0, ge=0)
    """Simulated: seconds from launch until the node's program is started; the median."""
    launch_delay_spread: float = Field(default=0.0, ge=0, le=2)
    """Spread of that delay: the sigma of a lognormal distribution."""
    refused_share: float = Field(default=0.0, ge=0, le=1)
    """Simulated: of launches, by the launch id; they fail for lack of capacity."""
    boot_failure_share: float = Field(default=0.0, ge=0, le=1)
    """Simulated: of launched machines; they end after their delay without having run a node."""
    slow_share: float = Field(default=0.0, ge=0, le=1)
    """Simulated: of launched machines."""
    slow_speed: float = Field(default=0.3, gt=0, le=1)
    """Share of the time that a slow machine runs; the rest it stands still."""
    spot_mean_life_s: float = Field(default=0.0, ge=0)
    """Simulated: mean of the exponential life of spot machines; 0 for ever."""
    notice_s: float = Field(default=120.0, ge=0)
    """How long before its end a spot machine is told; 0 for without a notice."""
    grace_s: float = Field(default=10.0, gt=0)
    """From asking a machine to end until it is killed."""
    kept_s: float = Field(default=24 * 3600.0, ge=0)
    """The folder of a machine that is gone is kept so long, for its log."""
    seed: int = 0
    """Of everything simulated: what happens to a launch follows from it and the launch id."""
    program: tuple[str, ...] = (sys.executable, "-m", "astraflow.cli")
    """What stands before `join ADDRESS ...` in the node's command line; the first is a path."""

    @field_validator("program")
    @classmethod
    def _has_a_path(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or not Path(value[0]).is_absolute():
            raise ValueError("the program is a list that begins with an absolute path")
        return value


@providers.register(KIND, options=LocalProcessOptions)
class LocalProcess:
    """Instances under one directory, a folder for each."""

    def __init__(self, options: LocalProcessOptions, *, clock: Clock, directory: Path) -> None:
        self._options = options
        self._clock = clock
        self._folders = MachineFolders(directory, grace_s=options.grace_s, kept_s=options.kept_s)

    async def launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        """Make the folder, then start the machine."""
        with _explained():
            return await asyncio.to_thread(self._launch, spec, launch_id)

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> Retired:
        """Mark the folder, then ask the machine to end; asked again after the grace, everything in it is killed."""
        if keep is not None and keep.launch_id == launch_id:
            return Retired.GONE  # there is never a second one
        with _explained():
            is_going = await asyncio.to_thread(self._folders.retire, launch_id) == "going"
        return Retired.GOING if is_going else Retired.GONE

    async def lose(self, launch_id: str) -> None:
        """Kill the machine and all that runs on it. A fault that is simulated, on somebody's word."""
        with _explained():
            await asyncio.to_thread(self._folders.lose, launch_id)

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        """Read the folders; those of machines that are long gone are removed."""
        found = await asyncio.to_thread(lambda: list(self._folders.all()))
        return tuple(
            instance_of(seen, Handle(provider=KIND, id=seen["launch_id"], launch_id=seen["launch_id"]))
            for seen in found
            if seen["tags"]["cluster"] == cluster
        )

    async def describe(self, handle: Handle) -> Instance:
        """Read the folder."""
        with _explained():
            return await asyncio.to_thread(self._describe, handle)

    def capabilities(self) -> Capabilities:
        """As the options have it."""
        options = self._options
        faults = {
            "launch delay": options.launch_delay_s,
            "lack of capacity": options.refused_share,
            "boot failures": options.boot_failure_share,
            "slow machines": options.slow_share,
            "preemption": options.spot_mean_life_s,
            "prices": any(options.types.values()),
        }
        return Capabilities(
            kind=KIND,
            simulated=tuple(name for name, share in faults.items() if share),
            has_spot=True,
            notice_s=options.notice_s,
            listing_lag_s=0.0,
            launch_delay_s=options.launch_delay_s + 2.0,
            launches_at_once=4,
        )

    async def quote(self, spec: LaunchSpec) -> Quote:
        """The made-up price of its type."""
        price = self._price(spec)
        return Quote(
            usd_per_hour=price * (1 - self._options.spot_discount) if spec.is_spot else price,
            launch_delay_s=self.capabilities().launch_delay_s,
            source="made up in the options (simulated)" if price else "this machine costs nothing",
        )

    async def rehearse(self, spec: LaunchSpec) -> str:
        """See whether the program is there, the folder can be used and there is room."""
        with _explained():
            return await asyncio.to_thread(self._rehearse, spec)

    async def close(self) -> None:
        """Nothing is held."""

    def _rehearse(self, spec: LaunchSpec) -> str:
        self._price(spec)
        program = self._options.program[0]
        if not os.access(program, os.X_OK) or not Path(program).is_file():
            raise Invalid(f"{program} cannot be started here: name in `program` what stands before `join ADDRESS`")
        self._folders.check()
        room = self._options.max_instances - self._running()
        return f"this machine would start {program}, and has room for {room} more"

    def _launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        self._price(spec)
        known = self._folders.order(launch_id)
        if not known:
            self._refuse_some(launch_id)
            self._folders.make(launch_id, self._order(spec, launch_id))
            known = self._folders.order(launch_id)
        if known.get("fingerprint") != fingerprint(spec):
            raise Invalid(f"launch {launch_id} was made with another spec: a launch id stands for one instance")
        self._folders.start(launch_id, token=spec.token)
        return Handle(provider=KIND, id=launch_id, launch_id=launch_id)

    def _price(self, spec: LaunchSpec) -> float:
        kind = spec.type or next(iter(self._options.types))
        if kind not in self._options.types:
            raise Invalid(f"no machine type is called {kind!r}; {nearest(kind, [*self._options.types])}")
        return self._options.types[kind]

    def _refuse_some(self, launch_id: str) -> None:
        self._running()
        if self._luck(launch_id, "refused").random() < self._options.refused_share:
            raise Capacity("no machine is free now (simulated: refused_share)")

    def _running(self) -> int:
        """How many there are. Raises: Quota when it may not be one more."""
        alive = self._folders.running()
        if alive >= self._options.max_instances:
            raise Quota(f"{alive} machines run and max_instances is {self._options.max_instances}")
        return alive

    def _order(self, spec: LaunchSpec, launch_id: str) -> dict[str, Any]:
        options, luck = self._options, self._luck(launch_id, "machine")
        preemption = self._folders.notice_option(launch_id)
        delay_s = options.launch_delay_s * math.exp(luck.gauss(0.0, 1.0) * options.launch_delay_spread)
        boots, is_slow = luck.random() >= options.boot_failure_share, luck.random() < options.slow_share
        life_s = luck.expovariate(1.0) * options.spot_mean_life_s
        return {
            "fingerprint": fingerprint(spec),
            "tags": asdict(spec.tags),
            "type": spec.type or next(iter(options.types)),
            "region": spec.region,
            "is_spot": spec.is_spot,
            "created_at": self._clock.wall(),
            "argv": [*options.program, *join_arguments(spec, launch_id, preemption=preemption)],
            "delay_s": delay_s,
            "boots": boots,
            "speed": options.slow_speed if is_slow else 1.0,
            "life_s": life_s if spec.is_spot and options.spot_mean_life_s else None,
            "notice_s": options.notice_s,
            "grace_s": options.grace_s,
        }

    def _luck(self, launch_id: str, what: str) -> random.Random:
        return random.Random(f"{self._options.seed}:{launch_id}:{what}")

    def _describe(self, handle: Handle) -> Instance:
        seen = self._folders.seen(handle.launch_id)
        if seen is None:
            return Instance(handle=handle, tags=None, state=State.GONE)
        return instance_of(seen, Handle(provider=KIND, id=handle.launch_id, launch_id=handle.launch_id))


def instance_of(seen: Mapping[str, Any], handle: Handle) -> Instance:
    """A machine's folder as an instance."""
    return Instance(
        handle=handle,
        tags=Tags(**seen["tags"]) if "tags" in seen else None,
        state=State(seen["state"]),
        created_at=seen.get("created_at", 0.0),
        type=seen.get("type", ""),
        region=seen.get("region", ""),
        is_spot=seen.get("is_spot", False),
        notice_at=seen.get("notice_at"),
        message=seen.get("message") or "",
    )


@contextmanager
def _explained() -> Iterator[None]:
    """What goes wrong with a folder, as the port has it."""
    try:
        yield
    except ValueError as problem:
        raise Invalid(str(problem)) from problem
    except OSError as problem:
        raise Unknown(f"the folder of the machine cannot be used: {problem}") from problem
