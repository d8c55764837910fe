"""The policies that a node serves, and what a workflow sees of them."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from astraflow.contract.failures import Boundary
from astraflow.contract.generation import Finish, Generation, Sampling, joined
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.tasks import Task
from astraflow.contract.trajectories import Int32Array
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.raas.counters import NodeCounters
from astraflow.raas.engines.base import Engine
from astraflow.raas.recording import Recording, request_key
from astraflow.raas.turns import TurnTimes
from astraflow.runtime.logs import get_logger
from astraflow.runtime.tracing import span
from astraflow.workflows.base import PolicyPort
from astraflow.workflows.errors import RolloutBroke

log = get_logger()

CLOSE_S = 1.0
"""An engine gets this long to close."""


class ServedPolicy:
    """One policy on this node: its engine, its tokenizer, and whether what it serves is proven.

    waiting ──good version──► serving ──bad version──► withheld ──good version──► serving
    """

    def __init__(self, policy: PolicyId, engine: Engine, tokenizer: ChatTokenizer) -> None:
        self.policy = policy
        self.engine = engine
        self.tokenizer = tokenizer
        self.is_serving = False

    async def close(self) -> None:
        """End all generations and free what the engine holds, as far as that can be done in time."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.engine.close()
        except Exception:
            log.exception("engine_not_closed", policy=self.policy)


class ServedPolicies(Mapping[PolicyId, ServedPolicy]):
    """All policies that the flows of a run need. `ready` is set while every one of them serves a proven version."""

    def __init__(self, policies: Mapping[PolicyId, ServedPolicy]) -> None:
        self._policies = dict(policies)
        self.ready = asyncio.Event()
        self.changed = asyncio.Event()
        """Set when what is served changed; whoever tells dataflow clears it."""

    def __getitem__(self, policy: PolicyId) -> ServedPolicy:
        return self._policies[policy]

    def __iter__(self) -> Iterator[PolicyId]:
        return iter(self._policies)

    def __len__(self) -> int:
        return len(self._policies)

    def set_serving(self, policy: PolicyId, is_serving: bool) -> None:
        """A policy's version was proven, or turned out bad."""
        self._policies[policy].is_serving = is_serving
        self.changed.set()
        if all(served.is_serving for served in self._policies.values()):
            self.ready.set()
        else:
            self.ready.clear()

    def versions(self) -> dict[PolicyId, Version]:
        """What is served now; without the policies that serve nothing proven."""
        return {
            policy: served.engine.version
            for policy, served in self._policies.items()
            if served.is_serving and served.engine.version is not None
        }

    def ports(
        self, task: Task, recording: Recording, counters: NodeCounters, turns: TurnTimes | None = None
    ) -> dict[PolicyId, PolicyPort]:
        """What a workflow sees while it runs that task. turns: notes how long answers take, where that is looked at."""
        return {policy: TaskPort(served, task, recording, counters, turns) for policy, served in self._policies.items()}


class TaskPort:
    """One policy for one task: names its requests, counts its tokens, and says where a failure belongs.

    It records what is written. What an earlier node wrote for the same request is not written again: a whole answer is
    given at once, and one that was only begun goes on from prompt and beginning, with what is left of its length.
    """

    def __init__(
        self,
        served: ServedPolicy,
        task: Task,
        recording: Recording,
        counters: NodeCounters,
        turns: TurnTimes | None = None,
    ) -> None:
        self._served = served
        self._task = task
        self._recording = recording
        self._counters = counters
        self._turns = turns
        self._requests = 0

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The policy's tokenizer."""
        return self._served.tokenizer

    async def generate(self, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Continue `prompt`. Raises: RolloutBroke at the boundary `engine`."""
        await self._recording.checkpoint()
        policy = self._served.policy
        if not self._served.is_serving:
            raise RolloutBroke(Boundary.ENGINE, f"this node serves no proven version of {policy} now")
        request = request_key(policy, prompt, sampling)
        begun = self._recording.recall(request)
        if begun is not None:
            self._counters.add("tokens_continued", len(begun.tokens))
        began = self._turns.now if self._turns is not None else 0.0
        generation = await self._written(prompt, sampling, begun)
        if self._turns is not None and begun is None:
            self._turns.note(policy, prompt, generation, began=began)
        if generation.finish is Finish.ABORT and not (self._recording.is_stopped and self._served.is_serving):
            raise RolloutBroke(Boundary.ENGINE, f"a generation of {policy} was cut short")
        self._recording.note(policy, request, generation)
        await self._recording.checkpoint()
        return generation

    async def _written(self, prompt: Int32Array, sampling: Sampling, begun: Generation | None) -> Generation:
        """The answer to the end, or as far as it came before it was aborted."""
        if begun is None:
            return await self._ask(prompt, sampling, begun_tokens=0)
        left = sampling.max_new_tokens - len(begun.tokens)
        if begun.finish is not Finish.ABORT:
            return begun
        if left <= 0:
            return replace(begun, finish=Finish.LENGTH)
        so_far = np.concatenate([prompt, begun.tokens])
        rest = await self._ask(so_far, replace(sampling, max_new_tokens=left), begun_tokens=len(begun.tokens))
        return joined(begun, rest)

    async def _ask(self, prompt: Int32Array, sampling: Sampling, *, begun_tokens: int) -> Generation:
        """begun_tokens: at the end of `prompt`. They are in the request's id, by which engines draw random numbers:
        those of the beginning must not come again."""
        policy = self._served.policy
        request_id = f"{self._task.id}.{self._task.attempt}.{policy}.{self._requests}"
        self._requests += 1
        if begun_tokens:
            request_id = f"{request_id}+{begun_tokens}"
        try:
            with (
                span("rl.generate", policy=policy, prompt_tokens=len(prompt)),
                self._recording.under_way(lambda: self._abort(request_id)),
            ):
                generation = await self._generated(request_id, prompt, sampling)
        except Exception as problem:
            raise RolloutBroke(Boundary.ENGINE, f"{type(problem).__name__}: {problem}") from problem
        self._counters.add("tokens_generated", len(generation.tokens))
        if not np.isfinite(generation.logprobs).all():
            raise RolloutBroke(Boundary.ENGINE, f"the engine of {policy} gave a logprob that is not a finite number")
        return generation

    async def _generated(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        try:
            return await self._served.engine.generate(request_id, prompt, sampling)
        except asyncio.CancelledError:
            await self._abort(request_id)
            raise

    async def _abort(self, request_id: str) -> None:
        try:
            await self._served.engine.abort(request_id)
        except Exception:
            log.exception("abort_failed", request=request_id)
