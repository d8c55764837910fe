"""Interface of training engines, which run on every rank below the world-size-independent step (`trainer.step`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from astraflow.contract.errors import InvalidInput

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from astraflow.algorithms.tokens import Ranks, TokenScores
    from astraflow.contract.weights import Dtype


class ModelRole(Enum):
    """Model that a pass computes with."""

    POLICY = "policy"
    REFERENCE = "reference"
    """Frozen copy of the initial weights."""
    CRITIC = "critic"
    """Model of the policy's architecture that predicts returns. Trained together with the policy."""


Model: TypeAlias = ModelRole | str
"""A role, or the name of a teacher: a frozen model of its own."""


def missing_model(model: Model) -> InvalidInput:
    """Returns the error for a pass of a model that the engine does not have."""
    name = model.value if isinstance(model, ModelRole) else f"teacher {model!r}"
    return InvalidInput(
        f"cannot compute a pass of the {name}: the engine has no such model; give the algorithm one, or use an "
        "algorithm without it",
        code="trainer.no_such_role",
    )


class Batching(Enum):
    """How the forward pass of a pack is computed. All are exact; they differ in cost, and in the models that allow
    them."""

    PACKED = "packed"
    """Flat, without padding, by attention kernels that keep segments apart. Models with attention alone."""
    TREE = "tree"
    """A segment continues the state of its prefix; segments of a pass are padded at the right. Models with a cache."""
    ROWS = "rows"
    """Every trajectory whole, padded at the right. Every causal model."""


PASS_TOKENS = 512
"""Padding that a further forward pass is worth: about what its fixed time would compute on a GPU. Tokens."""


def rows_of_one_pass(lengths: Sequence[int]) -> int:
    """Returns the number of first rows, of rows by descending length, whose padding a further pass would not save."""
    count = len(lengths)
    while count > 1:
        saved = [(lengths[0] - lengths[end]) * (count - end) for end in range(1, count)]
        if max(saved) <= PASS_TOKENS:
            break
        count = saved.index(max(saved)) + 1
    return count


def padded_tokens(lengths: Sequence[int]) -> int:
    """Returns the tokens of rows, divided into passes by length, with padding."""
    rest, tokens = sorted(lengths, reverse=True), 0
    while rest:
        count = rows_of_one_pass(rest)
        tokens += count * rest[0]
        rest = rest[count:]
    return tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Place of a rank in its group. Ranks of one sequence group get the same packs, and split each pack's tokens."""

    rank: int = 0
    ranks: int = 1
    data_rank: int = 0
    """Number of the batch share that this rank trains: `0 .. data_ranks - 1`."""
    data_ranks: int = 1
    """Shares into which a batch is divided."""
    sequence_ranks: int = 1
    """Ranks that compute one pack together (Ulysses)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Stretch of a pack whose tokens attend to each other causally, and wholly to a prefix before it.

    A segment without prefix begins a trajectory. One with a prefix continues another segment after its first tokens,
    which are the prefix, and has the prefixes of that segment too: trajectories that begin alike form a tree, and what
    they share is computed once. The segments of a tree are in depth-first order, so that the tokens after which a
    segment continues are followed by it and by all that continues it, in adjacent positions.
    """

    begin: int
    end: int
    prefix_begin: int = 0
    """Begin of the segment that is continued."""
    prefix_end: int = 0
    """Equal to `prefix_begin` when there is no prefix."""


