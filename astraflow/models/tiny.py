"""A Qwen3 of a few hundred thousand parameters, made from scratch: real enough to learn, small enough for one core."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator

from astraflow.contract.errors import InvalidInput
from astraflow.models import models
from astraflow.models.base import Example, OnProgress
from astraflow.models.tokenizers import CHAR_VOCAB_SIZE, ChatTokenizer, HuggingFaceTokenizer, char_tokenizer
from astraflow.runtime.config import Config
from astraflow.runtime.home import HOME, home
from astraflow.runtime.overrides import SetBy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_REVISION = 1
"""Grows when the code makes another model from the same options, so that cached ones are not mistaken for it."""


class WarmStartOptions(Config):
    """What to learn from, and when to stop: too good a start leaves nothing for reinforcement learning to show."""

    dataset: Annotated[dict[str, Any], SetBy.RECIPE]
    """The dataset the examples come from, as its `kind` and options. It is part of the cached result's name; whoever
    prepares the model builds it and hands the examples in."""
    target_accuracy: float = Field(default=0.25, gt=0, lt=1)
    """Stop when this share of sampled answers would be right."""
    batch_size: int = Field(default=64, ge=1)
    learning_rate: float = Field(default=3e-3, gt=0)
    max_steps: int = Field(default=2000, ge=1)
    report_every_steps: int = Field(default=10, ge=1)


class TinyModelOptions(Config):
    """Sizes of the tiny model, and the warm start that makes it worth training."""

    hidden_size: int = Field(default=96, ge=8)
    layers: int = Field(default=2, ge=1)
    heads: int = Field(default=4, ge=1)
    key_value_heads: int = Field(default=2, ge=1)
    """Heads that keys and values have; divides `heads`."""
    intermediate_size: int = Field(default=288, ge=8)
    max_context_tokens: int = Field(default=512, ge=16)
    initial_spread: float = Field(default=0.05, gt=0)
    """Standard deviation of the first weights. The usual 0.02 is meant for wide models: at this width it needs three
    times as many steps before attention finds the letters."""
    seed: int = 0
    """Of the first weights and of the warm start."""
    warm_start: WarmStartOptions | None = None
    """Short supervised training on a task's answers; without it the model starts from random weights."""

    @model_validator(mode="after")
    def _divides(self) -> TinyModelOptions:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(f"hidden_size {self.hidden_size} must be a multiple of 2 * heads = {2 * self.heads}")
        if self.heads % self.key_value_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of key_value_heads = {self.key_value_heads}")
        return self


@models.register("tiny", options=TinyModelOptions)
class TinyModel:
    """Made on the spot and cached under AstraFlow's home, in a folder named by the hash of its options."""

    def __init__(self, options: TinyModelOptions) -> None:
        self._options = options

    @property
    def folder(self) -> Path:
        """Where the prepared model is, or will be."""
        text = json.dumps([_REVISION, self._options.model_dump(mode="json")], sort_keys=True)
        return home() / "models" / f"tiny-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @property
    def examples_from(self) -> Mapping[str, Any] | None:
        """The warm start's dataset, until the cached folder exists."""
        options = self._options.warm_start
        return options.dataset if options is not None and not self.folder.is_dir() else None

    def tokenizer(self) -> ChatTokenizer:
        """One token for each printable character."""
        core = char_tokenizer()
        return HuggingFaceTokenizer(core, vocab_size=CHAR_VOCAB_SIZE, stop_tokens=(int(core.eos_token_id),))

    def architecture(self) -> PreTrainedModel:
        """A Qwen3 drawn from the seed; the global random state is left as it was."""
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM

        options = self._options
        core = char_tokenizer()
        config = Qwen3Config(
            vocab_size=CHAR_VOCAB_SIZE,
            hidden_size=options.hidden_size,
            intermediate_size=options.intermediate_size,
            num_hidden_layers=options.layers,
            num_attention_heads=options.heads,
            num_key_value_heads=options.key_value_heads,
            head_dim=options.hidden_size // options.heads,
            max_position_embeddings=options.max_context_tokens,
            tie_word_embeddings=True,
            pad_token_id=core.pad_token_id,
            eos_token_id=core.eos_token_id,
            bos_token_id=None,
            initializer_range=options.initial_spread,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            model = Qwen3ForCausalLM(config)
        model.generation_config.eos_token_id = core.eos_token_id
        model.generation_config.pad_token_id = core.pad_token_id
        return model

    def prepare(self, examples: Iterator[Example] | None = None, on_progress: OnProgress | None = None) -> Path:
        """The cached folder; made first, with the warm start if the options ask for one.

        Raises: InvalidInput when a warm start is due and no `examples` are given, or when it does not get there.
        """
        if not self.folder.is_dir():
            model = self.architecture()
            if self._options.warm_start is not None:
                self._warm_start(model, self._options.warm_start, examples, on_progress)
            self._save(model)
        return self.folder

    def load(self, folder: Path) -> PreTrainedModel:
        """The model with the weights of a prepared folder, in float32."""
        from astraflow.models.causal import load_model

        return load_model(folder, attention="sdpa")

    def _warm_start(
        self,
        model: PreTrainedModel,
        options: WarmStartOptions,
        examples: Iterator[Example] | None,
        on_progress: OnProgress | None,
    ) -> None:
        from astraflow.models.warm_start import warm_start

        if examples is None:
            raise InvalidInput(
                f"the tiny model {self.folder.name} is not prepared yet (looked for {self.folder}), and its warm start "
                f"needs examples of the dataset {options.dataset}"
            )
        warm_start(model, self.tokenizer(), examples, options, on_progress=on_progress)

    def _save(self, model: PreTrainedModel) -> None:
        """Beside its place first, then renamed: a killed warm start leaves nothing that looks like a model."""
        from safetensors import SafetensorError
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        partial: Path | None = None
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=self.folder.parent))
            model.save_pretrained(partial)
            char_tokenizer().save_pretrained(partial)
            partial.chmod(0o755)
            partial.rename(self.folder)
        except (OSError, SafetensorError) as problem:
            if not self.folder.is_dir():  # else another process was first, and made the same model
                raise InvalidInput(
                    f"the prepared model cannot be written to {self.folder}: {problem}; make room there, or set "
                    f"{HOME} to a folder that has some"
                ) from problem
        finally:
            if partial is not None:
                shutil.rmtree(partial, ignore_errors=True)
