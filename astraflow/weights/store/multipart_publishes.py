"""Multipart publishes: versions that several publishers send in parts, and the coordination of their calls."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from astraflow.contract.errors import Conflict, InvalidInput, Unavailable
from astraflow.contract.ids import PolicyId
from astraflow.contract.weights import Chunk, Manifest, Part, Transfer
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.logs import get_logger
from astraflow.weights.store.multipart_upload import MultipartUpload

log = get_logger()

Result = TypeVar("Result")


@dataclass(slots=True, kw_only=True, eq=False)
class _Sender:
    """A call that sends a part."""

    part: Part
    is_written: bool = False
    lock: asyncio.Lock
    """Lock of the part's bytes, shared with the senders that this one replaces."""


class _MultipartPublish:
    """Version whose parts are arriving. All senders wait for `done`, the result: True for a new version, or an error.

    sender:  added ─► receiving ─► written ──────────────► done
                │          │          │ all are written: committed, durable
                └── disconnected, or replaced by another call ──► its part is missing again
    """

    def __init__(self, upload: MultipartUpload, *, now: float) -> None:
        self.upload = upload
        self.last_progress_at = now
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.is_committing = False
        """All parts have arrived and the version is being verified and stored; disconnects no longer matter."""
        self._senders: dict[Part, _Sender] = {}
        self._locks: dict[Part, asyncio.Lock] = {}

    @property
    def has_no_senders(self) -> bool:
        """True when no call is sending a part."""
        return not self._senders

    @property
    def is_complete(self) -> bool:
        """True when all bytes are written. Parts never overlap, so the sum of their sizes is compared."""
        written_bytes = sum(sender.part.size_bytes for sender in self._senders.values() if sender.is_written)
        return written_bytes == self.upload.manifest.size_bytes

    def add_sender(self, part: Part) -> _Sender:
        """Registers the sender of a part; replaces a call that sent the same part before.

        Raises: InvalidInput for a part that overlaps another.
        """
        for other in self._senders:
            if other != part and other.offset < part.end and part.offset < other.end:
                raise InvalidInput(
                    f"cannot publish bytes {part.offset} to {part.end}: they overlap bytes {other.offset} to "
                    f"{other.end} of another publisher; use the same split of the version on all publishers",
                    code="weights.part_overlaps",
                )
        self._senders[part] = sender = _Sender(part=part, lock=self._locks.setdefault(part, asyncio.Lock()))
        return sender

    async def run_for_sender(self, sender: _Sender, work: Callable[[], Result]) -> Result:
        """Runs `work` in a thread, alone among the senders of this part; a cancelled call waits for its thread.

        Raises: Conflict when another call has taken over the part.
        """
        async with sender.lock:
            if self._senders.get(sender.part) is not sender:
                raise Conflict(
                    f"cannot publish bytes {sender.part.offset} to {sender.part.end}: another publisher sends them "
                    "too; give each publisher its own part",
                    code="weights.part_replaced",
                )
            if self.done.done():
                self.done.result()
            return await _to_thread_until_end(work)

    def remove_sender(self, sender: _Sender) -> None:
        """Removes a sender that is done, failed or disconnected."""
        if self._senders.get(sender.part) is sender and not self.is_committing:
            del self._senders[sender.part]

    def describe_missing(self) -> str:
        """Returns the missing byte ranges, for messages."""
        at, gaps = 0, []
        written = [part for part, sender in self._senders.items() if sender.is_written]
        for part in sorted(written, key=lambda part: part.offset):
            gaps += [f"{at} to {part.offset}"] if part.offset > at else []
            at = part.end
        end = self.upload.manifest.size_bytes
        return ", ".join([*gaps, *([f"{at} to {end}"] if at < end else [])])

    def resolve(self, outcome: bool | Exception) -> None:
        """Passes the outcome to all senders; only the first call has an effect."""
        if self.done.done():
            return
        if isinstance(outcome, Exception):
            self.done.set_exception(outcome)
            self.done.exception()  # marks it as retrieved: all senders may have disconnected
        else:
            self.done.set_result(outcome)