def prefixes_of(segments: Sequence[Segment]) -> list[tuple[tuple[int, int], ...]]:
    """Returns the prefixes of each segment, begin and end in the pack: its own, then that of the segment which has it,
    and so on. None for the first segment of a trajectory."""
    prefixes: dict[int, tuple[tuple[int, int], ...]] = {}
    for segment in segments:
        own = (segment.prefix_begin, segment.prefix_end)
        prefixes[segment.begin] = (own, *prefixes[own[0]]) if own[1] > own[0] else ()
    return list(prefixes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Input of one forward pass: flat, without padding between trajectories. Tensors are on the CPU.

    A rank that has fewer packs than others gets empty packs (`targets` of length 0, one input token), because every
    rank takes part in every collective.
    """

    input_ids: Tensor
    """int64 `[width]`."""
    positions: Tensor
    """int64 `[width]`: position in its own trajectory."""
    segments: tuple[Segment, ...]
    """Cover `0 .. width` exactly, in order."""
    predictors: Tensor
    """int64 `[tokens]`: position in the pack that predicts the trained token."""
    targets: Tensor
    """int64 `[tokens]`: trained tokens."""
    candidates: Tensor | None = None
    """int64 `[tokens, k]`: further tokens whose logprobs are computed in place of each trained one. Below 0 there is
    none, and the logprob has no meaning. None: no candidates."""
    top: int = 0
    """Number of most likely tokens to return in place of each trained one, without gradient. 0: none."""
    support: Tensor | None = None
    """int64 `[tokens, n]`: `TokenColumn.SUPPORT`, over which the distribution of each token is renormalised; a row of
    -1: the whole vocabulary. None: it is of all tokens."""
    temperatures: Tensor | None = None
    """float32 `[tokens, 1]`: `TokenColumn.TEMPERATURE`; None: that of the algorithm."""

    experts: Tensor | None = None
    """uint8 `[tokens, bytes]`: `TokenColumn.EXPERTS`; None: no token has any."""

    def target_tensors(self) -> dict[str, Tensor]:
        """Returns what the head needs of the trained tokens, by field; without absent fields."""
        names = ("targets", "candidates", "support", "temperatures")
        return {name: values for name in names if (values := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """Result of one optimizer step."""

    grad_norm: float
    """Norm of the whole gradient before clipping, over all ranks; 0 when the step was skipped."""
    learning_rate: float
    is_skipped: bool
    """True when loss or gradient was not finite and no weight changed."""


class Engine(Protocol):
    """Model and optimizer on one rank. All methods block and are collective: all ranks call them in the same order."""

    @property
    def layout(self) -> Layout:
        """Place of this rank."""

    @property
    def ranks(self) -> Ranks:
        """Collective operations over the shares of a batch (data ranks)."""

    @property
    def device(self) -> torch.device:
        """Device on which scores are."""

    @property
    def batching(self) -> Batching:
        """Batching of the policy, which decides how packs are planned. Every batching computes every pack."""

    def score(self, pack: Pack, *, role: Model = ModelRole.POLICY, temperature: float = 1.0) -> TokenScores:
        """Computes the scores of the pack's trained tokens without gradient, in evaluation mode.

        Raises: InvalidInput for a model that the engine does not have.
        """

    def learn(
        self,
        pack: Pack,
        loss: Callable[[TokenScores], Tensor],
        *,
        role: ModelRole = ModelRole.POLICY,
        temperature: float = 1.0,
        is_last: bool,
    ) -> None:
        """Runs forward, loss and backward, and adds to the gradient of a model that is trained: policy or critic.

        loss: called once with the scores of the pack's trained tokens; returns a scalar with gradient. is_last: this is
        the last pack before `update`; gradients are synchronised over ranks only then.
        """

    def update(self, *, role: ModelRole = ModelRole.POLICY, is_loss_finite: bool) -> UpdateResult:
        """Clips the gradient, steps the optimizer, rounds the new weights into the model, and clears the gradient."""

    @property
    def published_dtype(self) -> Dtype:
        """Element type that weights are rounded to and published in."""

    def weights(self) -> Mapping[str, Tensor]:
        """Returns the policy's weights by `state_dict` name of the model, tied weights once, not copied. The parts that
        are published are those of `models.published`.

        Full tensors, or DTensors whose placements are Shard or Replicate.
        """

    def state_tensors(self) -> Mapping[str, Tensor]:
        """Returns every tensor that a checkpoint must hold (weights, optimizer moments), by name, not copied.

        Full tensors, or DTensors. The names do not depend on the number of ranks.
        """

    def restored(self, *, updates: int, critic_updates: int) -> None:
        """Called after a checkpoint was copied into `state_tensors`: rounds the weights into the models, sets the
        numbers of optimizer steps since the run began."""
