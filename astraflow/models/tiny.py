"""Models with a few hundred thousand parameters, created from scratch: they learn, on a CPU."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow.contract.errors import InvalidInput
from astraflow.models import models
from astraflow.models.base import Example, ExamplesSource, OnProgress, WarmStartOptions
from astraflow.models.huggingface_tokenizers import HuggingFaceTokenizer
from astraflow.models.tiny_options import TinyModelOptions, tiny_configuration
from astraflow.models.tokenizers import ChatTokenizer, char_tokenizer, char_vocab_size
from astraflow.runtime.folders.run_folders import HOME, home

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_REVISION = 3
"""Increased when the code makes another model from the same options, so that outdated cached models are not used;
`tests/models/test_warm_start_examples.py` fails until it is."""


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
