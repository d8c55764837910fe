"""Experts of a mixture-of-experts model in the answers of both servers."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.rollouts.expert_columns import decoded_experts
from astraflow.contract.rollouts.generation import Generation
from astraflow.contract.rollouts.recording import Mixture
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.raas.engines.server import sglang, vllm
from astraflow.raas.engines.server.formats import mixture_in

ROUTES = np.arange(5 * 3 * 2, dtype=np.int32).reshape(5, 3, 2)
"""A prompt of three tokens and an answer of three: five positions, three layers, two experts each."""
TOKENS = [7, 8, 9]
MIXTURE = Mixture(layers=3, chosen=2, experts=30)


def from_sglang(routes: Any) -> dict[str, Any]:
    facts = {
        "output_token_logprobs": [[-0.5, token, None] for token in TOKENS],
        "weight_versions": [{"version": "1", "start": 0, "end": 3}],
        "finish_reason": {"type": "length"},
        "routed_experts": routes,
    }
    return {"output_ids": TOKENS, "meta_info": facts}


def from_vllm(routes: Any) -> dict[str, Any]:
    choice = {
        "token_ids": TOKENS,
        "logprobs": {"content": [{"logprob": -0.5} for _ in TOKENS]},
        "weight_versions": [{"version": "1", "start": 0, "end": 3}],
        "finish_reason": "length",
        "routed_experts": routes,
    }
    return {"choices": [choice]}


def base64_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


def npy(array: np.ndarray[Any, Any]) -> str:
    file = io.BytesIO()
    np.save(file, array)
    return base64_of(file.getvalue())


def chosen(generation: Generation) -> Any:
    return decoded_experts(generation.columns[TokenColumn.EXPERTS], MIXTURE).tolist()


def test_sglang_returns_int32_without_a_shape() -> None:
    generation = sglang.parse_generation(from_sglang(base64_of(ROUTES.tobytes())), mixture=MIXTURE)
    assert chosen(generation) == ROUTES[2:].tolist(), "the last position of the prompt predicts the first token"


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
def test_vllm_returns_an_npy_file(dtype: Any) -> None:
    (generation,) = vllm.parse_generations(from_vllm(npy(ROUTES.astype(dtype))), mixture=MIXTURE)
    assert chosen(generation) == ROUTES[2:].tolist()


def test_answers_without_routes_and_routes_that_were_not_asked_for_have_no_column() -> None:
    assert not sglang.parse_generation(from_sglang(None), mixture=MIXTURE).columns
    assert not vllm.parse_generations(from_vllm(None), mixture=MIXTURE)[0].columns
    assert not vllm.parse_generations(from_vllm(npy(ROUTES)))[0].columns


@pytest.mark.parametrize(
    "routes",
    [
        "no base64!",
        base64_of(b"no npy"),
        base64_of(ROUTES.tobytes()[:-4]),
        npy(ROUTES[0]),
        npy(ROUTES[:2]),
        npy(ROUTES + 1),
        npy(ROUTES[:, :2]),
        npy(np.full((5, 3, 2), -1, dtype=np.int32)),
        npy(np.full((5, 3, 2), 0.5)),
        npy(np.array([[[object()]]])),
    ],
    ids=[
        "no base64",
        "no npy",
        "cut",
        "two dimensions",
        "too few positions",
        "too many experts",
        "too few layers",
        "negative",
        "floats",
        "pickle",
    ],
)
def test_routes_in_another_format_are_refused(routes: str) -> None:
    with pytest.raises(CorruptData):
        vllm.parse_generations(from_vllm(routes), mixture=MIXTURE)


def test_sglang_routes_of_another_size_or_sign_are_refused() -> None:
    for content in (ROUTES.tobytes()[:-4], (ROUTES - 13).tobytes(), b"123"):
        with pytest.raises(CorruptData):
            sglang.parse_generation(from_sglang(base64_of(content)), mixture=MIXTURE)
    with pytest.raises(CorruptData):
        sglang.parse_generation(from_sglang(base64_of(ROUTES.tobytes())))


def test_the_shape_comes_from_the_configuration_of_the_model(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"num_hidden_layers": 3, "num_experts_per_tok": 2, "num_experts": 30}))
    assert mixture_in(tmp_path) == MIXTURE
    config.write_text(json.dumps({"text_config": {"num_hidden_layers": 4, "moe_topk": 8, "n_routed_experts": 64}}))
    assert mixture_in(tmp_path) == Mixture(layers=4, chosen=8, experts=64)
    config.write_text(json.dumps({"num_hidden_layers": 3, "model_type": "qwen3"}))
    with pytest.raises(InvalidInput) as refused:
        mixture_in(tmp_path)
    assert refused.value.code == "engine.no_experts"
