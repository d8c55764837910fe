"""Sources of prompts: generated tasks, files, and published datasets."""

from astraflow.datasets.base import Dataset
from astraflow.runtime.plugins import Registry

datasets: Registry[Dataset] = Registry(
    "dataset",
    built_in={
        "alfworld": "astraflow.datasets.worlds.alfworld",
        "arithmetic": "astraflow.datasets.generated.arithmetic",
        "code": "astraflow.datasets.published.code",
        "facts": "astraflow.datasets.generated.facts",
        "functions": "astraflow.datasets.generated.functions",
        "games": "astraflow.datasets.worlds.games",
        "huggingface": "astraflow.datasets.files.huggingface",
        "jsonl": "astraflow.datasets.files.jsonl",
        "letters": "astraflow.datasets.generated.letters",
        "maintainer": "maintainer.training.boards",
        "math": "astraflow.datasets.published.math",
        "mixture": "astraflow.datasets.mixture",
        "openenv": "astraflow.environments.foreign.openenv",
        "parquet": "astraflow.datasets.files.parquet",
        "reasoning_gym": "astraflow.datasets.generated.reasoning_gym",
        "scienceworld": "astraflow.datasets.worlds.scienceworld",
        "scripted": "astraflow.datasets.generated.scripted",
        "search": "astraflow.datasets.published.search",
        "terminal": "astraflow.datasets.worlds.terminal",
        "textcraft": "astraflow.datasets.worlds.textcraft",
        "verifiers": "astraflow.environments.foreign.tasks",
        "webshop": "astraflow.datasets.worlds.webshop",
    },
)
