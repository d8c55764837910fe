"""Sources of prompts: generated tasks, files, and published datasets."""

from astraflow.datasets.base import Dataset
from astraflow.runtime.plugins import Registry

datasets: Registry[Dataset] = Registry(
    "dataset",
    built_in={
        "alfworld": "astraflow.datasets.alfworld",
        "arithmetic": "astraflow.datasets.arithmetic",
        "code": "astraflow.datasets.code",
        "games": "astraflow.datasets.games",
        "huggingface": "astraflow.datasets.huggingface",
        "jsonl": "astraflow.datasets.jsonl",
        "letters": "astraflow.datasets.letters",
        "math": "astraflow.datasets.math",
        "mixture": "astraflow.datasets.mixture",
        "parquet": "astraflow.datasets.parquet",
        "reasoning_gym": "astraflow.datasets.reasoning_gym",
        "scripted": "astraflow.datasets.scripted",
        "search": "astraflow.datasets.search",
        "textcraft": "astraflow.datasets.textcraft",
        "webshop": "astraflow.datasets.webshop",
    },
)
