"""Processes of this machine as instances: the reference of the port, for demos, tests and runs on one machine.

The nodes are real; what a cloud does to machines (delays, failures, slowness, preemption) is simulated where the
options ask for it, and said so. All that is known of an instance is in its folder, so that the provider may be killed
at any moment and another goes on: a folder with its order is made in one step, and only then is the machine's process
started, which takes the folder's lock.
"""

import asyncio
import fcntl
import json
import math
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from astraflow.runtime.clock import Clock
from astraflow.runtime.config import Config, nearest
from maintainer.fleet.providers import local_machine, providers
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
from maintainer.fleet.providers.local_machine import LOCK, LOG, NOTE, NOTICE, ORDER, RETIRED

KIND = "local_process"

_LAUNCH_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")

_START_S = 10.0
"""A machine whose process was started takes its lock within this long; one that has not never was started."""

_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "HF_HOME")
"""What of its environment the service hands to machines: its own secrets stay with it."""


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
        self._directory = directory
        self._children: set[int] = set()

    async def launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        """Make the folder, then start the machine."""
        return await asyncio.to_thread(self._launch, spec, launch_id)

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> Retired:
        """Mark the folder, then ask the machine to end; asked again after the grace, everything in it is killed."""
        if keep is not None and keep.launch_id == launch_id:
            return Retired.GONE  # there is never a second one
        return await asyncio.to_thread(self._retire, launch_id)

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        """Read the folders; those of machines that are long gone are removed."""
        return await asyncio.to_thread(lambda: tuple(self._list(cluster)))

    async def describe(self, handle: Handle) -> Instance:
        """Read the folder."""
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

    async def close(self) -> None:
        """Nothing is held."""

    def _launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        place = self._place(launch_id)
        self._price(spec)
        if not place.exists():
            self._refuse_some(launch_id)
            self._make_folder(place, spec, launch_id)
        known = _read(place / ORDER)
        if known.get("fingerprint") != fingerprint(spec):
            raise Invalid(f"launch {launch_id} was made with another spec: a launch id stands for one instance")
        handle = Handle(provider=KIND, id=launch_id, launch_id=launch_id)
        if not (place / NOTE).exists() and not (place / RETIRED).exists() and not _is_held(place):
            self._start(place, token=spec.token)
        return handle

    def _price(self, spec: LaunchSpec) -> float:
        kind = spec.type or next(iter(self._options.types))
        if kind not in self._options.types:
            raise Invalid(f"no machine type is called {kind!r}; {nearest(kind, [*self._options.types])}")
        return self._options.types[kind]

    def _refuse_some(self, launch_id: str) -> None:
        alive = sum(1 for place in self._places() if _is_held(place))
        if alive >= self._options.max_instances:
            raise Quota(f"{alive} machines run and max_instances is {self._options.max_instances}")
        if self._luck(launch_id, "refused").random() < self._options.refused_share:
            raise Capacity("no machine is free now (simulated: refused_share)")

    def _make_folder(self, place: Path, spec: LaunchSpec, launch_id: str) -> None:
        """In one step: a folder has its order from its first moment on."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(prefix=".", dir=self._directory))
            (draft / ORDER).write_text(json.dumps(self._order(place, spec, launch_id)))
        except OSError as problem:
            raise Unknown(f"the folder of launch {launch_id} cannot be made: {problem}") from problem
        try:
            draft.rename(place)
        except OSError:
            shutil.rmtree(draft)
            if not place.exists():
                raise Unknown(f"the folder of launch {launch_id} cannot be put in place") from None

    def _order(self, place: Path, spec: LaunchSpec, launch_id: str) -> dict[str, Any]:
        options, luck = self._options, self._luck(launch_id, "machine")
        preemption = f"{{ kind = 'file', path = '{place / NOTICE}' }}"
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

    def _start(self, place: Path, *, token: str) -> None:
        environment = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
        environment |= {"ASTRAFLOW_TOKEN": token, "OMP_NUM_THREADS": "1"}
        log = (os.POSIX_SPAWN_OPEN, 1, str(place / LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._reap()
        try:
            child = os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-S", "-E", str(Path(local_machine.__file__)), str(place)],
                environment,
                setsid=True,
                file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), log, (os.POSIX_SPAWN_DUP2, 1, 2)],
            )
        except OSError as problem:
            raise Unknown(f"the machine's process cannot be started: {problem}") from problem
        self._children.add(child)

    def _reap(self) -> None:
        """Machines that ended while this process lives must not stay as zombies."""
        for child in tuple(self._children):
            try:
                ended, _ = os.waitpid(child, os.WNOHANG)
            except ChildProcessError:
                ended = child
            if ended:
                self._children.discard(child)

    def _retire(self, launch_id: str) -> Retired:
        self._reap()
        place = self._place(launch_id)
        if not place.exists():
            return Retired.GONE
        (place / RETIRED).touch(exist_ok=True)
        if not _is_held(place):
            return Retired.GONE if (place / NOTE).exists() or self._is_never_to_start(place) else Retired.GOING
        note = _read(place / NOTE)
        if "pid" in note:  # else it has the lock and no name yet; the next call finds it
            is_overdue = time.time() - (place / RETIRED).stat().st_mtime > self._options.grace_s + 1.0
            _signal_group(note["pid"], signal.SIGKILL if is_overdue else signal.SIGTERM)
        return Retired.GOING

    def _is_never_to_start(self, place: Path) -> bool:
        """A marked folder whose machine has not taken its lock: it reads the mark first, or never was started."""
        created_at: float = _read(place / ORDER).get("created_at", 0.0)
        return self._clock.wall() - created_at > _START_S

    def _list(self, cluster: str) -> Iterator[Instance]:
        self._reap()
        for place in self._places():
            instance = self._instance(place)
            if instance.tags is None or instance.tags.cluster != cluster:
                continue
            if instance.state is State.GONE and self._is_old(place):
                shutil.rmtree(place, ignore_errors=True)
            else:
                yield instance

    def _describe(self, handle: Handle) -> Instance:
        self._reap()
        place = self._place(handle.launch_id)
        return self._instance(place) if place.exists() else Instance(handle=handle, tags=None, state=State.GONE)

    def _instance(self, place: Path) -> Instance:
        is_held = _is_held(place)  # before the note is read, so that an end in between shows as an end later
        order, note = _read(place / ORDER), _read(place / NOTE)
        return Instance(
            handle=Handle(provider=KIND, id=place.name, launch_id=place.name),
            tags=Tags(**order["tags"]) if "tags" in order else None,
            state=self._state(place, note, is_held=is_held),
            created_at=order.get("created_at", 0.0),
            type=order.get("type", ""),
            region=order.get("region", ""),
            is_spot=order.get("is_spot", False),
            notice_at=note.get("notice_at"),
            message=note.get("message", ""),
        )

    def _state(self, place: Path, note: dict[str, Any], *, is_held: bool) -> State:
        if is_held:
            said = State(note.get("state", "pending"))
            return State.GOING if said is State.GONE or (place / RETIRED).exists() else said
        if note or self._is_never_to_start(place):
            return State.GONE
        return State.GOING if (place / RETIRED).exists() else State.PENDING

    def _is_old(self, place: Path) -> bool:
        try:
            return bool(time.time() - place.stat().st_mtime > self._options.kept_s)
        except FileNotFoundError:
            return False

    def _places(self) -> tuple[Path, ...]:
        if not self._directory.exists():
            return ()
        return tuple(place for place in self._directory.iterdir() if not place.name.startswith("."))

    def _place(self, launch_id: str) -> Path:
        if not _LAUNCH_ID.fullmatch(launch_id):
            raise Invalid(f"{launch_id[:80]!r} is no launch id: use 1 to 64 letters, digits, - and _")
        return self._directory / launch_id


def _is_held(place: Path) -> bool:
    """Whether the machine or anything of its node holds the folder's lock."""
    try:
        descriptor = os.open(place / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty when there is none."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return found if isinstance(found, dict) else {}


def _signal_group(group: int, number: signal.Signals) -> None:
    """The lock is held, so the group's number is still its own."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)
