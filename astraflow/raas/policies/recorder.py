"""Records the generations of one task by request, so that another node can continue a partial rollout."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from hashlib import blake2b

from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.contract.rollouts.partial_rollouts import RecordedGeneration
from astraflow.contract.rollouts.trajectories import Int32Array

Abort = Callable[[], Awaitable[None]]


_ALWAYS = ("max_new_tokens", "temperature", "top_p", "stop_tokens")


def request_key(policy: PolicyId, prompt: Int32Array, sampling: Sampling) -> bytes:
    """Returns the digest that identifies a request: 16 bytes, the same on every node.

    The prompt itself is not recorded: in a long conversation each turn repeats the earlier turns, and the replayed
    workflow builds the prompt again.
    """
    parameters: tuple[object, ...] = (
        str(policy),
        sampling.max_new_tokens,
        sampling.temperature,
        sampling.top_p,
        sampling.stop_tokens,
    )
    further = (field for field in fields(sampling) if field.name not in _ALWAYS)
    values = {
        field.name: getattr(sampling, field.name) for field in further if getattr(sampling, field.name) != field.default
    }
    if values:
        parameters = (*parameters, values)
    digest = blake2b(repr(parameters).encode(), digest_size=16)
    digest.update(prompt.astype("<i4", copy=False).tobytes())
    return digest.digest()


class RolloutRecorder:
    """Generations of one task, by an earlier node that handed them back and by this node.

        running: requests are recalled or generated ──stop──► stopped: `block_if_stopped` no longer returns

    A request that equals a recorded one is recalled, in any order, because a workflow may run several requests at
    once. If the environment behaves differently, the workflow sends other requests, which are generated again; the
    recordings then stay unused.
    """

    def __init__(self, resume: Sequence[RecordedGeneration] = ()) -> None:
        self.continued_tokens = 0
        """Tokens recalled so far. Count."""
        self._unused = list(resume)
        """Generations of earlier nodes that were not recalled yet."""
        self._recorded: list[RecordedGeneration] = []
        """Generations recalled or written on this node, in order of completion."""
        self._has_progress = False
        """True once a generation was recalled or written; before, dataflow already has every recording."""
        self._is_stopped = False
        self._in_flight: dict[object, Abort] = {}
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def recall(self, request: bytes) -> Generation | None:
        """Returns and removes a recording of the request, if any; an incomplete generation has `Finish.ABORT`."""
        for index, recorded in enumerate(self._unused):
            if recorded.request == request:
                del self._unused[index]
                self.continued_tokens += len(recorded.generation.tokens)
                return recorded.generation
        return None

    def record(self, policy: PolicyId, request: bytes, generation: Generation) -> None:
        """Records a complete or aborted generation, including the tokens recalled for its request."""
        if len(generation.tokens):
            self._has_progress = True
            self._recorded.append(RecordedGeneration(policy=policy, request=request, generation=generation))

    @contextmanager
    def in_flight(self, abort: Abort) -> Iterator[None]:
        """Lets `stop` call `abort` while the block runs."""
        token = object()
        self._in_flight[token] = abort
        self._is_idle.clear()
        try:
            yield
        finally:
            del self._in_flight[token]
            if not self._in_flight:
                self._is_idle.set()

    async def block_if_stopped(self) -> None:
        """Returns at once while the task runs; blocks after `stop`, whose caller cancels the workflow."""
        if self._is_stopped:
            await asyncio.Event().wait()

    @property
    def is_stopped(self) -> bool:
        """True once the task is being handed back."""
        return self._is_stopped

    async def stop(self) -> None:
        """Aborts the requests in flight and waits until their generations are recorded."""
        self._is_stopped = True
        for abort in list(self._in_flight.values()):
            await abort()
        await self._is_idle.wait()

    def generations_to_hand_back(self) -> tuple[RecordedGeneration, ...]:
        """Returns the generations for the next node; empty when dataflow already has all of them."""
        return (*self._recorded, *self._unused) if self._has_progress else ()
