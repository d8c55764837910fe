"""Embedder from a folder in the format of Hugging Face: an encoder of transformers, mean pooling, length 1."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.models.base import TextKind, Vectors, embedders
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

_MAX_CHARS_PER_TOKEN = 20
"""Limit of the characters per token: longer texts are cut before they are tokenized, which saves time."""


class HuggingFaceEmbedderOptions(Config):
    """Encoder, and the form of its inputs."""

    path: Annotated[str, SettableBy.DATA_LOCATION]
    """Folder with `config.json`, tokenizer and safetensors of an encoder, such as e5-base-v2 or all-MiniLM-L6-v2."""
    query_prefix: Annotated[str, SettableBy.AGENT] = ""
    """Text before each query, such as `query: ` for the models of e5."""
    document_prefix: Annotated[str, SettableBy.AGENT] = ""
    """Text before each document, such as `passage: ` for the models of e5."""
    max_tokens: int = Field(default=256, ge=8, le=8192)
    """Maximum number of tokens of a text; the rest is ignored."""
    batch: int = Field(default=32, ge=1, le=4096)
    """Texts in one forward pass."""
    device: Annotated[str, SettableBy.RECIPE] = "cpu"
    """Device of torch, such as `cuda`."""


@embedders.register("huggingface", options=HuggingFaceEmbedderOptions)
class HuggingFaceEmbedder:
    """Returns the mean of the encoder's last hidden states over the tokens of a text, scaled to length 1. Nothing is
    downloaded, and no code of the folder runs."""

    def __init__(self, options: HuggingFaceEmbedderOptions) -> None:
        self._options = options

    def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Returns the vectors. Raises: InvalidInput for a folder without an encoder, or without transformers."""
        prefix = self._options.query_prefix if kind is TextKind.QUERY else self._options.document_prefix
        limit = _MAX_CHARS_PER_TOKEN * self._options.max_tokens
        cut = [f"{prefix}{text[:limit]}".encode(errors="replace").decode() for text in texts]
        order = sorted(range(len(cut)), key=lambda index: len(cut[index]))  # texts of a batch are padded to the longest
        vectors = np.empty((len(cut), self._width), np.float32)
        for begin in range(0, len(order), self._options.batch):
            members = order[begin : begin + self._options.batch]
            vectors[members] = self._embedded([cut[index] for index in members])
        return vectors

    def _embedded(self, texts: Sequence[str]) -> Vectors:
        import torch

        tokenizer, model = self._loaded
        inputs = tokenizer(
            list(texts), padding=True, truncation=True, max_length=self._options.max_tokens, return_tensors="pt"
        ).to(self._options.device)
        with torch.inference_mode():
            hidden: torch.Tensor = model(**inputs).last_hidden_state.float()
            mask = inputs["attention_mask"].unsqueeze(-1).float()
            mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
            unit: Vectors = torch.nn.functional.normalize(mean, dim=-1).cpu().numpy()
        return unit

    @property
    def _width(self) -> int:
        return int(self._loaded[1].config.hidden_size)

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        """Tokenizer and encoder, loaded at the first use."""
        folder = Path(self._options.path).expanduser()
        try:
            from transformers import AutoModel, AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            model = AutoModel.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, use_safetensors=True
            )
            return tokenizer, model.to(self._options.device).eval()
        except (ImportError, OSError, ValueError, RuntimeError) as problem:
            raise InvalidInput(
                f"cannot embed texts: {str(folder)!r} gives no encoder ({problem}); give a folder with config.json, "
                "tokenizer and safetensors, and install transformers with pip install 'astraflow[train]'",
                code="search.no_embedder",
            ) from problem
