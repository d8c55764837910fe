"""Conversion of a GGUF file, quantised weights with a tokenizer, to an ordinary folder in Hugging Face format."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from astraflow.runtime.imports import require_package

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_SINGLE_DIGITS = ("smollm",)
"""Pre-tokenizers that split digits from each other first, which transformers does not read from the file."""


def convert_gguf(file: Path, folder: Path) -> None:
    """Writes config, generation config, tokenizer with chat template, and weights in bfloat16 into an existing folder.

    Raises: InvalidInput without the package `gguf`; OSError, such as a full disk.
    """
    require_package("gguf", extra="train", to="read models in GGUF format")
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    # The conversion shows a progress bar of its own there, which has no switch.
    with redirect_stderr(io.StringIO()):
        _convert(file, folder)


def _convert(file: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, local_files_only=True, dtype=torch.float32
    )
    # Its class would save weights as quantised ones; a model of the plain configuration has the same tensors.
    with torch.device("meta"):
        model = type(loaded)(_plain(loaded.config))
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = loaded.generation_config
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        file.parent, gguf_file=file.name, local_files_only=True
    )
    if _pre_tokenizer(file) in _SINGLE_DIGITS:
        _split_digits(tokenizer)
    tokenizer.model_max_length = model.config.max_position_embeddings
    nn.Module.to(model, torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _plain(config: PretrainedConfig) -> PretrainedConfig:
    """Returns the configuration without what describes the file; float32 numbers as they are written in decimal."""
    values = config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path", "transformers_version"):
        values.pop(name, None)
    for name, value in values.items():
        if isinstance(value, float):
            values[name] = float(str(np.float32(value)))
    language_config: PretrainedConfig = type(config)(**values)
    return language_config


def _pre_tokenizer(file: Path) -> str:
    from gguf import GGUFReader

    field = GGUFReader(file).get_field("tokenizer.ggml.pre")
    return str(field.contents()) if field is not None else ""


def _split_digits(tokenizer: PreTrainedTokenizerBase) -> None:
    from tokenizers import pre_tokenizers

    core = tokenizer.backend_tokenizer
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), core.pre_tokenizer])
