"""Versions that several publishers send together, each a part: who is there, who is missing, and what all are told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from astraflow.contract.errors import Conflict, InvalidInput, Unavailable
from astraflow.contract.ids import PolicyId
from astraflow.contract.weights import Chunk, Manifest, Part, Transfer
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.logs import get_logger
from astraflow.weights.gathering import Gathering

log = get_logger()

Result = TypeVar("Result")


@dataclass(slots=True, kw_only=True, eq=False)
class _Sender:
    """One call that brings a part."""

    part: Part
    has_placed: bool = False
    working: asyncio.Lock = field(default_factory=asyncio.Lock)


class _Joint:
    """One version while its parts come. Every sender waits for `done`: whether the version was new, or why not.

    sender:  joined ─► bringing ─► placed ─────────────► told
                │          │          │ all are placed: kept, durably
                └── hung up, or sent by another call ──► its part is missing again
    """

    def __init__(self, gathering: Gathering, *, now: float) -> None:
        self.gathering = gathering
        self.moved_at = now
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.is_kept = False
        """All parts are there, and the whole is being proven and kept: nobody who hangs up changes that."""
        self._senders: dict[Part, _Sender] = {}

    @property
    def is_left(self) -> bool:
        """Nobody sends any more."""
        return not self._senders

    @property
    def is_whole(self) -> bool:
        """Every byte is in its place: parts never overlap, so their sizes say so."""
        placed = sum(sender.part.size_bytes for sender in self._senders.values() if sender.has_placed)
        return placed == self.gathering.manifest.size_bytes

    def joined(self, part: Part) -> _Sender:
        """Who sends a part now; a call that sent the same part before is not listened to any more.

        Raises: InvalidInput for one that overlaps another.
        """
        for other in self._senders:
            if other != part and other.offset < part.end and part.offset < other.end:
                raise InvalidInput(
                    f"bytes {part.offset} to {part.end} overlap {other.offset} to {other.end}, which another publisher "
                    "sends: all must share a version out in the same way"
                )
        self._senders[part] = sender = _Sender(part=part)
        return sender

    async def work(self, sender: _Sender, what: Callable[[], Result]) -> Result:
        """Let a thread work on a sender's part. Raises: Conflict when it is sent by somebody else now."""
        async with sender.working:
            if self._senders.get(sender.part) is not sender:
                raise Conflict(f"bytes {sender.part.offset} to {sender.part.end} are sent by another publisher too")
            if self.done.done():
                self.done.result()
            return await asyncio.to_thread(what)

    def left(self, sender: _Sender) -> None:
        """A sender was told, failed or hung up."""
        if self._senders.get(sender.part) is sender and not self.is_kept:
            del self._senders[sender.part]

    def missing(self) -> str:
        """What has not come, for a person."""
        at, gaps = 0, []
        for part in sorted((part for part, one in self._senders.items() if one.has_placed), key=lambda one: one.offset):
            gaps += [f"{at} to {part.offset}"] if part.offset > at else []
            at = part.end
        end = self.gathering.manifest.size_bytes
        return ", ".join([*gaps, *([f"{at} to {end}"] if at < end else [])])

    def tell(self, outcome: bool | Exception) -> None:
        """All senders, once."""
        if self.done.done():
            return
        if isinstance(outcome, Exception):
            self.done.set_exception(outcome)
            self.done.exception()  # senders may all have hung up
        else:
            self.done.set_result(outcome)


