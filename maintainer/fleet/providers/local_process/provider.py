"""Local processes as instances: the reference provider, for demos, tests and runs on one machine.

The nodes are real. Effects of a cloud (delays, failures, slowness, preemption) are simulated if configured, and marked
as simulated. The state of an instance is in its folder (`machine_folders.py`).
"""

import asyncio
import math
import os
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from astraflow.runtime.clock import Clock
from astraflow.runtime.config.base import Config
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    Capabilities,
    CapacityError,
    Handle,
    Instance,
    InvalidError,
    LaunchSpec,
    QuotaError,
    Quote,
    RetireResult,
    State,
    UnknownError,
    join_arguments,
)
from maintainer.fleet.providers.launches import check_same_spec, chosen_type, launch_order, ordered_instance, type_name
from maintainer.fleet.providers.local_process.machine_folders import MachineFolders

KIND = "local_process"


class LocalProcessOptions(Config):
    """Simulated properties of the machines. By default they start at once, cost nothing and never fail."""

    types: dict[str, float] = Field(default={"process": 0.0}, min_length=1)
    """Simulated price of each type in US dollars an hour; the first type is the default."""
    spot_discount: float = Field(default=0.6, ge=0, lt=1)
    """Discount of spot machines, as a share of the price."""
    max_instances: int = Field(default=64, ge=0)
    """Maximum number of machines; further launches fail with a quota error."""
    launch_delay_s: float = Field(default=0.0, ge=0)
    """Simulated: median time from launch to the start of the node's program. Seconds."""
    launch_delay_spread: float = Field(default=0.0, ge=0, le=2)
    """Spread of the launch delay: sigma of a lognormal distribution."""
    refused_share: float = Field(default=0.0, ge=0, le=1)
    """Simulated: share of launches that fail for lack of capacity, chosen by launch id."""
    boot_failure_share: float = Field(default=0.0, ge=0, le=1)
    """Simulated: share of launched machines that end after their delay without running a node."""
    slow_share: float = Field(default=0.0, ge=0, le=1)
    """Simulated: share of launched machines that are slow."""
    slow_speed: float = Field(default=0.3, gt=0, le=1)
    """Share of the time that a slow machine runs."""
    spot_mean_life_s: float = Field(default=0.0, ge=0)
    """Simulated: mean life of spot machines, exponentially distributed. Seconds; 0: unlimited."""
    notice_s: float = Field(default=120.0, ge=0)
    """Time between notice and preemption of a spot machine. Seconds; 0: no notice."""
    grace_s: float = Field(default=10.0, gt=0)
    """Time from a termination request until the machine is killed. Seconds."""
    retention_s: float = Field(default=24 * 3600.0, ge=0)
    """Time for which the folder of an ended machine is kept for its log. Seconds."""
    seed: int = 0
    """Seed of the simulation; all simulated effects follow from it and the launch id."""
    program: tuple[str, ...] = (sys.executable, "-m", "astraflow.cli")
    """Command before `join ADDRESS ...` in the node's command line; the first element is a path."""

    @field_validator("program")
    @classmethod
    def _has_a_path(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or not Path(value[0]).is_absolute():
            raise ValueError("cannot use this program: it does not begin with an absolute path; give a list that does")
        return value


@providers.register(KIND, options=LocalProcessOptions)
class LocalProcess:
    """Processes on this machine, each with a folder below one directory."""

    def __init__(self, options: LocalProcessOptions, *, clock: Clock, directory: Path) -> None:
        self._options = options
        self._clock = clock
        self._folders = MachineFolders(directory, grace_s=options.grace_s, retention_s=options.retention_s)

    async def launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        """Creates the folder, then starts the machine."""
        with _translated_errors():
            return await asyncio.to_thread(self._launch, spec, launch_id)

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> RetireResult:
        """Marks the folder, then asks the machine to end; a call after the grace period kills all its processes."""
        if keep is not None and keep.launch_id == launch_id:
            return RetireResult.GONE  # there are no duplicates
        with _translated_errors():
            is_terminating = await asyncio.to_thread(self._folders.retire, launch_id) == "terminating"
        return RetireResult.TERMINATING if is_terminating else RetireResult.GONE

    async def inject_fault(self, launch_id: str) -> None:
        """Kills the machine and all its processes, as a simulated fault."""
        with _translated_errors():
            await asyncio.to_thread(self._folders.kill, launch_id)

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        """Reads the folders; removes expired ones of ended machines."""
        folders = await asyncio.to_thread(lambda: list(self._folders.all()))
        return tuple(
            instance_of(folder, Handle(provider=KIND, id=folder["launch_id"], launch_id=folder["launch_id"]))
            for folder in folders
            if folder["tags"]["cluster"] == cluster
        )

    async def describe(self, handle: Handle) -> Instance:
        """Reads the folder."""
        with _translated_errors():
            return await asyncio.to_thread(self._describe, handle)

    def capabilities(self) -> Capabilities:
        """Returns the capabilities, as configured."""
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
        """Returns the simulated price of the type."""
        price = chosen_type(self._options.types, spec)
        return Quote(
            usd_per_hour=price * (1 - self._options.spot_discount) if spec.is_spot else price,
            launch_delay_s=self.capabilities().launch_delay_s,
            source="made up in the options (simulated)" if price else "this machine costs nothing",
        )

    async def preflight(self, spec: LaunchSpec) -> str:
        """Checks that the program exists, the folder is usable and the machine limit is not reached."""
        with _translated_errors():
            return await asyncio.to_thread(self._preflight, spec)

    async def close(self) -> None:
        """Does nothing: no connections are held."""

    def _preflight(self, spec: LaunchSpec) -> str:
        chosen_type(self._options.types, spec)
        program = self._options.program[0]
        if not os.access(program, os.X_OK) or not Path(program).is_file():
            raise InvalidError(
                f"cannot start {program}: it is no executable file; set `program` to the command before `join`",
                code="provider.program_not_executable",
            )
        self._folders.check()
        room = self._options.max_instances - self._running()
        return f"this machine would start {program}, and can run {room} more"

    def _launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        chosen_type(self._options.types, spec)
        earlier_order = self._folders.order(launch_id)
        if not earlier_order:
            self._simulate_refusal(launch_id)
            self._folders.make(launch_id, self._order(spec, launch_id))
            earlier_order = self._folders.order(launch_id)
        check_same_spec(earlier_order.get("fingerprint"), spec, launch_id)
        self._folders.start(launch_id, token=spec.token)
        return Handle(provider=KIND, id=launch_id, launch_id=launch_id)

    def _simulate_refusal(self, launch_id: str) -> None:
        self._running()
        if self._random(launch_id, "refused").random() < self._options.refused_share:
            raise CapacityError(
                "cannot launch: no capacity (simulated by refused_share); retry later",
                code="provider.simulated_refusal",
            )

    def _running(self) -> int:
        """Returns the number of machines. Raises: QuotaError when the maximum is reached."""
        alive = self._folders.running()
        if alive >= self._options.max_instances:
            raise QuotaError(
                f"cannot launch: {alive} machines run of {self._options.max_instances}; raise max_instances",
                code="provider.max_instances",
            )
        return alive

    def _order(self, spec: LaunchSpec, launch_id: str) -> dict[str, Any]:
        options, luck = self._options, self._random(launch_id, "machine")
        preemption = self._folders.notice_option(launch_id)
        delay_s = options.launch_delay_s * math.exp(luck.gauss(0.0, 1.0) * options.launch_delay_spread)
        boots, is_slow = luck.random() >= options.boot_failure_share, luck.random() < options.slow_share
        life_s = luck.expovariate(1.0) * options.spot_mean_life_s
        return launch_order(spec, launch_id, kind=type_name(options.types, spec)) | {
            "created_at": self._clock.wall(),
            "argv": [*options.program, *join_arguments(spec, launch_id, preemption=preemption)],
            "delay_s": delay_s,
            "boots": boots,
            "speed": options.slow_speed if is_slow else 1.0,
            "life_s": life_s if spec.is_spot and options.spot_mean_life_s else None,
            "notice_s": options.notice_s,
            "grace_s": options.grace_s,
        }

    def _random(self, launch_id: str, what: str) -> random.Random:
        return random.Random(f"{self._options.seed}:{launch_id}:{what}")

    def _describe(self, handle: Handle) -> Instance:
        folder = self._folders.status(handle.launch_id)
        if folder is None:
            return Instance(handle=handle, tags=None, state=State.GONE)
        return instance_of(folder, Handle(provider=KIND, id=handle.launch_id, launch_id=handle.launch_id))


def instance_of(folder: Mapping[str, Any], handle: Handle) -> Instance:
    """Returns the instance of a machine's folder."""
    return ordered_instance(
        folder,
        handle=handle,
        state=State(folder["state"]),
        created_at=folder.get("created_at", 0.0),
        notice_at=folder.get("notice_at"),
        message=folder.get("message") or "",
    )


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Translates errors of folders into provider errors."""
    try:
        yield
    except ValueError as problem:
        raise InvalidError(str(problem), code="provider.invalid_launch_id") from problem
    except OSError as problem:
        raise UnknownError(
            f"cannot use the folder of the machine: {problem}; check the directory of the fleet service",
            code="provider.folder_unusable",
        ) from problem
