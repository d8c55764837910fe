"""Reward by the verifiers of reasoning-gym.

Source: Reasoning Gym, arXiv:2505.24760.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets.base import ANSWER, QUESTION
from astraflow.datasets.generated.reasoning_gym import GENERATOR, METADATA, SETTINGS
from astraflow.rewards import rewards
from astraflow.rewards.base import Score, last_tagged
from astraflow.rewards.worker_pool import CallFailed
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.imports import require_package
from astraflow.sandbox import sandboxes
from astraflow.sandbox.base import Job, JobLimits, Outcome, SandboxError
from astraflow.sandbox.shared import SharedSandbox

_HARNESS = Path(__file__).with_name("reasoning_gym_harness.py").read_text()
_WALL_TO_CPU = 3.0
"""Limit by the clock over that of processor time, so that a busy node fails no right answer."""
_MEMORY_BYTES = 2**30
"""Memory of a verifier beyond that of the package."""
_BATCHES = len(os.sched_getaffinity(0))
"""Jobs at once."""
_BATCH_CALLS = 64
"""Answers in one job: a fork of a process with the package takes longer than most answers."""
_BATCH_CPU_S = 1.0
"""Limit of a job with several answers, which are then verified alone: one of them may be hostile."""


class ReasoningGymRewardOptions(Config):
    """Extraction of the answer, and the sandbox of the verifiers."""

    tag: Annotated[str, SettableBy.AGENT] = ""
    """Tag around the answer in the completion, such as `answer`; the last one counts, and a completion without one
    scores 0. Empty: the whole completion is the answer."""
    has_partial_credit: Annotated[bool, SettableBy.AGENT] = True
    """Use the scores between 0 and 1 that some verifiers give for parts or for form; else they count as 0."""
    max_answer_chars: int = Field(default=20_000, ge=1)
    """A longer answer is wrong. Characters."""
    sandbox: Annotated[dict[str, Any], SettableBy.RECIPE, sandboxes] = Field(default={"kind": "local"})
    """Sandbox of the verifiers: its kind and options. `local` gets the packages of this process as `import_paths` and
    loads reasoning-gym before it takes answers, unless its options say otherwise; a service must have the package."""
    limit_s: float = Field(default=5.0, gt=0)
    """An answer that takes longer to verify is wrong. Seconds of processor time."""


@rewards.register("reasoning_gym", options=ReasoningGymRewardOptions)
class ReasoningGymReward:
    """Returns the score of the verifier that belongs to the prompt of the data set `reasoning_gym`, in 0 to 1.

    Verifiers run in a sandbox, because some evaluate fields of the prompt as Python.
    """

    def __init__(self, options: ReasoningGymRewardOptions) -> None:
        require_package("reasoning_gym", extra="reasoning-gym", to="use reward 'reasoning_gym'")
        self._options = options
        self._sandbox = SharedSandbox(_with_package(options.sandbox))
        self._waiting: list[_Call] = []
        self._batches: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Starts the sandbox. Raises: SandboxError."""
        await self._sandbox.start()

    async def close(self) -> None:
        """Ends what is being verified, and releases the sandbox."""
        for batch in self._batches:
            batch.cancel()
        await asyncio.gather(*self._batches, return_exceptions=True)
        await self._sandbox.close()

    async def score(self, prompt: Prompt, completion: str, finish: Finish) -> Score:
        """Returns the score. Raises: InvalidInput for a prompt of another data set; CallFailed; SandboxError."""
        fields = prompt.fields
        missing = {GENERATOR, SETTINGS, METADATA, QUESTION, ANSWER} - fields.keys()
        if missing:
            raise InvalidInput(
                f"cannot score prompt {prompt.id!r}: it has no field {min(missing)!r}; use this reward with the "
                "dataset 'reasoning_gym'",
                code="reward.no_generator",
            )
        answer = last_tagged(completion, self._options.tag) if self._options.tag else completion
        answer = (answer or "").strip()
        if not answer or len(answer) > self._options.max_answer_chars:
            return Score(value=0.0)
        entry = {name: fields[name] for name in (QUESTION, ANSWER, METADATA)}
        call = {"generator": fields[GENERATOR], "settings": fields[SETTINGS], "entry": entry, "answer": answer}
        value = await self._verified(call)
        return Score(value=value if value >= 1 or self._options.has_partial_credit else 0.0, answer=answer)

    async def _verified(self, content: dict[str, Any]) -> float:
        """Returns the score of a call, which is verified with others that wait. Raises: CallFailed; SandboxError."""
        call = _Call(content)
        self._waiting.append(call)
        if len(self._batches) < _BATCHES:
            batch = asyncio.create_task(self._verify_waiting())
            self._batches.add(batch)
            batch.add_done_callback(self._batches.discard)
        result = await call.result
        if "score" not in result:
            raise CallFailed(
                f"cannot verify an answer: {result['error']}; check the fields of the prompt", code="worker.call_failed"
            )
        return float(result["score"])

    async def _verify_waiting(self) -> None:
        """Verifies the calls that wait, until none does."""
        while self._waiting:
            batch, self._waiting = self._waiting[:_BATCH_CALLS], self._waiting[_BATCH_CALLS:]
            try:
                results = await self._results([call.content for call in batch])
            except BaseException as problem:
                for call in batch:
                    call.settle(problem)
                if not isinstance(problem, SandboxError):
                    raise
            else:
                for call, result in zip(batch, results, strict=True):
                    call.settle(result)

    async def _results(self, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns a score or an error for each call: those of a job that ends badly are verified alone.

        Raises: SandboxError.
        """
        cpu_s = self._options.limit_s if len(calls) == 1 else _BATCH_CPU_S
        limits = JobLimits(cpu_s=cpu_s, wall_s=_WALL_TO_CPU * cpu_s, memory_bytes=_MEMORY_BYTES)
        job = Job(source="main()", library=_HARNESS, stdin=json.dumps(calls), limits=limits)
        result = await self._sandbox.run(job)
        if result.outcome is Outcome.PASSED and not result.is_output_cut:
            results: list[dict[str, Any]] = json.loads(result.stdout)
            return results
        if len(calls) > 1:
            alone = await asyncio.gather(*(self._results([call]) for call in calls))
            return [result for (result,) in alone]
        if result.outcome in {Outcome.TIMEOUT, Outcome.MEMORY, Outcome.CRASHED}:
            return [{"score": 0.0}]
        return [{"error": (result.stderr.strip().splitlines() or ["no reply"])[-1][:500]}]


class _Call:
    """Answer to verify."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.result: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def settle(self, result: dict[str, Any] | BaseException) -> None:
        """Ends the wait for the result, unless the caller left."""
        if self.result.done():
            return
        if isinstance(result, asyncio.CancelledError):
            self.result.cancel()
        elif isinstance(result, BaseException):
            self.result.set_exception(result)
        else:
            self.result.set_result(result)


def _with_package(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the specification of a sandbox whose jobs can import the packages of this process."""
    folders = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    preset = {"import_paths": folders, "modules": ["reasoning_gym"]} if spec.get("kind") == "local" else {}
    return {**preset, **spec}
