"""Language models and their tokenizers: a tiny one that runs anywhere, Hugging Face ones from local paths."""

from collections.abc import Mapping
from typing import Any

from astraflow.models.base import ModelSource
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.runtime.plugins import Registry

models: Registry[ModelSource] = Registry(
    "model",
    built_in={
        "huggingface": "astraflow.models.huggingface",
        "scripted": "astraflow.models.scripted",
        "tiny": "astraflow.models.tiny",
    },
)


def build_tokenizer(model_spec: Mapping[str, Any]) -> ChatTokenizer:
    """The tokenizer of the model that `model_spec` (`{"kind": ..., <options>}`) describes. Raises: InvalidInput."""
    return models.build(model_spec).tokenizer()
