"""Policies that a node serves, and their clients for workflows."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from hashlib import blake2b

import numpy as np

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, joined
from astraflow.contract.rollouts.recording import ColumnNeeds
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.raas.counters import NodeCounters
from astraflow.raas.engines.base import Engine
from astraflow.raas.engines.continuations import continuable
from astraflow.raas.policies.recorder import RolloutRecorder, request_key
from astraflow.raas.policies.reprefill_check import ReprefillCheck
from astraflow.raas.policies.sampling_check import SamplingCheck
from astraflow.raas.policies.turn_times import TurnTimes
from astraflow.runtime.logs import get_logger
from astraflow.runtime.tracing import span
from astraflow.workflows.base import PolicyClient

log = get_logger()

CLOSE_TIMEOUT_S = 3.0
"""Time limit for closing an engine."""


class ServedPolicy:
    """One policy on this node: its engine, its tokenizer, and whether the loaded version is verified.

    waiting ──verified version──► serving ──failed version──► unready ──verified version──► serving
    """

    def __init__(self, policy: PolicyId, engine: Engine, tokenizer: ChatTokenizer) -> None:
        self.policy = policy
        self.engine = engine
        self.tokenizer = tokenizer
        self.version: Version | None = None
        """Verified version in service. Stays while the engine loads the next one, when the engine has none."""
        self.reprefill = ReprefillCheck(engine)
        """Gets the generations of tasks; the weight loop runs it."""

    @property
    def is_serving(self) -> bool:
        """True while a verified version is in service."""
        return self.version is not None

    async def close(self) -> None:
        """Closes the engine within the time limit; logs a failure."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.engine.close()
        except Exception:
            log.exception("engine_not_closed", policy=self.policy)


class ServedPolicies(Mapping[PolicyId, ServedPolicy]):
    """Policies that the flows of a run use. `ready` is set while every policy serves a verified version."""

    def __init__(self, policies: Mapping[PolicyId, ServedPolicy]) -> None:
        self._policies = dict(policies)
        self.ready = asyncio.Event()
        self.changed = asyncio.Event()
        """Set when a served version changed; the task that reports it to dataflow clears it."""

    def __getitem__(self, policy: PolicyId) -> ServedPolicy:
        return self._policies[policy]

    def __iter__(self) -> Iterator[PolicyId]:
        return iter(self._policies)

    def __len__(self) -> int:
        return len(self._policies)

    def set_version(self, policy: PolicyId, version: Version | None) -> None:
        """Sets the version that the policy serves after its verification; None after a failed one."""
        self._policies[policy].version = version
        self.changed.set()
        if all(served.is_serving for served in self._policies.values()):
            self.ready.set()
        else:
            self.ready.clear()

    def versions(self) -> dict[PolicyId, Version]:
        """Returns the served version of each policy, without policies that serve no verified version."""
        return {policy: served.version for policy, served in self._policies.items() if served.version is not None}

    def for_task(
        self,
        task: Task,
        recorder: RolloutRecorder,
        counters: NodeCounters,
        turns: TurnTimes | None = None,
        sampling_check: SamplingCheck | None = None,
        *,
        columns: Mapping[PolicyId, ColumnNeeds] | None = None,
    ) -> dict[PolicyId, PolicyClient]:
        """Returns the policy clients for the workflow of a task. turns: records durations of sampled groups.
        sampling_check: records the samples that must not be trained. columns: `FlowSpec.columns`."""
        needs = columns or {}
        return {
            policy: TaskPolicy(served, task, recorder, counters, turns, sampling_check, columns=needs.get(policy))
            for policy, served in self._policies.items()
        }


