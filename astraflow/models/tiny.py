"""Models with a few hundred thousand parameters, created from scratch: they learn, on a CPU."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from astraflow.contract.errors import InvalidInput
from astraflow.models import models
from astraflow.models.base import Example, ExamplesSource, OnProgress, WarmStartOptions
from astraflow.models.huggingface_tokenizers import HuggingFaceTokenizer
from astraflow.models.tokenizers import ChatTokenizer, char_tokenizer, char_vocab_size
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.folders.run_folders import HOME, home

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_REVISION = 3
"""Increased when the code makes another model from the same options, so that outdated cached models are not used;
`tests/models/test_warm_start_examples.py` fails until it is."""


class TinyModelOptions(Config):
    """Sizes of the tiny model, and the warm start that gives it a useful initial accuracy."""

    family: Annotated[Literal["qwen3", "llama", "qwen35", "gpt_oss", "falcon_h1", "lfm2"], SettableBy.AGENT] = "qwen3"
    """Architecture: Qwen3, Llama, Qwen3.5 (every second layer has a recurrent state instead of attention), GPT-OSS
    (experts, sinks, windows), Falcon-H1 (attention and a recurrent state in each layer), or LFM2 (convolutions)."""
    hidden_size: int = Field(default=96, ge=8)
    """Width of the hidden states; a multiple of 2 * `heads`."""
    layers: int = Field(default=2, ge=1)
    """Number of layers."""
    heads: int = Field(default=4, ge=1)
    """Number of query heads."""
    key_value_heads: int = Field(default=2, ge=1)
    """Number of key and value heads; divides `heads`."""
    intermediate_size: int = Field(default=288, ge=8)
    """Width of the feed-forward layers; with experts, of each expert."""
    experts: int = Field(default=0, ge=0)
    """Experts of each layer, for a mixture of experts of the families qwen3 and qwen35 (Qwen3-MoE, Qwen3.5-MoE), and
    gpt_oss, which has four if not set; 0: dense."""
    experts_per_token: int = Field(default=2, ge=1)
    """Experts that compute a token."""
    window: int = Field(default=0, ge=0)
    """Tokens, itself included, that a token attends to in every second layer, from the first, in the families qwen3 and
    gpt_oss; 0: all, in all layers."""
    max_context_tokens: int = Field(default=512, ge=16)
    """Longest sequence. Tokens."""
    words: Annotated[tuple[str, ...], SettableBy.AGENT] = ()
    """Texts with a token of their own, such as the names and phrases of an environment, so that a conversation takes
    fewer tokens than characters; of at least two characters each."""
    initializer_std: float = Field(default=0.05, gt=0)
    """Standard deviation of the initial weights. The usual 0.02 is meant for wide models: at this width it needs three
    times as many steps before attention finds the letters."""
    seed: int = 0
    """Random seed of the initial weights and of the warm start."""
    warm_start: WarmStartOptions | None = None
    """Short supervised training on a task's answers; None starts from random weights."""

    @model_validator(mode="after")
    def _check_head_sizes(self) -> TinyModelOptions:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of 2 * heads = {2 * self.heads}; change one of them"
            )
        if self.heads % self.key_value_heads:
            raise ValueError(
                f"heads {self.heads} is not a multiple of key_value_heads = {self.key_value_heads}; change one of them"
            )
        if 0 < self.experts < self.experts_per_token:
            raise ValueError(
                f"experts_per_token {self.experts_per_token} is more than experts = {self.experts}; change one of them"
            )
        if len(set(self.words)) < len(self.words) or any(len(word) < 2 for word in self.words):
            raise ValueError("words must be different, of at least two characters each")
        if self.experts and self.family not in ("qwen3", "qwen35", "gpt_oss"):
            raise ValueError(
                f"the family {self.family} has no experts; remove experts, or choose qwen3, qwen35 or gpt_oss"
            )
        if self.window and (self.family not in ("qwen3", "gpt_oss") or (self.family == "qwen3" and self.experts)):
            raise ValueError("only a Qwen3 without experts and a GPT-OSS have windows in some layers; remove window")
        return self


