"""Language models and their tokenizers: a tiny model that runs anywhere, and Hugging Face models, fetched
or from local paths."""

from collections.abc import Mapping
from typing import Any

from astraflow.models.base import ModelSource
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.runtime.plugins import Registry

models: Registry[ModelSource] = Registry(
    "model",
    built_in={
        "fetched": "astraflow.models.fetched.model",
        "huggingface": "astraflow.models.huggingface",
        "scripted": "astraflow.models.scripted",
        "tiny": "astraflow.models.tiny",
    },
)


def build_tokenizer(model_spec: Mapping[str, Any]) -> ChatTokenizer:
    """Returns the tokenizer of the model of `model_spec` (`{"kind": ..., <options>}`). Raises: InvalidInput."""
    return models.build(model_spec).tokenizer()
