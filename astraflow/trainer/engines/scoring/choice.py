"""Choice of the batching of a model: the fastest that the check at the start finds exact."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

from astraflow.contract.batching import BatchingFacts
from astraflow.contract.errors import InvalidInput
from astraflow.models.check_conditions import check_conditions
from astraflow.models.output_head import has_known_head
from astraflow.runtime.logs import get_logger
from astraflow.trainer.engines.base import Batching
from astraflow.trainer.engines.scoring.check import difference, logprobs_alone, tolerance
from astraflow.trainer.engines.scoring.head import LogitsHead
from astraflow.trainer.engines.scoring.scorer import FORWARDS, Scorer

log = get_logger()

_TEXT_LENGTH = 300
"""Longest text of an error in a reason. Characters."""
_HEAD_COST = "its logits are computed by its own forward pass, all of a pack at once, which costs memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingChoice:
    """Result of the check of a model at the start."""

    batching: Batching
    largest_difference: float
    """Nats between logprobs in a pack and alone; in element types of fewer bits than float32 their mean."""
    rejected: Mapping[Batching, str] = field(default_factory=dict)
    """Reasons against the batchings that would have been faster."""
    has_own_head: bool = False
    """True if the logits come from the model's own forward pass."""
    precision: str = ""
    """Element type of the weights in the passes."""

    @property
    def facts(self) -> BatchingFacts:
        """Returns the result as the trainer reports it."""
        return BatchingFacts(
            batching=self.batching.value,
            largest_difference=self.largest_difference,
            reasons=self.reasons,
            costs=self.costs if self.reasons or self.has_own_head else "",
            precision=self.precision,
        )

    @property
    def reasons(self) -> str:
        """Reasons against faster batchings, as one text; empty for none."""
        return "; ".join(f"not {batching.value}: {reason}" for batching, reason in self.rejected.items())

    @property
    def costs(self) -> str:
        """What the choice costs, as one text; empty for the fastest."""
        parts = [FORWARDS[self.batching].cost, _HEAD_COST if self.has_own_head else ""]
        return "; ".join(part for part in parts if part)


def choose_demanded(scorer: Scorer, demanded: Batching | None) -> BatchingChoice:
    """Chooses as `choose_batching`, with the batching that a recipe demands, if any. Raises: InvalidInput."""
    if demanded is None:
        return choose_batching(scorer, setting="")
    return choose_batching(scorer, (demanded,), setting=f"batching = {demanded.value!r}")


_Result: TypeAlias = float | str
"""Difference of an exact batching in nats, or the reason against it."""


def choose_batching(scorer: Scorer, allowed: Sequence[Batching] = tuple(Batching), *, setting: str) -> BatchingChoice:
    """Makes a scorer compute in the fastest exact batching. Collective where the weights are sharded.

    allowed: batchings that the engine and the recipe allow. setting: what restricts them, as `batching = 'packed'`.
    Raises: InvalidInput when none is exact, or when the training pass is random.
    """
    kind = type(scorer.model).__name__
    scorer.use(None)
    has_own_head = not has_known_head(scorer.model, scorer.device)
    if has_own_head:
        scorer.head = LogitsHead()
    rejected: dict[Batching, str] = {}
    with check_conditions(scorer.model, scorer.device):
        alone = logprobs_alone(scorer)
        for batching in (batching for batching in FORWARDS if batching in allowed):
            scorer.use(batching)
            result = _measured(scorer, alone)
            if isinstance(result, float):
                _check_training(scorer, alone)
                break
            rejected[batching] = result
        else:
            raise _none_exact(kind, rejected, setting=setting)
    choice = BatchingChoice(
        batching=batching,
        largest_difference=result,
        rejected=rejected,
        has_own_head=has_own_head,
        precision=str(next(scorer.model.parameters()).dtype).removeprefix("torch."),
    )
    report = log.warning if rejected or has_own_head else log.info
    report(
        "batching_chosen",
        model=kind,
        batching=batching.value,
        largest_difference=result,
        reasons=choice.reasons,
        costs=choice.costs,
    )
    return choice


def _measured(scorer: Scorer, alone: Sequence[Tensor]) -> _Result:
    """Returns the difference of the scorer's batching, or the reason why it is not exact."""
    if obstacle := scorer.obstacle():
        return obstacle
    try:
        gap = difference(scorer, alone, is_training=False)
    except (InvalidInput, AssertionError, AttributeError, LookupError, TypeError, ValueError, RuntimeError) as problem:
        text = f"{type(problem).__name__}: {problem}".splitlines()[0]
        return f"the model cannot be computed so: {text[:_TEXT_LENGTH]}"
    if not gap <= tolerance(scorer.model):
        return f"its logprobs differ by {gap:.3g} nats from those of the same sequence alone"
    return gap


def _check_training(scorer: Scorer, alone: Sequence[Tensor]) -> None:
    """Checks that the training pass computes what scoring computes. Raises: InvalidInput."""
    gap = difference(scorer, alone, is_training=True)
    scorer.eval()
    if not gap <= tolerance(scorer.model):
        raise InvalidInput(
            f"cannot train a {type(scorer.model).__name__}: the logprobs of a training pass differ by {gap:.3g} nats "
            "from those of scoring, as with dropout or noise; set the rates of dropout and noise in the model's "
            "config.json to 0",
            code="model.random_training_pass",
        )


def _none_exact(kind: str, rejected: Mapping[Batching, str], *, setting: str) -> InvalidInput:
    """Returns the error of a model without an exact batching among those allowed."""
    reasons = "; ".join(f"{batching.value}: {reason}" for batching, reason in rejected.items())
    if setting:
        return InvalidInput(
            f"cannot train a {kind} with {setting}: {reasons}; remove the setting, which chooses an exact batching",
            code="trainer.batching_not_exact",
        )
    return InvalidInput(
        f"cannot train a {kind}: no batching computes what the model computes for a sequence alone ({reasons}); use "
        "another model, or report it with its config.json",
        code="model.no_exact_batching",
    )
