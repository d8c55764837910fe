"""Interface of every kind of model: a tokenizer, an architecture, and prepared initial weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from astraflow.models.tokenizers import ChatTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


Example: TypeAlias = tuple[tuple[str, ...], str]
"""A question as a user would ask it, after earlier messages of user and assistant in turn, and its only correct answer.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartProgress:
    """Progress of a warm start. `accuracy`: mean probability that a sampled answer is correct."""

    step: int
    loss: float
    accuracy: float
    target_accuracy: float


OnProgress = Callable[[WarmStartProgress], None]


class ModelSource(Protocol):
    """Source of a policy's model. Built by `models.build(spec)`; building is cheap, the methods do the work."""

    @property
    def examples_dataset(self) -> Mapping[str, Any] | None:
        """Spec of the dataset whose examples `prepare` needs now; None when it needs none."""

    def check(self) -> None:
        """Checks, without reading weights, that this machine has the files that `prepare` needs. Raises:
        InvalidInput, whose message names the remedy."""

    def tokenizer(self) -> ChatTokenizer:
        """Returns the tokenizer; needs no weights and, for `scripted`, no torch."""

    def architecture(self) -> PreTrainedModel:
        """Returns the model with uninitialized or random float32 weights, for a node that receives weights later."""

    def prepare(self, examples: Iterator[Example] | None = None, on_progress: OnProgress | None = None) -> Path:
        """Returns a folder in Hugging Face format with the initial weights; creates it if it does not exist yet.

        examples: an endless stream from the dataset `examples_dataset`.
        Raises: InvalidInput when the folder cannot be provided; the message names the remedy.
        """

    def write_server_files(self, folder: Path) -> None:
        """Writes the configuration and the tokenizer, without weights, for an engine server. Raises: InvalidInput."""

    def load(self, folder: Path) -> PreTrainedModel:
        """Returns the model with the weights of a prepared folder, in float32."""