class MultipartPublishes:
    """Multipart publishes in progress, at most one of each policy."""

    def __init__(
        self,
        begin: Callable[[Manifest], MultipartUpload | None],
        *,
        commit: Callable[[MultipartUpload], Awaitable[bool]],
        wait_s: float,
        clock: Clock | None = None,
    ) -> None:
        """begin: allocates a version; returns None when it is stored already; blocks. commit: verifies and stores a
        complete version. wait_s: longest time without data before the senders of an incomplete version get an error."""
        self._begin = begin
        self._commit_upload = commit
        self._wait_s = wait_s
        self._clock = clock or SystemClock()
        self._by_policy: dict[PolicyId, _MultipartPublish] = {}
        self._begin_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def publish(self, manifest: Manifest, part: Part, transfer: Transfer, chunks: AsyncIterator[Chunk]) -> bool:
        """Receives a part; returns once the whole version is durable, False if it was stored already.

        Raises: errors of `WeightStore.begin_multipart_upload`, `MultipartUpload.begin_part` and `PartUpload.write`;
        Unavailable when the other parts do not arrive, or another version replaces this one; Conflict when another call
        sends the same part.
        """
        state = await self._find_or_begin(manifest)
        if state is None:
            return False
        if state.is_committing:
            return await asyncio.shield(state.done)
        sender = state.add_sender(part)
        try:
            upload = await state.run_for_sender(sender, lambda: state.upload.begin_part(part, transfer))
            async for chunk in chunks:
                state.last_progress_at = self._clock.now()
                await state.run_for_sender(sender, lambda chunk=chunk: upload.add(chunk))  # type: ignore[misc]  # (bound now)
            await state.run_for_sender(sender, upload.write)
            sender.is_written = True
            state.last_progress_at = self._clock.now()
            if state.is_complete:
                state.is_committing = True
                self._spawn(self._commit(state))
            return await asyncio.shield(state.done)
        finally:
            state.remove_sender(sender)
            if state.has_no_senders:
                self._finish(
                    state,
                    Unavailable(
                        "cannot complete the version: all publishers disconnected; send all parts again",
                        code="weights.publishers_disconnected",
                    ),
                )

    async def stop(self) -> None:
        """Fails the senders of incomplete versions, and waits until complete versions are stored."""
        for state in list(self._by_policy.values()):
            if not state.is_committing:
                self._finish(
                    state,
                    Unavailable(
                        "cannot complete the version: the weight store is stopping; send all parts again",
                        code="weights.store_stopping",
                    ),
                )
        await asyncio.gather(*self._tasks)

    async def _find_or_begin(self, manifest: Manifest) -> _MultipartPublish | None:
        """Returns the publish of this version, or begins it; None when the version is stored already. Replaces an
        incomplete publish of the same policy with another manifest, which a restarted trainer left."""
        async with self._begin_lock:
            current = self._by_policy.get(manifest.policy)
            if current is not None and current.upload.manifest == manifest:
                return current
            upload = await asyncio.to_thread(self._begin, manifest)
            if upload is None:
                return None
            current = self._by_policy.get(manifest.policy)
            if current is not None and current.is_committing:
                raise Unavailable(
                    f"cannot publish version {manifest.version} of {manifest.policy!r}: version "
                    f"{current.upload.manifest.version} is being stored; try again",
                    code="weights.store_busy",
                )
            if current is not None:
                self._finish(
                    current,
                    Unavailable(
                        f"cannot complete version {current.upload.manifest.version} of {manifest.policy!r}: a publish "
                        f"of version {manifest.version} has replaced it; restart all ranks from one checkpoint",
                        code="weights.publish_replaced",
                    ),
                )
            state = self._by_policy[manifest.policy] = _MultipartPublish(upload, now=self._clock.now())
            self._spawn(self._watch(state))
            return state

    async def _watch(self, state: _MultipartPublish) -> None:
        """Waits until the publish is done, or fails it when no data arrives."""
        while not state.done.done():
            left_s = state.last_progress_at + self._wait_s - self._clock.now()
            if left_s <= 0 and not state.is_committing:
                manifest = state.upload.manifest
                problem = (
                    f"cannot complete version {manifest.version} of {manifest.policy!r}: bytes "
                    f"{state.describe_missing()} did not arrive within {self._wait_s} s; send all parts again"
                )
                self._finish(state, Unavailable(problem, code="weights.parts_missing"))
                return
            pause = asyncio.create_task(self._clock.sleep(left_s if left_s > 0 else self._wait_s))
            waits: set[asyncio.Future[Any]] = {pause, state.done}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            pause.cancel()

    async def _commit(self, state: _MultipartPublish) -> None:
        try:
            outcome: bool | Exception = await self._commit_upload(state.upload)
        except Exception as problem:  # the publisher gets it as the outcome
            outcome = problem
        self._finish(state, outcome)

    def _finish(self, state: _MultipartPublish, outcome: bool | Exception) -> None:
        """Ends a publish with its outcome; its memory is freed with the last reference."""
        manifest = state.upload.manifest
        if not state.done.done() and isinstance(outcome, Exception):
            log.warning(
                "multipart_publish_dropped", policy=manifest.policy, version=manifest.version, problem=str(outcome)
            )
        state.resolve(outcome)
        if self._by_policy.get(manifest.policy) is state:
            del self._by_policy[manifest.policy]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _to_thread_until_end(work: Callable[[], Result]) -> Result:
    """Runs `work` in a thread; returns or raises only after its end, also when cancelled, as a thread cannot be."""
    thread = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(thread)
    finally:
        while not thread.done():
            with suppress(asyncio.CancelledError):  # another cancellation; the first one is raised
                await asyncio.wait([thread])