@models.register("tiny", options=TinyModelOptions)
class TinyModel:
    """Tiny model that is created on demand, without a download.

    Cached in AstraFlow's home directory, in a folder named by the hash of its options.
    """

    def __init__(self, options: TinyModelOptions) -> None:
        self._options = options

    @property
    def folder(self) -> Path:
        """Folder of the prepared model; it may not exist yet."""
        values = self._options.model_dump(mode="json")
        if self._options.family == "qwen3":  # its folders keep the names that they had before there were families
            del values["family"]
        text = json.dumps([_REVISION, values], sort_keys=True)
        return home() / "models" / f"tiny-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @property
    def examples_source(self) -> ExamplesSource | None:
        """Source of the warm start's examples; None without a warm start or once the cached folder exists."""
        options = self._options.warm_start
        if options is None or self.folder.is_dir():
            return None
        return ExamplesSource(dataset=options.dataset, episodes=options.episodes)

    def check(self) -> None:
        """Needs no files."""

    def tokenizer(self) -> ChatTokenizer:
        """Returns a tokenizer with one token for each printable character, and for each of the words."""
        words = self._options.words
        core = char_tokenizer(words)
        return HuggingFaceTokenizer(core, vocab_size=char_vocab_size(words), stop_tokens=(int(core.eos_token_id),))

    def architecture(self) -> PreTrainedModel:
        """Returns a model with weights drawn from the seed; the global random state does not change."""
        import torch
        from transformers import AutoModelForCausalLM

        from astraflow.models.tiny_families import tiny_configuration

        configuration = tiny_configuration(self._options)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._options.seed)
            model: PreTrainedModel = AutoModelForCausalLM.from_config(configuration)
        model.generation_config.eos_token_id = configuration.eos_token_id
        model.generation_config.pad_token_id = configuration.pad_token_id
        return model

    def prepare(self, examples: Iterator[Example] | None = None, on_progress: OnProgress | None = None) -> Path:
        """Returns the cached folder; creates it first if needed, with the warm start if the options have one.

        Raises: InvalidInput when a warm start is due without `examples`, or when it misses its target accuracy.
        """
        if not self.folder.is_dir():
            model = self.architecture()
            if self._options.warm_start is not None:
                self._warm_start(model, self._options.warm_start, examples, on_progress)
            self._save(model)
        return self.folder

    @property
    def checkpoint(self) -> Path | None:
        """None: it is created here."""
        return None

    def write_server_files(self, folder: Path) -> None:
        """Writes configuration and tokenizer."""
        model = self.architecture()
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        model.generation_config.save_pretrained(folder)
        char_tokenizer(self._options.words).save_pretrained(folder)

    def load(self, folder: Path) -> PreTrainedModel:
        """Returns the model with the weights of a prepared folder, in float32."""
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
                f"cannot load the tiny model {self.folder.name}: it is not prepared "
                f"({str(self.folder)!r} does not exist), and its warm start has no examples; pass examples of the "
                f"dataset {options.dataset}",
                code="model.not_prepared",
            )
        warm_start(model, self.tokenizer(), examples, options, on_progress=on_progress)

    def _save(self, model: PreTrainedModel) -> None:
        """Writes to a temporary folder and renames it, so that a killed process leaves no incomplete model."""
        from safetensors import SafetensorError
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        partial: Path | None = None
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=self.folder.parent))
            model.save_pretrained(partial)
            char_tokenizer(self._options.words).save_pretrained(partial)
            partial.chmod(0o755)
            partial.rename(self.folder)
        except (OSError, SafetensorError) as problem:
            if not self.folder.is_dir():  # otherwise another process has just created the same model
                raise InvalidInput(
                    f"cannot write the prepared model to {str(self.folder)!r}: {problem}; free disk space, or set "
                    f"{HOME} to a folder with free space",
                    code="model.not_written",
                ) from problem
        finally:
            if partial is not None:
                shutil.rmtree(partial, ignore_errors=True)
