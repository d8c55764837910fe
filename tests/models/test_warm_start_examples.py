"""A change of what warm starts make increases the revision in the names of cached models.

When the test fails: increase `_REVISION` in `astraflow/models/tiny.py`, run the test with `WRITE_WARM_STARTS=1`, and
commit the file that it writes.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from astraflow.contract.errors import InvalidInput
from astraflow.models import models, tiny
from astraflow.models.base import Example, ModelSource
from astraflow.models.causal import named_weights
from astraflow.models.warm_start import _transcript
from astraflow.trainer.model_preparation import warm_start_examples

RECORD = Path(__file__).with_name("warm_starts.json")
EXAMPLES = 16
SUMS: Mapping[str, Any] = {"kind": "arithmetic", "operation": "add", "digits": 1}
TEXTCRAFT: Mapping[str, Any] = {"kind": "textcraft", "size": 2000, "max_depth": 2, "max_count": 1, "items": 24}
VERIFICATION: Mapping[str, Any] = {
    "workflow": {"kind": "solve_and_verify"},
    "experts": {"solver": "fallible_solver", "verifier": "verifier"},
}
WARM_STARTS: Mapping[str, Mapping[str, Any]] = {
    "answers": {"dataset": {"kind": "letters", "operation": "reverse", "length": 4}},
    "tool": {
        "dataset": SUMS,
        "system": "You can calculate.",
        "episodes": {
            "workflow": {"kind": "tool_use", "call_format": "xml", "tools": [{"kind": "calculator"}]},
            "turns": {"solver": ["<calculate>{expression}</calculate>", "{answer}"]},
        },
    },
    "environment": {
        "dataset": TEXTCRAFT,
        "episodes": {
            "workflow": {"kind": "act", "policy": "solver", "environment": {"kind": "textcraft"}},
            "experts": {"solver": "plan"},
        },
    },
    "solver": {"dataset": SUMS, "episodes": {**VERIFICATION, "policy": "solver"}},
    "verifier": {
        "dataset": {
            "kind": "mixture",
            "parts": {"sums": {"dataset": SUMS}, "products": {"dataset": {**SUMS, "operation": "multiply"}}},
        },
        "episodes": {**VERIFICATION, "policy": "verifier"},
    },
}
"""Warm starts of different kinds of examples."""


def examples_of(source: ModelSource) -> Iterator[Example]:
    wanted = source.examples_source
    assert wanted is not None  # the home is empty
    return warm_start_examples(source, wanted)


def digest_of_examples(warm_start: Mapping[str, Any]) -> str:
    """Returns the digest of the tokens that a warm start trains on, of its first examples."""
    if "episodes" in warm_start:
        warm_start = {**warm_start, "episodes": {**warm_start["episodes"], "prompts": EXAMPLES}}
    source = models.build({"kind": "tiny", "words": ["user\n", "assistant\n"], "warm_start": warm_start})
    tokenizer = source.tokenizer()
    digest = hashlib.sha256()
    for example in islice(examples_of(source), EXAMPLES):
        transcript = _transcript(tokenizer, warm_start.get("system", ""), example)
        digest.update(transcript.tokens.astype("<i4").tobytes() + transcript.is_written.tobytes())
    return digest.hexdigest()[:16]


def training() -> list[float]:
    """Returns sums of initial weights, and the losses of a warm start's first steps."""
    small = {"kind": "tiny", "hidden_size": 32, "heads": 2, "key_value_heads": 1, "intermediate_size": 64, "experts": 2}
    warm_start = {"dataset": {"kind": "arithmetic"}, "max_steps": 3, "batch_size": 8, "report_every_steps": 1}
    source = models.build({**small, "warm_start": warm_start})
    losses: list[float] = []
    with pytest.raises(InvalidInput):  # three steps do not reach the target
        source.prepare(examples_of(source), lambda progress: losses.append(progress.loss))
    weights = named_weights(source.architecture()).values()
    return [float(sum(weight.detach().abs().sum() for weight in weights)), *losses]


def test_cached_models_have_another_name_when_a_warm_start_makes_another_model(own_home: Path) -> None:
    torch.manual_seed(0)
    current: dict[str, Any] = {
        "revision": tiny._REVISION,
        "examples": {name: digest_of_examples(warm_start) for name, warm_start in WARM_STARTS.items()},
        "training": training(),
    }
    if "WRITE_WARM_STARTS" in os.environ:
        RECORD.write_text(json.dumps(current, indent=1) + "\n")
    recorded = json.loads(RECORD.read_text())
    assert current["revision"] == recorded["revision"]
    assert current["examples"] == recorded["examples"]
    np.testing.assert_allclose(current["training"], recorded["training"], rtol=1e-3)
