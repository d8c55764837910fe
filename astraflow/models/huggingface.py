"""Causal language models in Hugging Face format, from a local folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.models import models
from astraflow.models.base import Example, OnProgress
from astraflow.models.harmony import HarmonyTokenizer, is_harmony
from astraflow.models.huggingface_tokenizers import HuggingFaceTokenizer
from astraflow.models.package_renderers import RenderedTokenizer
from astraflow.models.tagged_calls import TaggedCallsTokenizer, has_tagged_calls
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.config.toml import read_json
from astraflow.runtime.folders.data_root import RemoteSource, SourceKind, is_hub_name

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_WEIGHT_FILES = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf")
_CONFIG = "config.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


class HuggingFaceOptions(Config):
    """Options of a model folder with config.json, a tokenizer and, for the trainer, safetensors weights."""

    path: Annotated[str, SettableBy.DATA_LOCATION]
    """Folder on this machine, or `owner/name` of a model on the hub, which is read from the recipe's `data_root`. Nodes
    need config.json and the tokenizer, but not the weights."""
    revision: Annotated[str, SettableBy.RECIPE] = ""
    """Commit, branch or tag on the hub; set a commit for reproducible runs."""
    attention: Annotated[Literal["sdpa", "eager"], SettableBy.AGENT] = "sdpa"
    """Attention of transformers: torch's fused kernels, where the family has them (not GPT-OSS and Gemma 2), or plain
    matrix products (slower, for comparison)."""
    thinking: Annotated[bool | None, SettableBy.AGENT] = None
    """Whether the model thinks before it answers, for chat templates that know `enable_thinking`, as those of Qwen3 do;
    None: the template's default."""
    template_values: Annotated[dict[str, bool | int | str], SettableBy.AGENT] = Field(default_factory=dict)
    """Further variables of the chat template, such as `{ reasoning_effort = "low" }` for GPT-OSS."""
    renderer: Annotated[str, SettableBy.RECIPE] = ""
    """Chat format of the package `renderers` (`pip install astraflow[renderers]`), such as `llama-3` or `kimi-k2`, for
    models whose calls of tools have a form of their own; empty: the chat template of the tokenizer."""

    context_tokens: int | None = Field(default=None, ge=1)
    """Longest sequence of the run, for models whose rotary factors depend on the length (rope types `longrope` and
    `dynamic`): trainer, engines and exports use the factors of this length for all sequences. None: the length in
    config.json. Other models ignore it."""

    location_option: ClassVar[str] = "path"

    def remote_source(self) -> RemoteSource | None:
        """Returns the repository on the hub; None for a folder."""
        if not is_hub_name(self.path):
            return None
        return RemoteSource(kind=SourceKind.MODEL, name=self.path, revision=self.revision)


