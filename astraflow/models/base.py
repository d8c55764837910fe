"""The port every kind of model fits: a tokenizer, an architecture, and prepared weights to start from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from astraflow.models.tokenizers import ChatTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


Example: TypeAlias = tuple[str, str]
"""One question as a user would put it, and the one answer that is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartProgress:
    """How far a warm start is. `accuracy` is the share of answers that sampling would get right now."""

    step: int
    loss: float
    accuracy: float
    target_accuracy: float


OnProgress = Callable[[WarmStartProgress], None]


class ModelSource(Protocol):
    """Where a policy's model comes from. Built by `models.build(spec)`; building is cheap, the methods do the work."""

    @property
    def examples_from(self) -> Mapping[str, Any] | None:
        """The dataset (its spec) whose examples `prepare` wants now; None when it wants none."""

    def tokenizer(self) -> ChatTokenizer:
        """The tokenizer; needs no weights and, for `scripted`, no torch."""

    def architecture(self) -> PreTrainedModel:
        """The model with meaningless float32 weights, for a node that gets them over the weight plane."""

    def prepare(self, examples: Iterator[Example] | None = None, on_progress: OnProgress | None = None) -> Path:
        """A folder in Hugging Face format with the weights to start from; made now if it does not exist yet.

        examples: an endless stream from the dataset `examples_from`.
        Raises: InvalidInput when the folder cannot be had, saying what would help.
        """

    def load(self, folder: Path) -> PreTrainedModel:
        """The model with the weights of a prepared folder, in float32."""
