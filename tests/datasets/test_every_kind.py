"""Dataset suite on every registered kind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow.datasets import datasets
from astraflow.datasets.base import Dataset
from astraflow.testing.plugins import DatasetSuite
from tests.datasets import tables

Spec = dict[str, Any]

SPECS: dict[str, Callable[[Path], Spec]] = {
    "alfworld": lambda _: {"kind": "alfworld", "is_sample": True},
    "alfworld generated": lambda _: {"kind": "alfworld", "generated": 60},
    "arithmetic": lambda _: {"kind": "arithmetic", "digits": 2},
    "arithmetic of one digit": lambda _: {"kind": "arithmetic", "operation": "multiply"},
    "code": lambda _: {"kind": "code", "name": "livecodebench_v6", "is_sample": True},
    "facts": lambda _: {"kind": "facts", "size": 100, "facts": {"entities": 300}},
    "functions": lambda _: {"kind": "functions"},
    "games": lambda _: {"kind": "games", "size": 60},
    "huggingface": lambda path: {"kind": "huggingface", "path": str(tables.save_to_disk(path / "saved"))},
    "jsonl": lambda path: {"kind": "jsonl", "path": str(tables.write_jsonl(path / "rows.jsonl"))},
    "letters": lambda _: {"kind": "letters"},
    "letters sorted": lambda _: {"kind": "letters", "operation": "sort", "alphabet": "0123456789", "length": 3},
    "maintainer": lambda _: {"kind": "maintainer", "size": 100},
    "math": lambda _: {"kind": "math", "name": "deepscaler", "is_sample": True},
    "mixture": lambda path: {
        "kind": "mixture",
        "parts": {
            "few": {"dataset": {"kind": "jsonl", "path": str(tables.write_jsonl(path / "few.jsonl"))}},
            "many": {"dataset": {"kind": "letters"}, "weight": 2.0},
        },
    },
    "openenv": lambda _: {"kind": "openenv", "size": 100},
    "parquet": lambda path: {"kind": "parquet", "path": str(tables.write_shards(path / "shards"))},
    "parquet in windows": lambda path: {
        "kind": "parquet",
        "path": str(tables.write_shards(path / "shards")),
        "shuffle_window": 2,
    },
    "reasoning_gym": lambda _: {"kind": "reasoning_gym", "generators": {"chain_sum": {}}, "size": 100},
    "scienceworld": lambda _: {"kind": "scienceworld"},
    "scripted": lambda _: {"kind": "scripted", "size": 50, "hardest": 0.5},
    "search": lambda _: {"kind": "search", "name": "asearcher", "is_sample": True},
    "terminal": lambda _: {"kind": "terminal", "is_sample": True},
    "textcraft": lambda _: {"kind": "textcraft", "size": 100},
    "textcraft without end": lambda _: {"kind": "textcraft", "size": 10**15},
    "webshop": lambda _: {"kind": "webshop"},
    "webshop with a store": lambda _: {"kind": "webshop", "store": {"products": 30}},
    "webshop with goals": lambda _: {"kind": "webshop", "is_sample": True},
}


class TestEveryKind(DatasetSuite):
    @pytest.fixture(params=SPECS)
    def build(self, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], Dataset]:
        spec = SPECS[request.param](tmp_path)
        return lambda seed: datasets.build(spec, seed)


INSTALLED_ELSEWHERE = {"verifiers"}
"""Kinds that need an environment of other projects; `make environments` tests them."""


def test_every_dataset_kind_is_tested() -> None:
    assert {name.partition(" ")[0] for name in SPECS} | INSTALLED_ELSEWHERE == set(datasets.kinds())
