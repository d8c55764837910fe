"""Sources of prompts: generated tasks, files, and published datasets."""

from astraflow.datasets.base import Dataset
from astraflow.runtime.plugins import Registry

datasets: Registry[Dataset] = Registry(
    "dataset",
    built_in={
        "alfworld": "astraflow.datasets.alfworld",
        "arithmetic": "astraflow.datasets.arithmetic",
        "code": "astraflow.datasets.code",
        "facts": "astraflow.datasets.facts",
        "functions": "astraflow.datasets.functions",
        "games": "astraflow.datasets.games",
        "huggingface": "astraflow.datasets.huggingface",
        "jsonl": "astraflow.datasets.jsonl",
        "letters": "astraflow.datasets.letters",
        "math": "astraflow.datasets.math",
        "mixture": "astraflow.datasets.mixture",
        "parquet": "astraflow.datasets.parquet",
        "reasoning_gym": "astraflow.datasets.reasoning_gym",
        "scienceworld": "astraflow.datasets.scienceworld",
        "scripted": "astraflow.datasets.scripted",
        "search": "astraflow.datasets.search",
        "terminal": "astraflow.datasets.terminal",
        "textcraft": "astraflow.datasets.textcraft",
        "webshop": "astraflow.datasets.webshop",
    },
)
