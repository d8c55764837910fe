"""Tokens of an unfinished episode that a node hands back, so that another node can continue it."""

from collections.abc import Iterable
from dataclasses import dataclass

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, TaskId
from astraflow.contract.rollouts.generation import Generation
from astraflow.contract.rollouts.token_columns import columns_nbytes

MAX_PARTIAL_ROLLOUT_BYTES = 8 * 2**20
"""Largest size of the tokens and logprobs in a partial rollout: a million tokens. A larger task is handed back without
them and starts over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGeneration:
    """A policy's output for one request of an episode."""

    policy: PolicyId
    request: bytes
    """Digest of policy, prompt tokens and sampling parameters; equal requests have equal digests on every node."""
    generation: Generation
    """`Finish.ABORT` when it holds only the beginning of an answer."""

    @property
    def size_bytes(self) -> int:
        """Size of its arrays."""
        generation = self.generation
        return generation.tokens.nbytes + generation.logprobs.nbytes + columns_nbytes(generation.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialRollout:
    """A task that a node hands back before its episode has ended.

    The next node runs the workflow from the start in a fresh environment and answers requests that equal recorded
    requests from `generations`. Any workflow thereby reaches the state it was in without generating a token twice.
    """

    task: TaskId
    attempt: int
    generations: tuple[RecordedGeneration, ...]
    """All generations the next node can use; empty when dataflow already has all of them."""
    continued_tokens: int = 0
    """Tokens in `generations` that a previous node wrote."""

    def __post_init__(self) -> None:
        if self.size_bytes > MAX_PARTIAL_ROLLOUT_BYTES:
            raise InvalidInput(
                f"cannot hand back the partial rollout of task {str(self.task)!r}: its arrays have "
                f"{self.size_bytes} bytes, more than {MAX_PARTIAL_ROLLOUT_BYTES}; hand the task back without them",
                code="partial_rollout.too_large",
            )

    @property
    def size_bytes(self) -> int:
        """Size of its arrays."""
        return total_size_bytes(self.generations)

    @property
    def tokens(self) -> int:
        """Number of model-written tokens."""
        return sum(len(recorded.generation.tokens) for recorded in self.generations)


def total_size_bytes(recorded: Iterable[RecordedGeneration]) -> int:
    """Returns the bytes of all their arrays."""
    return sum(generation.size_bytes for generation in recorded)
