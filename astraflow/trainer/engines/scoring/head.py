"""What a scorer computes of the model's results at the trained tokens."""

from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from astraflow.algorithms.tokens import TokenScores
from astraflow.models.output_head import HeadForm
from astraflow.trainer.engines.heads import (
    target_scores,
    temperature_of,
    token_scores,
    top_of,
    top_scores,
    with_candidates,
    within,
)
from astraflow.trainer.engines.scoring.base import PackInputs


class Head(Protocol):
    """Scores of trained tokens."""

    @property
    def reads_logits(self) -> bool:
        """True if it needs the model's logits instead of its last hidden states."""

    def __call__(self, layer: Any, states: Tensor, inputs: PackInputs, temperature: float, /) -> TokenScores:
        """Returns the scores. layer: output embeddings of the model; states: `[tokens, size]`."""

    def compiled(self) -> "Head":
        """Returns the head with everything but matrix products compiled, where that is of use."""


@dataclass(frozen=True, slots=True)
class TargetHead:
    """Logprobs and entropies by the model's linear head, in chunks."""

    form: HeadForm
    is_compiled: bool = False
    reads_logits: bool = False

    def __call__(self, layer: Any, states: Tensor, inputs: PackInputs, temperature: float) -> TokenScores:
        if inputs.top:
            return top_scores(
                states,
                layer.weight,
                inputs.targets,
                inputs.top,
                bias=layer.bias,
                form=self.form,
                temperature=temperature_of(inputs.temperatures, temperature),
            )
        logprobs, entropy = target_scores(
            states,
            layer.weight,
            with_candidates(inputs.targets, inputs.candidates),
            support=inputs.support,
            bias=layer.bias,
            form=self.form,
            temperature=temperature_of(inputs.temperatures, temperature),
            is_compiled=self.is_compiled,
        )
        return token_scores(logprobs, entropy)

    def compiled(self) -> "Head":
        """Returns the head with everything but matrix products compiled."""
        return replace(self, is_compiled=True)


@dataclass(frozen=True, slots=True)
class LogitsHead:
    """Logprobs and entropies from the logits of the model's own forward pass: exact for every head, but all logits of a
    pack exist at once."""

    reads_logits: bool = True

    def __call__(self, _layer: Any, states: Tensor, inputs: PackInputs, temperature: float) -> TokenScores:
        tempered = states.float() / temperature_of(inputs.temperatures, temperature)
        if inputs.top:
            return top_of(tempered.log_softmax(-1), inputs.targets, inputs.top)
        logs = within(tempered, inputs.support).log_softmax(-1)
        targets = with_candidates(inputs.targets, inputs.candidates)
        logprobs = logs.gather(-1, targets.view(len(logs), -1)).view(targets.shape)
        return token_scores(logprobs, -(logs.exp() * logs).sum(-1))

    def compiled(self) -> "Head":
        return self
