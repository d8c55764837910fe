"""Simulated model: a byte tokenizer without weights, so that whole runs work without torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow.contract.errors import InvalidInput
from astraflow.models import models
from astraflow.models.base import Example, OnProgress
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.runtime.config.base import Config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NO_WEIGHTS = (
    "cannot load a scripted model: it has no weights; use the scripted engine and trainer, or choose another model kind"
)


class ScriptedModelOptions(Config):
    """Empty options: a scripted model has no settings."""


@models.register("scripted", options=ScriptedModelOptions)
class ScriptedModel:
    """Model of the scripted engine and trainer, which need token ids but no weights."""

    def __init__(self, _options: ScriptedModelOptions) -> None:
        pass

    examples_source = None

    def check(self) -> None:
        """Needs no files."""

    def tokenizer(self) -> ChatTokenizer:
        """Returns a tokenizer of UTF-8 bytes."""
        return ByteTokenizer()

    def architecture(self) -> PreTrainedModel:
        """Is not supported: there is no architecture. Raises: InvalidInput."""
        raise InvalidInput(_NO_WEIGHTS, code="model.no_weights")

    def prepare(self, examples: Iterator[Example] | None = None, on_progress: OnProgress | None = None) -> Path:
        """Is not supported: there is nothing to prepare. Raises: InvalidInput."""
        raise InvalidInput(_NO_WEIGHTS, code="model.no_weights")

    @property
    def checkpoint(self) -> Path | None:
        """None: it is created here."""
        return None

    def write_server_files(self, folder: Path) -> None:
        """Raises: InvalidInput: only the scripted engine serves this model."""
        raise InvalidInput(_NO_WEIGHTS, code="model.no_weights")

    def load(self, folder: Path) -> PreTrainedModel:
        """Is not supported: there is nothing to load. Raises: InvalidInput."""
        raise InvalidInput(_NO_WEIGHTS, code="model.no_weights")
