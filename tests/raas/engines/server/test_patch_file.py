"""The safetensors library reads a patch file; its content are the changed elements."""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from astraflow.contract.weights import Dtype
from astraflow.raas.engines.server.model_folder import write_patch
from tests import make_torch


def test_a_patch_has_the_changed_elements_of_each_tensor(tmp_path: Path) -> None:
    for dtype in (Dtype.BFLOAT16, Dtype.FLOAT32):
        before = make_torch.published(make_torch.model(0), 0, dtype=dtype)
        changed = make_torch.model(0)
        with torch.no_grad():
            changed.get_parameter("model.norm.weight")[3:6] = 7.0
            changed.get_parameter("model.embed_tokens.weight")[2, 1] = 5.0
        after = make_torch.published(changed, 1, base=before, dtype=dtype)
        assert after.changes is not None

        assert write_patch(tmp_path / "patch", after, after.changes) == 4
        content = load_file(tmp_path / "patch")
        assert {name: tensor.tolist() for name, tensor in content.items()} == {
            "model.norm.weight.positions": [3, 4, 5],
            "model.norm.weight.values": [7.0] * 3,
            "model.embed_tokens.weight.positions": [2 * 32 + 1],
            "model.embed_tokens.weight.values": [5.0],
        }


def test_a_patch_without_changes_is_an_empty_file_that_can_be_read(tmp_path: Path) -> None:
    weights = make_torch.published(make_torch.model(0), 0)

    assert write_patch(tmp_path / "patch", weights, {"model.norm.weight": np.empty(0, dtype=np.int64)}) == 0
    assert load_file(tmp_path / "patch") == {}