class Joints:
    """The versions that come in parts, at most one of each policy at a time."""

    def __init__(
        self,
        begin: Callable[[Manifest], Gathering | None],
        *,
        keep: Callable[[Gathering], Awaitable[bool]],
        wait_s: float,
        clock: Clock | None = None,
    ) -> None:
        """begin: makes room for a version; None when it is there already; blocks. keep: proves and keeps a whole one.
        wait_s: how long nothing may come of a version before those who wait for the rest are sent away."""
        self._begin = begin
        self._keep = keep
        self._wait_s = wait_s
        self._clock = clock or SystemClock()
        self._joints: dict[PolicyId, _Joint] = {}
        self._beginning = asyncio.Lock()
        self._beside: set[asyncio.Task[None]] = set()

    async def publish(self, manifest: Manifest, part: Part, transfer: Transfer, chunks: AsyncIterator[Chunk]) -> bool:
        """Take a part in; returns once the whole version is durable, False if it was there already.

        Raises: as `WeightStore.begin_parts`, `Gathering.coming` and `Gathering.take`; Unavailable when the rest does
        not come, or other weights come under that version; Conflict when somebody else sends the same part.
        """
        joint = await self._joint(manifest)
        if joint is None:
            return False
        if joint.is_kept:
            return await asyncio.shield(joint.done)
        sender = joint.joined(part)
        try:
            coming = await joint.work(sender, lambda: joint.gathering.coming(part, transfer))
            async for chunk in chunks:
                joint.moved_at = self._clock.now()
                await joint.work(sender, lambda chunk=chunk: coming.add(chunk))  # type: ignore[misc]  # (bound now)
            await joint.work(sender, coming.place)
            sender.has_placed = True
            joint.moved_at = self._clock.now()
            if joint.is_whole:
                joint.is_kept = True
                self._own(self._kept(joint))
            return await asyncio.shield(joint.done)
        finally:
            joint.left(sender)
            if joint.is_left:
                self._drop(joint, Unavailable("every publisher has left"))

    async def stop(self) -> None:
        """Send those away who wait for others, and let whole versions be kept."""
        for joint in list(self._joints.values()):
            if not joint.is_kept:
                self._drop(joint, Unavailable("the weight store is stopping"))
        await asyncio.gather(*self._beside)

    async def _joint(self, manifest: Manifest) -> _Joint | None:
        """Where this very version gathers. Other weights that were gathering under that policy make room for it: their
        trainer has begun again."""
        async with self._beginning:
            known = self._joints.get(manifest.policy)
            if known is not None and known.gathering.manifest == manifest:
                return known
            gathering = await asyncio.to_thread(self._begin, manifest)
            if gathering is None:
                return None
            known = self._joints.get(manifest.policy)
            if known is not None and known.is_kept:
                raise Unavailable(f"{manifest.policy} version {known.gathering.manifest.version} is just being kept")
            if known is not None:
                self._drop(known, Unavailable(f"{manifest.policy} version {manifest.version} is published anew"))
            joint = self._joints[manifest.policy] = _Joint(gathering, now=self._clock.now())
            self._own(self._watch(joint))
            return joint

    async def _watch(self, joint: _Joint) -> None:
        """Until it is done, or nothing comes any more."""
        while not joint.done.done():
            left_s = joint.moved_at + self._wait_s - self._clock.now()
            if left_s <= 0 and not joint.is_kept:
                version = f"{joint.gathering.manifest.policy} version {joint.gathering.manifest.version}"
                problem = f"bytes {joint.missing()} of {version} did not come within {self._wait_s} s: send all again"
                self._drop(joint, Unavailable(problem))
                return
            pause = asyncio.create_task(self._clock.sleep(left_s if left_s > 0 else self._wait_s))
            waits: set[asyncio.Future[Any]] = {pause, joint.done}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            pause.cancel()

    async def _kept(self, joint: _Joint) -> None:
        try:
            outcome: bool | Exception = await self._keep(joint.gathering)
        except Exception as problem:
            outcome = problem
        self._drop(joint, outcome)

    def _drop(self, joint: _Joint, outcome: bool | Exception) -> None:
        """It is over, one way or the other: its memory goes with the last who holds it."""
        manifest = joint.gathering.manifest
        if not joint.done.done() and isinstance(outcome, Exception):
            log.warning("parts_let_go", policy=manifest.policy, version=manifest.version, problem=str(outcome))
        joint.tell(outcome)
        if self._joints.get(manifest.policy) is joint:
            del self._joints[manifest.policy]

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
