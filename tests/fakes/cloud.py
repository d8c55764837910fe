"""A cloud in memory, in virtual time, shared by several provider objects, with the failures that a test configures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from astraflow.runtime.clock import Clock
from maintainer.fleet.providers.base import (
    Capabilities,
    Handle,
    Instance,
    InvalidError,
    LaunchSpec,
    PartialList,
    ProviderError,
    Quote,
    RetireResult,
    RetryError,
    State,
    fingerprint,
)

KIND = "cloud"
TYPES = {"small": 1.0, "large": 4.0}


@dataclass(kw_only=True)
class Machine:
    """One instance in the state of the cloud."""

    instance: Instance
    fingerprint: str
    has_token: bool = True
    """Its node can join the run."""
    gone_at: float | None = None
    is_stuck: bool = False
    """Will not boot."""


class Cloud:
    """State that the provider objects share.

    boot_s: from PENDING to RUNNING. end_s: from the terminate request to the end. lag_s: delay until an instance is
    listed and found by its launch id; two launches with one id within it give two instances, unless `has_memory`.
    """

    def __init__(
        self, clock: Clock, *, boot_s: float = 0.0, end_s: float = 0.0, lag_s: float = 0.0, has_memory: bool = True
    ) -> None:
        self.clock = clock
        self.boot_s = boot_s
        self.end_s = end_s
        self.lag_s = lag_s
        self.has_memory = has_memory
        self.machines: dict[str, Machine] = {}
        self.starts = 0
        """Instances started in total."""
        self.silent_regions: set[str] = set()
        """Regions that cannot be read at the moment."""

    def find(self, launch_id: str, *, is_seen: bool = False) -> list[Machine]:
        """Returns the living machines of a launch; is_seen: only the listed ones."""
        return [
            machine
            for machine in self.machines.values()
            if machine.instance.handle.launch_id == launch_id
            and self.state(machine) is not State.GONE
            and (not is_seen or self.shows(machine))
        ]

    def alive(self) -> list[Machine]:
        """Returns every machine that costs money."""
        return [machine for machine in self.machines.values() if self.state(machine) is not State.GONE]

    def shows(self, machine: Machine) -> bool:
        """Returns whether the cloud already lists the machine."""
        return self.clock.wall() - machine.instance.created_at >= self.lag_s

    def state(self, machine: Machine) -> State:
        """Returns the current state of the machine."""
        now = self.clock.wall()
        if machine.gone_at is not None:
            return State.GONE if now >= machine.gone_at else State.TERMINATING
        if machine.is_stuck:
            return State.STUCK
        return State.RUNNING if now - machine.instance.created_at >= self.boot_s else State.PENDING

    def start(self, spec: LaunchSpec, launch_id: str) -> Handle:
        """Starts another machine, regardless of existing ones."""
        self.starts += 1
        handle = Handle(provider=KIND, id=f"i-{self.starts}", launch_id=launch_id)
        instance = Instance(
            handle=handle,
            tags=spec.tags,
            state=State.PENDING,
            created_at=self.clock.wall(),
            type=spec.type or "small",
            region=spec.region,
            is_spot=spec.is_spot,
        )
        self.machines[handle.id] = Machine(instance=instance, fingerprint=fingerprint(spec), has_token=bool(spec.token))
        return handle

    def preempt(self, machine: Machine, *, in_s: float) -> None:
        """Preempts the machine: gives notice now and ends it after the notice."""
        machine.gone_at = self.clock.wall() + in_s
        machine.instance = replace(machine.instance, notice_at=machine.gone_at)

    def end(self, machine: Machine, *, after_s: float) -> None:
        """Ends the machine after this delay."""
        if machine.gone_at is None:
            machine.gone_at = self.clock.wall() + after_s


Fault = Callable[[str], None]
"""Called with `launch before`, `launch after`, ...: may raise."""


class CloudProvider:
    """One provider object on a cloud."""

    def __init__(self, cloud: Cloud, *, fault: Fault = lambda point: None) -> None:
        self.cloud = cloud
        self.fault = fault

    async def launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        self.fault("launch before")
        self._price(spec)
        known = self.cloud.find(launch_id, is_seen=not self.cloud.has_memory)
        if known and known[0].fingerprint != fingerprint(spec):
            raise InvalidError(f"launch {launch_id} was made with another spec", code="provider.launch_id_reused")
        handle = known[0].instance.handle if known else self.cloud.start(spec, launch_id)
        self.fault("launch after")
        return handle

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> RetireResult:
        self.fault("retire before")
        self._check_regions(self.cloud.find(launch_id, is_seen=True))
        doomed = [machine for machine in self.cloud.find(launch_id, is_seen=True) if machine.instance.handle != keep]
        for machine in doomed:
            self.cloud.end(machine, after_s=self.cloud.end_s)
        is_over = all(self.cloud.state(machine) is State.GONE for machine in doomed)
        self.fault("retire after")
        return RetireResult.GONE if is_over else RetireResult.TERMINATING

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        self.fault("list before")
        instances = [
            self._seen(machine)
            for machine in self.cloud.machines.values()
            if machine.instance.tags is not None
            and machine.instance.tags.cluster == cluster
            and self.cloud.shows(machine)
        ]
        self.fault("list after")
        silent = [instance for instance in instances if instance.region in self.cloud.silent_regions]
        if not silent:
            return tuple(instances)
        return PartialList(
            [instance for instance in instances if instance not in silent],
            unread={instance.handle.id: RetryError(f"no answer from {instance.region}") for instance in silent},
        )

    async def describe(self, handle: Handle) -> Instance:
        machine = self.cloud.machines.get(handle.id)
        self._check_regions([machine] if machine else [])
        return self._seen(machine) if machine else Instance(handle=handle, tags=None, state=State.GONE)

    def capabilities(self) -> Capabilities:
        return Capabilities(kind=KIND, has_spot=True, listing_lag_s=self.cloud.lag_s, launch_delay_s=60.0)

    async def quote(self, spec: LaunchSpec) -> Quote:
        price = self._price(spec) * (0.4 if spec.is_spot else 1.0)
        return Quote(usd_per_hour=price, launch_delay_s=60.0, source="made up for tests")

    async def preflight(self, spec: LaunchSpec) -> str:
        self.fault("launch before")  # error of the next launch
        self._price(spec)
        return f"a {spec.type or 'small'} machine would be started"

    async def inject_fault(self, launch_id: str) -> None:
        """Ends its machines at once."""
        for machine in self.cloud.find(launch_id):
            self.cloud.end(machine, after_s=0.0)

    async def close(self) -> None:
        return None

    def _check_regions(self, machines: Sequence[Machine]) -> None:
        for machine in machines:
            if machine.instance.region in self.cloud.silent_regions:
                raise RetryError(f"no answer from {machine.instance.region}")

    def _price(self, spec: LaunchSpec) -> float:
        if (spec.type or "small") not in TYPES:
            raise InvalidError(f"no type is called {spec.type!r}; known: {', '.join(TYPES)}")
        return TYPES[spec.type or "small"]

    def _seen(self, machine: Machine) -> Instance:
        return replace(machine.instance, state=self.cloud.state(machine))


def failing_once(error: type[ProviderError], point: str) -> Fault:
    """Raises this error the first time the point is passed."""
    left = [error(f"made up for a test at {point}")]

    def fault(passed: str) -> None:
        if passed == point and left:
            raise left.pop()

    return fault
