"""Algorithms are documented as the reference page needs; every setting and example of the guide works."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from astraflow.algorithms.base import advantages, token_advantages
from astraflow.algorithms.checks import check_algorithm
from astraflow.algorithms.config import AlgorithmConfig
from astraflow.algorithms.corrections import corrections
from astraflow.algorithms.losses import losses
from tests.algorithms.data import Token, assert_close, batch_of, outcome

GUIDE = (Path(__file__).parents[2] / "docs/how-to/algorithms.md").read_text()
BLOCKS = [
    tomllib.loads(text)["policies"]["solver"]["algorithm"] for text in re.findall(r"```toml\n(.*?)```", GUIDE, re.S)
]
ROWS = [
    tomllib.loads("\n".join(settings))
    for settings in (re.findall(r"`(\w+ = [^`]+)`", line) for line in GUIDE.splitlines() if line.startswith("| "))
    if settings
]


@pytest.mark.parametrize("algorithm", [*BLOCKS, *ROWS], ids=str)
def test_settings_of_the_guide_are_valid(algorithm: dict[str, Any]) -> None:
    check_algorithm(AlgorithmConfig.parse(algorithm, where="algorithm"))


def test_the_guide_has_examples() -> None:
    assert (len(BLOCKS), len(ROWS)) == (6, 16)


@pytest.mark.parametrize("registry", [advantages, token_advantages, losses, corrections], ids=lambda r: r.noun)
def test_every_plugin_states_its_formula_and_source(registry: Any) -> None:
    for kind in registry.kinds():
        assert re.search(r"^Formula: .", registry.description(kind), re.M), kind
        assert re.search(r"^Source: .", registry.description(kind), re.M), kind


@pytest.mark.parametrize("registry", [advantages, token_advantages, losses, corrections], ids=lambda r: r.noun)
def test_every_option_is_documented(registry: Any) -> None:
    options = [registry.options(kind) for kind in registry.kinds()] + [AlgorithmConfig]
    lacking = [
        f"{o.__name__}.{name}" for o in options for name, field in o.model_fields.items() if not field.description
    ]
    assert lacking == []


@pytest.mark.long
def test_the_loss_of_the_guide_works() -> None:
    [code] = re.findall(r"```python\n(.*?)```", GUIDE, re.S)
    registered = dict(losses._registered)
    try:
        exec(code, {})  # noqa: S102
        result = outcome(losses.build({"kind": "tanh"}), batch_of([[Token(), Token(advantage=-1.0)]]))
    finally:
        losses._registered = registered

    assert_close(result.logprob_grad, [-0.5, 0.5])