@models.register("huggingface", options=HuggingFaceOptions)
class HuggingFaceModel:
    """Causal language model from a local folder, which may be that of a model on the hub."""

    def __init__(self, options: HuggingFaceOptions) -> None:
        self._options = options

    examples_source = None

    def check(self) -> None:
        """Checks that the folder has weights. Raises: InvalidInput."""
        self.prepare()

    def tokenizer(self) -> ChatTokenizer:
        """Returns the folder's tokenizer. Raises: InvalidInput when there is none or it has no chat template."""
        from transformers import AutoTokenizer

        folder = self._folder()
        try:
            if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
                raise OSError(f"none of the files {', '.join(_TOKENIZER_FILES)} exists")
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as problem:
            raise InvalidInput(
                f"cannot load the tokenizer of model folder {str(folder)!r}: {problem}; copy tokenizer.json and "
                "tokenizer_config.json into it",
                code="model.no_tokenizer",
            ) from problem
        config = self._config()
        return adapted_tokenizer(
            tokenizer,
            vocab_size=max(config.get_text_config().vocab_size, len(tokenizer)),
            stop_tokens=_stop_tokens(folder, config, tokenizer),
            template_values=self._template_values(),
            renderer=self._options.renderer,
        )

    def _template_values(self) -> dict[str, bool | int | str]:
        thinking = self._options.thinking
        return {**self._options.template_values, **({} if thinking is None else {"enable_thinking": thinking})}

    def architecture(self) -> PreTrainedModel:
        """Returns the model with uninitialized memory for weights: reads no file and draws no random numbers."""
        from transformers.initialization import no_init_weights

        from astraflow.models.causal import freeze_unused, model_builder, requested_attention

        with no_init_weights():
            config = self._config()
            model: PreTrainedModel = model_builder(config).from_config(
                config,
                dtype="float32",
                attn_implementation=requested_attention(self._options.attention),
            )
        model.tie_weights()
        freeze_unused(model)
        return model

    def prepare(self, examples: Iterator[Example] | None = None, on_progress: OnProgress | None = None) -> Path:
        """Returns the folder itself. Raises: InvalidInput when it holds no safetensors weights."""
        folder = self._folder()
        if not any(folder.glob("*.safetensors")):
            raise InvalidInput(
                f"cannot train model folder {str(folder)!r}: it has no *.safetensors file; add the model's weights",
                code="model.no_weights",
            )
        return folder

    @property
    def checkpoint(self) -> Path | None:
        """The folder itself."""
        return self._folder()

    def write_server_files(self, folder: Path) -> None:
        """Copies all files but the weights. These are published without the quantisation of a checkpoint (GPT-OSS), and
        rotary factors are fixed."""
        for file in self._folder().iterdir():
            if file.is_file() and not file.name.endswith(_WEIGHT_FILES):
                shutil.copy(file, folder / file.name)
        written = read_json(folder / _CONFIG)
        _, fixed = self._read_config()
        values = {name: value for name, value in (fixed or written).items() if name != "quantization_config"}
        if values != written:
            (folder / _CONFIG).write_text(json.dumps(values, indent=2))

    def load(self, folder: Path) -> PreTrainedModel:
        """Returns the model with the weights of a prepared folder, in float32."""
        from astraflow.models.causal import load_model

        return load_model(folder, attention=self._options.attention, config=self._config())

    def _config(self) -> PretrainedConfig:
        config, fixed = self._read_config()
        return config if fixed is None else type(config).from_dict(fixed)

    def _read_config(self) -> tuple[PretrainedConfig, dict[str, Any] | None]:
        """Returns the configuration, and the values of its file with fixed rotary factors; None where they are."""
        from transformers import AutoConfig

        from astraflow.models.rotary import with_fixed_factors

        folder = self._folder()
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True)
        written = read_json(folder / _CONFIG)
        fixed = with_fixed_factors(config, written, self._options.context_tokens)
        return config, None if fixed == written else fixed

    def _folder(self) -> Path:
        folder = Path(self._options.path).expanduser()
        if is_hub_name(self._options.path):
            raise InvalidInput(
                f"cannot load the model {self._options.path!r}: it is on the hub, and the recipe has no `data_root`; "
                "fetch it on a machine with a network with `astraflow fetch RECIPE --to DIR`, and set data_root = DIR",
                code="model.not_fetched",
            )
        if not folder.is_dir():
            raise InvalidInput(
                f"cannot load model path {self._options.path!r}: folder {str(folder.absolute())!r} does not exist; "
                "give a folder with a downloaded Hugging Face model",
                code="model.folder_not_found",
            )
        if not (folder / "config.json").is_file():
            candidates = sorted(str(file.parent) for file in folder.glob("*/config.json"))
            hint = (
                f"did you mean {candidates[0]!r}?" if candidates else "give the folder that directly holds config.json"
            )
            raise InvalidInput(
                f"cannot load model path {self._options.path!r}: {str(folder.absolute())!r} has no config.json; {hint}",
                code="model.no_config",
            )
        return folder


def adapted_tokenizer(
    tokenizer: PreTrainedTokenizerBase,
    *,
    vocab_size: int,
    stop_tokens: tuple[int, ...],
    template_values: Mapping[str, bool | int | str],
    renderer: str = "",
) -> HuggingFaceTokenizer:
    """Returns the adapter for the tokenizer's chat format. Arguments: as of `HuggingFaceTokenizer`.

    renderer: of the package `renderers`; empty: the chat template. Raises: InvalidInput for one that does not work.
    """
    if renderer:
        return RenderedTokenizer(tokenizer, renderer, vocab_size=vocab_size, template_values=template_values)
    template = str(tokenizer.chat_template)
    adapter = HuggingFaceTokenizer
    if is_harmony(template):
        adapter = HarmonyTokenizer
    elif has_tagged_calls(template):
        adapter = TaggedCallsTokenizer
    return adapter(tokenizer, vocab_size=vocab_size, stop_tokens=stop_tokens, template_values=template_values)


def _stop_tokens(folder: Path, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Returns the stop tokens of generation config, model config and tokenizer: chat models often have several."""
    from transformers import GenerationConfig

    candidates: list[object] = [tokenizer.eos_token_id, config.get_text_config().eos_token_id]
    if (folder / "generation_config.json").is_file():
        candidates.append(GenerationConfig.from_pretrained(folder).eos_token_id)
    stop_tokens: set[int] = set()
    for ids in candidates:
        stop_tokens.update(ids if isinstance(ids, list) else [ids] if isinstance(ids, int) else [])
    return tuple(sorted(stop_tokens))
