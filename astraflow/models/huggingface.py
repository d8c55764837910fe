"""Any causal language model in Hugging Face format, from a local folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from astraflow.contract.errors import InvalidInput
from astraflow.models import models
from astraflow.models.base import Example, OnProgress
from astraflow.models.tokenizers import ChatTokenizer, HuggingFaceTokenizer
from astraflow.runtime.config import Config
from astraflow.runtime.overrides import SetBy

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


class HuggingFaceOptions(Config):
    """A folder with config.json, a tokenizer and, for the trainer, safetensors weights."""

    path: Annotated[str, SetBy.PLACE]
    """Folder on this machine. Nodes need config.json and the tokenizer in it, but not the weights."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """How transformers computes attention: torch's fused kernels, or plain matrix products (slower, for comparison)."""


@models.register("huggingface", options=HuggingFaceOptions)
class HuggingFaceModel:
    """A model from a local folder."""

    def __init__(self, options: HuggingFaceOptions) -> None:
        self._options = options

    examples_from = None

    def tokenizer(self) -> ChatTokenizer:
        """The folder's tokenizer. Raises: InvalidInput when it has none or no chat template."""
        from transformers import AutoTokenizer

        folder = self._folder()
        try:
            if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
                raise OSError(f"none of {', '.join(_TOKENIZER_FILES)} is there")
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as problem:
            raise InvalidInput(
                f"model folder {folder} has no tokenizer that loads ({problem}); copy tokenizer.json and "
                "tokenizer_config.json into it"
            ) from problem
        config = self._config()
        return HuggingFaceTokenizer(
            tokenizer,
            vocab_size=max(config.get_text_config().vocab_size, len(tokenizer)),
            stop_tokens=_stop_tokens(folder, config, tokenizer),
        )

    def architecture(self) -> PreTrainedModel:
        """The model with untouched memory for weights: nothing is read, nothing is drawn."""
        from transformers import AutoModelForCausalLM
        from transformers.initialization import no_init_weights

        with no_init_weights():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                self._config(), dtype="float32", attn_implementation=self._options.attention
            )
        model.tie_weights()
        return model

    def prepare(self, examples: Iterator[Example] | None = None, on_progress: OnProgress | None = None) -> Path:
        """The folder itself. Raises: InvalidInput when it holds no safetensors weights."""
        folder = self._folder()
        if not any(folder.glob("*.safetensors")):
            raise InvalidInput(
                f"model folder {folder} has no *.safetensors file: the trainer needs weights to start from"
            )
        return folder

    def load(self, folder: Path) -> PreTrainedModel:
        """The model with the weights of a prepared folder, in float32."""
        from astraflow.models.causal import load_model

        return load_model(folder, attention=self._options.attention)

    def _config(self) -> PretrainedConfig:
        from transformers import AutoConfig

        config: PretrainedConfig = AutoConfig.from_pretrained(self._folder(), local_files_only=True)
        return config

    def _folder(self) -> Path:
        folder = Path(self._options.path).expanduser()
        if not folder.is_dir():
            raise InvalidInput(
                f"model path {self._options.path!r}: there is no such folder here (looked for {folder.absolute()}); "
                "give a folder with a downloaded Hugging Face model"
            )
        if not (folder / "config.json").is_file():
            near = sorted(str(found.parent) for found in folder.glob("*/config.json"))
            hint = f"did you mean {near[0]}?" if near else "give the folder that directly holds config.json"
            raise InvalidInput(f"model path {self._options.path!r}: {folder.absolute()} has no config.json; {hint}")
        return folder


def _stop_tokens(folder: Path, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """End-of-sequence ids of generation config, model config and tokenizer: chat models often name several."""
    from transformers import GenerationConfig

    named: list[object] = [tokenizer.eos_token_id, config.get_text_config().eos_token_id]
    if (folder / "generation_config.json").is_file():
        named.append(GenerationConfig.from_pretrained(folder).eos_token_id)
    found: set[int] = set()
    for ids in named:
        found.update(ids if isinstance(ids, list) else [ids] if isinstance(ids, int) else [])
    return tuple(sorted(found))
