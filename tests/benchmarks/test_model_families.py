"""Families of models: the page says of each which batchings are exact, as they are measured here."""

import pytest

from astraflow.trainer.engines.base import Batching
from benchmarks.model_families.configurations import FAMILIES, NOT_BUILT, VOCABULARY, tiny_configuration
from benchmarks.model_families.measure import measured
from benchmarks.model_families.page import PAGE, row

REPRESENTATIVE = (
    "deepseek_v3",
    "falcon_h1",
    "gemma2",
    "gpt_oss",
    "granitemoehybrid",
    "lfm2",
    "llama",
    "llama4_text",
    "nemotron_h",
    "qwen3_5_moe_text",
    "qwen3_moe",
    "xlnet",
)
"""Attention alone, latent, with sinks, in windows, in chunks; states, convolutions, experts; one that is refused."""
REFUSED = {"cpmant", "prophetnet", "xlm", "xlnet"}
"""Families whose tokens depend on later ones."""


def test_every_family_has_a_tiny_configuration_or_a_reason() -> None:
    for family in FAMILIES.keys() - NOT_BUILT.keys():
        assert tiny_configuration(family).get_text_config().vocab_size == VOCABULARY
    assert NOT_BUILT.keys() <= FAMILIES.keys()
    assert len(NOT_BUILT) == 6


def test_the_page_lists_every_family_once() -> None:
    listed = [line.split("`")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert sorted(listed) == sorted(FAMILIES)


@pytest.mark.parametrize("family", REPRESENTATIVE)
def test_the_page_says_what_is_measured(family: str) -> None:
    check(family)


@pytest.mark.long
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - NOT_BUILT.keys() - set(REPRESENTATIVE)))
def test_the_page_says_what_is_measured_of_every_family(family: str) -> None:
    check(family)


def check(family: str) -> None:
    result = measured(family)
    assert row(result) in PAGE.read_text().splitlines(), "run `python -m benchmarks.model_families`"
    if family in REFUSED:
        assert isinstance(result.choice, str)
    else:
        assert isinstance(result.choice, Batching)
        assert result.is_exact(result.choice)
        assert result.is_exact(Batching.ROWS)
