"""Rotary factors are the same for all lengths of sequences, in trainer, node and export."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from astraflow.models import models
from astraflow.models.rotary import with_fixed_factors
from astraflow.trainer.engines.base import Batching
from astraflow.trainer.engines.scoring.scorer import Scorer
from astraflow.trainer.step.packing import pack_sequences
from tests import make_torch

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [*range(3, 11)], "rope_theta": 100.0}
MODELS: dict[str, dict[str, Any]] = {
    "longrope": {"kind": "phi3", "rope_parameters": LONG, "original_max_position_embeddings": 12},
    "dynamic": {
        "kind": "llama",
        "max_position_embeddings": 12,
        "rope_parameters": {"rope_type": "dynamic", "factor": 6.0, "rope_theta": 100.0},
    },
}
SHORT, LONGER = torch.arange(3, 11).numpy(), torch.arange(3, 43).numpy()


@pytest.fixture(params=[("longrope", None), ("longrope", 8), ("dynamic", 40)], ids=str)
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    name, tokens = request.param
    torch.manual_seed(0)
    model = make_torch.causal_model(**{**SIZES, **MODELS[name]})
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(8 if weight.ndim > 1 else 1)
    model.save_pretrained(tmp_path / "model")
    return {"kind": "huggingface", "path": str(tmp_path / "model"), "context_tokens": tokens}


def logprobs(model: PreTrainedModel, tokens: Any) -> Tensor:
    """Returns the logprobs of the tokens after the first, by transformers' own forward pass."""
    ids = torch.from_numpy(tokens)
    with torch.no_grad():
        logits: Tensor = model(input_ids=ids[None, :-1], use_cache=False).logits[0].log_softmax(-1)
    return logits.gather(-1, ids[1:, None])[:, 0]


@pytest.mark.parametrize("batching", [Batching.PACKED, Batching.ROWS])
def test_a_short_sequence_has_the_same_logprobs_beside_a_long_one(spec: dict[str, Any], batching: Batching) -> None:
    source = models.build(spec)
    model = source.load(source.prepare())
    alone = torch.cat([logprobs(model, SHORT), logprobs(model, LONGER)])
    scorer = Scorer(model, torch.device("cpu"))
    scorer.use(batching)

    with torch.no_grad():
        together = scorer.eval()(scorer.inputs(pack_sequences([SHORT, LONGER], [1, 1]))).logprobs

    assert float((together - alone).abs().max()) < 1e-5


def test_a_node_and_an_engine_server_have_the_factors_of_the_trainer(spec: dict[str, Any], tmp_path: Path) -> None:
    source = models.build(spec)
    trained = source.load(source.prepare())
    node = source.architecture()
    node.load_state_dict(trained.state_dict())
    folder = tmp_path / "server"
    folder.mkdir()
    source.write_server_files(folder)
    torch.manual_seed(0)
    served = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    served.load_state_dict(trained.state_dict())

    for tokens in (LONGER, SHORT):
        expected = logprobs(trained, tokens)
        assert torch.equal(logprobs(node.eval(), tokens), expected)
        assert torch.equal(logprobs(served.eval(), tokens), expected)


@pytest.mark.parametrize(("tokens", "factors"), [(None, "long_factor"), (12, "short_factor"), (13, "long_factor")])
def test_the_longest_sequence_chooses_the_factors(tokens: int | None, factors: str) -> None:
    written = {"model_type": "phi3", **SIZES, "rope_scaling": LONG, "original_max_position_embeddings": 12}
    config = AutoConfig.for_model(**json.loads(json.dumps(written)))

    fixed = with_fixed_factors(config, written, tokens)["rope_scaling"]

    assert fixed["short_factor"] == fixed["long_factor"] == LONG[factors]


def test_a_long_enough_context_needs_no_scaled_base() -> None:
    written = {"model_type": "llama", **SIZES, "rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_theta": 50.0}
    config = AutoConfig.for_model(**json.loads(json.dumps(written)))

    fixed = with_fixed_factors(config, written, None)

    assert fixed["rope_scaling"] == {"rope_type": "default", "rope_theta": 50.0}
    assert (fixed["rope_theta"], fixed["max_position_embeddings"]) == (50.0, 64)


def test_other_models_keep_their_configuration() -> None:
    written = {"model_type": "llama", **SIZES, "rope_theta": 50.0}

    assert with_fixed_factors(AutoConfig.for_model(**written), written, 8) == written


def test_the_scale_of_phimoe_is_fixed_with_its_factors() -> None:
    rope = {**LONG, "original_max_position_embeddings": 12, "short_mscale": 1.1, "long_mscale": 1.3}
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 64}
    config = AutoConfig.for_model("phimoe", rope_parameters=rope, **sizes)

    for tokens, scale in ((None, 1.3), (8, 1.1)):
        fixed = with_fixed_factors(config, config.to_dict(), tokens)["rope_parameters"]
        assert (fixed["short_mscale"], fixed["long_mscale"]) == (scale, scale)
