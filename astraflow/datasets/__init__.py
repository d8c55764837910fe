"""Where prompts come from: made on the spot, or read from a file."""

from astraflow.datasets.base import Dataset
from astraflow.runtime.plugins import Registry

datasets: Registry[Dataset] = Registry(
    "dataset",
    built_in={
        "arithmetic": "astraflow.datasets.arithmetic",
        "jsonl": "astraflow.datasets.jsonl",
        "letters": "astraflow.datasets.letters",
        "mixture": "astraflow.datasets.mixture",
        "scripted": "astraflow.datasets.scripted",
    },
)
