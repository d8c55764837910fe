"""Adapters served as such: the folder that servers load, the requests that load it, and those that use it."""

import base64
import json
import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from astraflow.client.model_server import ServerRefused
from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.generation import Sampling
from astraflow.raas.engines.server.dialect import Dialect
from astraflow.raas.engines.server.model_folder import ModelFolder, write_adapter
from astraflow.raas.engines.server.sglang import SglangDialect
from astraflow.raas.engines.server.vllm import VllmDialect
from astraflow.weights.adapters import DOWN_SUFFIX, AdapterBinding
from astraflow.weights.tensors import VerifiedWeights, build_layout
from tests import make_torch
from tests.errors import raises_code
from tests.raas.engines.local.test_adapters import BASE, POLICY, RANK, SCALE, Adopting, adapters_of, plane, tensors_of

__all__ = ["plane"]

pytestmark = pytest.mark.anyio

PROMPT = np.array([1, 2, 3], dtype=np.int32)


class Recorder:
    """Client of a server that records requests and answers them from a table."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.adapter = ""
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self._answers = answers

    async def post(self, path: str, body: dict[str, Any] | None = None, **options: Any) -> Any:
        self.sent.append((path, dict(body or {})))
        return self._answers.get(path)


SGLANG = {
    "/load_lora_adapter_from_tensors": {"success": True},
    "/unload_lora_adapter": {"success": True},
    "/generate": {
        "output_ids": [5],
        "meta_info": {
            "output_token_logprobs": [[-0.5, 5, None]],
            "weight_versions": [{"version": "1", "start": 0, "end": 1}],
            "finish_reason": {"type": "length"},
            "input_token_logprobs": [[None, 1], [-1.0, 2], [-1.0, 3]],
        },
    },
}
VLLM = {
    "/v1/load_lora_adapter": "Success",
    "/v1/unload_lora_adapter": "Success",
    "/inference/v1/generate": {
        "choices": [
            {
                "token_ids": [5],
                "logprobs": {"content": [{"logprob": -0.5}]},
                "weight_versions": [{"version": "1", "start": 0, "end": 1}],
                "finish_reason": "length",
            }
        ],
        "prompt_logprobs": [None, {"2": {"logprob": -1.0}}, {"3": {"logprob": -1.0}}],
    },
}


def adapters(store: Adopting, version: int) -> VerifiedWeights:
    return replace(store.kept[POLICY, version], adapter_base=store.kept[BASE, 0])


async def test_the_adapter_folder_has_the_format_of_peft(plane: Adopting, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    write_adapter(folder, adapters(plane, 1))

    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", RANK, RANK * SCALE)
    assert config["target_modules"] == ["k_proj", "o_proj", "q_proj", "v_proj"]
    expected = adapters_of(make_torch.model(), 1)
    with safe_open(folder / "adapter_model.safetensors", framework="pt") as file:
        assert len(list(file.keys())) == 2 * len(expected)
        for stem, (down, up) in expected.items():
            assert torch.equal(file.get_tensor(f"base_model.model.{stem}.lora_A.weight"), down)
            assert torch.equal(file.get_tensor(f"base_model.model.{stem}.lora_B.weight"), up)


async def test_adapters_of_different_ranks_are_refused(plane: Adopting, tmp_path: Path) -> None:
    pairs = adapters_of(make_torch.model(), 0)
    stem = next(iter(pairs))
    down, up = pairs[stem]
    pairs[stem] = (torch.cat([down, down]), torch.cat([up, up], dim=1))
    base = plane.kept[BASE, 0]
    metadata = AdapterBinding.for_base(base.manifest, scale=SCALE).metadata()
    manifest, buffer = build_layout(tensors_of(pairs), policy=POLICY, version=base.manifest.version, metadata=metadata)
    with raises_code(InvalidInput, "engine.adapter_rank") as refused:
        write_adapter(tmp_path / "adapter", VerifiedWeights(manifest=manifest, buffer=buffer, adapter_base=base))
    assert refused.value.code == "engine.adapter_rank"
    assert any(spec.name.endswith(DOWN_SUFFIX) for spec in manifest.tensors)


async def test_the_base_weights_are_staged_once_for_all_adapters(plane: Adopting) -> None:
    folder = ModelFolder(make_torch.TINY)
    try:
        folder.stage_adapter(adapters(plane, 0))
        first, root = folder.adapter, folder.root_hash
        file = (folder.path / "model.safetensors").stat()
        assert root == plane.kept[BASE, 0].manifest.root_hash
        folder.stage_adapter(adapters(plane, 1))
        assert (folder.path / "model.safetensors").stat().st_mtime_ns == file.st_mtime_ns
        assert folder.adapter != first
        assert folder.adapter_version == 1
        assert first is not None and first.is_dir(), "a server may still read it"
        folder.stage_adapter(adapters(plane, 2))
        assert not first.exists()
        folder.stage(make_torch.published(make_torch.model(), 3), with_patch=False)
        assert (folder.adapter, list(folder.path.glob("adapter-*"))) == (None, [])
    finally:
        folder.close()


@pytest.mark.parametrize(
    ("dialect", "answers", "load", "unload", "named"),
    [
        (SglangDialect(), SGLANG, "/load_lora_adapter_from_tensors", "/unload_lora_adapter", "lora_path"),
        (VllmDialect(), VLLM, "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "model"),
    ],
    ids=["sglang", "vllm"],
)
async def test_requests_use_the_name_of_the_newest_adapter(
    plane: Adopting, tmp_path: Path, dialect: Dialect, answers: Mapping[str, Any], load: str, unload: str, named: str
) -> None:
    client: Any = Recorder(answers)
    await dialect.generate(client, ["a"], PROMPT, Sampling(max_new_tokens=1))
    assert client.sent[-1][1][named] in (None, "policy")

    for version in (1, 2):
        write_adapter(tmp_path / f"adapter-{version}", adapters(plane, version))
        await dialect.load_adapter(client, tmp_path / f"adapter-{version}", str(version))
    (generation,) = await dialect.generate(client, ["b"], PROMPT, Sampling(max_new_tokens=1))
    await dialect.score(client, PROMPT, 1, limit_s=1.0)

    assert generation.tokens.tolist() == [5]
    assert [(path, body["lora_name"]) for path, body in client.sent[1:6] if "lora" in path] == [
        (load, "adapter-1"),
        (load, "adapter-2"),
        (unload, "adapter-1"),
    ]
    versions = [body["new_version"] for path, body in client.sent if path == "/update_weight_version"]
    assert versions == ["1", "2"]
    assert [body[named] for _, body in client.sent[-2:]] == ["adapter-2", "adapter-2"]


async def test_sglang_gets_the_tensors_of_an_adapter(plane: Adopting, tmp_path: Path) -> None:
    client: Any = Recorder(SGLANG)
    write_adapter(tmp_path / "adapter-1", adapters(plane, 1))
    await SglangDialect().load_adapter(client, tmp_path / "adapter-1", "1")
    [body] = [body for path, body in client.sent if path == "/load_lora_adapter_from_tensors"]
    assert body["config_dict"]["r"] == RANK
    [encoded] = body["serialized_named_tensors"]
    tensors = pickle.loads(base64.b64decode(encoded))  # noqa: S301 (made above)
    down, _ = next(iter(adapters_of(make_torch.model(), 1).values()))
    assert any(torch.equal(tensor, down) for tensor in tensors.values())


async def test_an_adapter_that_the_server_refuses_is_an_error(plane: Adopting, tmp_path: Path) -> None:
    client: Any = Recorder({"/load_lora_adapter_from_tensors": {"success": False, "error_message": "no"}})
    write_adapter(tmp_path / "adapter-1", adapters(plane, 1))
    with pytest.raises(ServerRefused):
        await SglangDialect().load_adapter(client, tmp_path / "adapter-1", "1")
