"""The port every serving engine fits: one engine serves one policy.

The shape is that of the servers in use. SGLang: `/generate` with `input_ids` and `return_logprob`, `/pause_generation`
in_place or abort, `/update_weights_from_disk`, `logprob_start_len` to score. vLLM: `/inference/v1/generate`, `/pause`
keep or abort, weight reload through a worker extension, `prompt_logprobs` to score. Both report version spans.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from astraflow.contract.generation import Generation, Sampling
from astraflow.contract.ids import Version
from astraflow.contract.trajectories import Float32Array, Int32Array
from astraflow.weights.tensors import VerifiedWeights


class PauseMode(Enum):
    """What becomes of requests in flight while weights are swapped."""

    KEEP = "keep"
    """They wait and go on with the new weights; their spans show both versions."""
    ABORT = "abort"
    """They end now with what they have, `Finish.ABORT`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What taking a version in took, phase by phase."""

    stage_s: float = 0.0
    """Preparing the new weights, while the old ones served."""
    pause_s: float = 0.0
    """Until nothing ran any more."""
    apply_s: float
    """The swap."""
    resume_s: float = 0.0
    """Until what was interrupted went on, or could."""

    @property
    def stopped_s(self) -> float:
        """In which no token could be generated."""
        return self.pause_s + self.apply_s + self.resume_s


class Engine(Protocol):
    """Turns prompts into tokens with the weights it was last given.

    Built by `engines.build(spec, model)` with the policy's model spec. Failures rise as any exception; the caller turns
    them into failed episodes with the boundary `engine`.
    """

    @property
    def version(self) -> Version | None:
        """The version it serves; None until the first load."""

    @property
    def is_simulated(self) -> bool:
        """True for stand-ins, which say so in every report."""

    @property
    def logprob_tolerance(self) -> float:
        """Largest logprob difference to the trainer (nats) that is accepted after a load; infinite for stand-ins."""

    async def generate(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Continue `prompt` (int32 `[n]`, n ≥ 1). Any number may run at once; the engine batches them."""

    async def score(self, tokens: Int32Array, scored_from: int) -> Float32Array:
        """Logprobs at temperature 1 of `tokens[scored_from:]` given what stands before: float32 `[n - scored_from]`."""

    async def load(self, weights: VerifiedWeights) -> EngineLoad:
        """Swap to these weights; what can be prepared is, before anything stops.

        `weights.changes` lets an engine that already has `weights.base` patch in place.
        """

    async def pause(self, mode: PauseMode) -> None:
        """Stop generating; returns when nothing runs any more."""

    async def resume(self) -> None:
        """Go on."""

    async def abort(self, request_id: str) -> None:
        """End one request now; its `generate` returns with `Finish.ABORT`. Unknown ids are ignored."""

    async def close(self) -> None:
        """Abort everything and free what it holds."""