class TaskPolicy:
    """Client of one policy for one task: names requests, counts tokens, and assigns failures to their boundary.

    Records every generation. A generation that an earlier node completed for the same request is returned at once;
    an incomplete one continues after its tokens, with the remaining length, or after a part of them as in
    `continuable`.
    """

    def __init__(
        self,
        served: ServedPolicy,
        task: Task,
        recorder: RolloutRecorder,
        counters: NodeCounters,
        turns: TurnTimes | None = None,
        sampling_check: SamplingCheck | None = None,
        *,
        columns: ColumnNeeds | None = None,
    ) -> None:
        self._served = served
        self._columns = columns
        self._task = task
        self._recorder = recorder
        self._counters = counters
        self._turns = turns
        self._sampling_check = sampling_check
        self._requests = 0

    @property
    def tokenizer(self) -> ChatTokenizer:
        return self._served.tokenizer

    @property
    def allows_grammars(self) -> bool:
        """True if the samples are not trained, or the engine records kept sets."""
        return not self._is_trained or TokenColumn.SUPPORT in self._served.engine.records

    async def generate(self, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Continues `prompt`. Raises: RolloutFailed at the boundary `engine`."""
        await self._recorder.block_if_stopped()
        policy = self._served.policy
        if not self._served.is_serving:
            raise RolloutFailed(
                f"cannot generate: this node serves no verified version of {policy!r}",
                boundary=Boundary.ENGINE,
                code="rollout.not_serving",
            )
        sampling = self._recording(sampling)
        request = request_key(policy, prompt, sampling)
        recalled = self._recalled(request, sampling)
        if recalled is not None:
            self._counters.add("tokens_continued", len(recalled.tokens))
        began_at = self._turns.now if self._turns is not None else 0.0
        generation = self._with_temperature(await self._continue_generation(prompt, sampling, recalled), sampling)
        if self._turns is not None and recalled is None:
            self._turns.record(policy, prompt, generation, began=began_at)
        if generation.finish is Finish.ABORT and not (self._recorder.is_stopped and self._served.is_serving):
            raise RolloutFailed(
                f"cannot use the generation: the engine of {policy!r} aborted it",
                boundary=Boundary.ENGINE,
                code="rollout.aborted",
            )
        if self._sampling_check is not None:
            self._sampling_check.record(policy, sampling, generation)
        self._served.reprefill.offer(prompt, sampling, generation)
        self._recorder.record(policy, request, generation)
        await self._recorder.block_if_stopped()
        return generation

    def _recording(self, sampling: Sampling) -> Sampling:
        """Returns the sampling with the columns that training needs of the tokens."""
        if self._columns is not None:
            sampling = replace(sampling, **asdict(self._columns))
        records_support = self._is_trained and TokenColumn.SUPPORT in self._served.engine.records
        return sampling.recording_support() if records_support else sampling

    @property
    def _is_trained(self) -> bool:
        check = self._sampling_check
        return check is not None and self._served.policy in check.temperatures

    def _with_temperature(self, generation: Generation, sampling: Sampling) -> Generation:
        """Returns the generation with its temperature as a column, where training computes at another one."""
        check = self._sampling_check
        if check is None or check.temperatures.get(self._served.policy, sampling.temperature) == sampling.temperature:
            return generation
        column = TokenColumn.TEMPERATURE
        recorded = np.full((len(generation.tokens), 1), sampling.temperature, column.dtype)
        return replace(generation, columns={**generation.columns, column: recorded})

    def _recalled(self, request: bytes, sampling: Sampling) -> Generation | None:
        """Returns the recording of a request, of an incomplete one the part that can be continued; None without any.

        Tokens that the request cannot have led to are ignored: another node may have handed back anything.
        """
        recalled = self._recorder.recall(request)
        if recalled is not None and not self._is_possible(recalled, sampling):
            log.warning(
                "recording_ignored", task=self._task.id, policy=self._served.policy, tokens=len(recalled.tokens)
            )
            self._recorder.continued_tokens -= len(recalled.tokens)
            return None
        is_incomplete = recalled is not None and recalled.finish is Finish.ABORT
        if recalled is None or not is_incomplete or len(recalled.tokens) >= sampling.max_new_tokens:
            return recalled
        kept = continuable(recalled, sampling, partial(self.tokenizer.decode, keep_special_tokens=True))
        self._recorder.continued_tokens -= len(recalled.tokens) - (len(kept.tokens) if kept is not None else 0)
        return kept

    def _is_possible(self, recalled: Generation, sampling: Sampling) -> bool:
        ids = recalled.tokens.view(np.uint32)  # negative ids are large then
        is_recorded = recalled.has_support or not sampling.with_support
        is_short = len(ids) <= sampling.max_new_tokens
        return is_recorded and is_short and int(ids.max(initial=0)) < self.tokenizer.vocab_size

    async def _continue_generation(
        self, prompt: Int32Array, sampling: Sampling, recalled: Generation | None
    ) -> Generation:
        """Returns the complete generation, or its tokens up to the abort."""
        if recalled is None:
            return await self._generate_counted(prompt, sampling, begun_tokens=0)
        remaining_tokens = sampling.max_new_tokens - len(recalled.tokens)
        if recalled.finish is not Finish.ABORT:
            return recalled
        if remaining_tokens <= 0:
            return replace(recalled, finish=Finish.LENGTH)
        known_tokens = np.concatenate([prompt, recalled.tokens])
        rest = await self._generate_counted(
            known_tokens, replace(sampling, max_new_tokens=remaining_tokens), begun_tokens=len(recalled.tokens)
        )
        return joined(recalled, rest)

    async def _generate_counted(self, prompt: Int32Array, sampling: Sampling, *, begun_tokens: int) -> Generation:
        """begun_tokens: recalled tokens at the end of `prompt`. The request id contains their number because it seeds
        the engine's random numbers, and those of the recalled tokens must not repeat."""
        policy = self._served.policy
        request_id = f"{self._task.id}.{self._task.attempt}.{policy}.{self._requests}"
        self._requests += 1
        if begun_tokens:
            request_id = f"{request_id}+{begun_tokens}"
        if sampling.seed is not None:
            sampling = replace(sampling, seed=_request_seed(sampling.seed, request_id))
        try:
            with (
                span("rl.generate", policy=policy, prompt_tokens=len(prompt)),
                self._recorder.in_flight(lambda: self._abort(request_id)),
            ):
                generation = await self._generate_or_abort(request_id, prompt, sampling)
        except Exception as problem:
            raise RolloutFailed(
                f"{type(problem).__name__}: {problem}", boundary=Boundary.ENGINE, code="rollout.engine_failed"
            ) from problem
        self._counters.add("tokens_generated", len(generation.tokens))
        if not np.isfinite(generation.logprobs).all():
            raise RolloutFailed(
                f"cannot use the generation: the engine of {policy!r} returned a logprob that is not finite",
                boundary=Boundary.ENGINE,
                code="rollout.non_finite_logprob",
            )
        return generation

    async def _generate_or_abort(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
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


def _request_seed(seed: int, request_id: str) -> int:
    """Returns the seed of one request, 0 to 2^31 - 1: the same for the same seed and request on every node."""
    digest = blake2b(f"{seed} {request_id}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1
