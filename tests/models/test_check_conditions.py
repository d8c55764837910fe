"""Conditions of checks: weights of a new model are enlarged, trained ones are not, and nothing stays changed."""

import torch

from astraflow.models.check_conditions import check_conditions
from tests import make_torch

CPU = torch.device("cpu")
IDS = torch.arange(1, 7)[None]


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        values: torch.Tensor = model(input_ids=IDS, use_cache=False).logits
    return values


def test_a_new_model_has_larger_results_while_it_is_checked() -> None:
    model = make_torch.model().eval()
    before = logits(model)
    with check_conditions(model, CPU):
        assert float((logits(model) - before).abs().max()) > 0.1
    assert torch.equal(logits(model), before)


def test_a_model_that_prefers_some_tokens_computes_as_it_is() -> None:
    """Through the layers of a real model, enlarged results would turn rounding into differences above the tolerance."""
    model = make_torch.model().eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(30)
    before = logits(model)
    with check_conditions(model, CPU):
        assert torch.equal(logits(model), before)


def test_padding_of_a_new_model_has_values_while_it_is_checked() -> None:
    model = make_torch.model()
    embeddings = model.get_input_embeddings()
    with check_conditions(model, CPU):
        assert embeddings(torch.tensor([0])).all()
    assert not embeddings(torch.tensor([0])).any()
