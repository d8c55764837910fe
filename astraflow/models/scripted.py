"""The stand-in's model: a byte tokenizer and nothing else, so that whole runs work without torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow.contract.errors import InvalidInput
from astraflow.models import models
from astraflow.models.base import Example, OnProgress
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.runtime.config import Config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NO_WEIGHTS = (
    "a scripted model has no weights: use the scripted engine and trainer with it, or choose another model kind"
)


class ScriptedModelOptions(Config):
    """A scripted model has nothing to choose."""


@models.register("scripted", options=ScriptedModelOptions)
class ScriptedModel:
    """For the scripted engine and trainer, which need token ids but no weights."""

    def __init__(self, _options: ScriptedModelOptions) -> None:
        pass

    examples_from = None

    def tokenizer(self) -> ChatTokenizer:
        """UTF-8 bytes."""
        return ByteTokenizer()

    def architecture(self) -> PreTrainedModel:
        """Raises: InvalidInput: there is none."""
        raise InvalidInput(_NO_WEIGHTS)

    def prepare(self, examples: Iterator[Example] | None = None, on_progress: OnProgress | None = None) -> Path:
        """Raises: InvalidInput: there is nothing to prepare."""
        raise InvalidInput(_NO_WEIGHTS)

    def load(self, folder: Path) -> PreTrainedModel:
        """Raises: InvalidInput: there is nothing to load."""
        raise InvalidInput(_NO_WEIGHTS)
