"""Patches in place equal a full load, through stacked projections and slices of tensor parallelism."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from astraflow.raas.engines.server.in_server.astraflow_weight_mapping import CannotPatch, WeightMapping

HIDDEN, HEADS, KEYS, WIDE, VOCAB = 8, 8, 4, 12, 10
SHAPES = {
    "embed": (VOCAB, HIDDEN),
    "q": (HEADS, HIDDEN),
    "k": (KEYS, HIDDEN),
    "v": (KEYS, HIDDEN),
    "gate": (WIDE, HIDDEN),
    "up": (WIDE, HIDDEN),
    "down": (HIDDEN, WIDE),
    "norm": (HIDDEN,),
}
Tensors = dict[str, torch.Tensor]


class Ranked:
    """One rank of a model whose parameters are stacked and sliced as SGLang and vLLM do."""

    def __init__(self, rank: int = 0, ranks: int = 1, *, dtype: torch.dtype = torch.bfloat16) -> None:
        self._rank, self._ranks = rank, ranks
        self.qkv = torch.zeros((HEADS + 2 * KEYS) // ranks, HIDDEN, dtype=dtype)
        self.gate_up = torch.zeros(2 * WIDE // ranks, HIDDEN, dtype=dtype)
        self.down = torch.zeros(HIDDEN, WIDE // ranks, dtype=dtype)
        self.embed = torch.zeros(VOCAB // ranks, HIDDEN, dtype=dtype)
        self.norm = torch.zeros(HIDDEN, dtype=dtype)

    def load_weights(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in named:
            if name in ("q", "k", "v"):
                self._stack(self.qkv, tensor, {"q": 0, "k": HEADS, "v": HEADS + KEYS}[name])
            elif name in ("gate", "up"):
                self._stack(self.gate_up, tensor, {"gate": 0, "up": WIDE}[name])
            elif name == "down":
                self.down.copy_(self._slice(tensor, dim=1))
            elif name == "embed":
                self.embed.copy_(self._slice(tensor, dim=0))
            else:
                self.norm.copy_(tensor)

    def parameters(self) -> Tensors:
        return {"qkv": self.qkv, "gate_up": self.gate_up, "down": self.down, "embed": self.embed, "norm": self.norm}

    def _slice(self, tensor: torch.Tensor, *, dim: int) -> torch.Tensor:
        size = tensor.shape[dim] // self._ranks
        return tensor.narrow(dim, self._rank * size, size)

    def _stack(self, parameter: torch.Tensor, tensor: torch.Tensor, begin: int) -> None:
        part = self._slice(tensor, dim=0)
        parameter.narrow(0, begin // self._ranks, part.shape[0]).copy_(part)


def tensors(seed: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).to(torch.bfloat16) for name, shape in SHAPES.items()}


def patch_file(folder: Path, before: Tensors, after: Tensors) -> Path:
    """Writes what differs, in the format of `patch_file.py`."""
    content = {}
    for name, tensor in after.items():
        positions = (tensor.flatten() != before[name].flatten()).nonzero().flatten()
        if len(positions):
            content[f"{name}.positions"] = positions
            content[f"{name}.values"] = tensor.flatten()[positions]
    path = folder / "patch.safetensors"
    save_file(content, path)
    return path


def loaded(folder: Path, before: Tensors, models: Sequence[Ranked], *, is_sharded: bool = False) -> list[WeightMapping]:
    save_file(before, folder / "model.safetensors")
    mappings = [WeightMapping() for _ in models]
    for model, learned in zip(models, mappings, strict=True):
        learned.load(str(folder / "model.safetensors"), model.load_weights, is_sharded=is_sharded or len(models) > 1)
    return mappings


@given(st.data(), st.sampled_from([1, 2]), st.sampled_from([torch.bfloat16, torch.float32]))
def test_a_patch_equals_a_full_load(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, ranks: int, dtype: torch.dtype
) -> None:
    folder = tmp_path_factory.mktemp("patch")
    before = tensors(data.draw(st.integers(0, 9)))
    after = {name: tensor.clone() for name, tensor in before.items()}
    for name in data.draw(st.sets(st.sampled_from(sorted(SHAPES)))):
        positions = data.draw(st.sets(st.integers(0, int(np.prod(SHAPES[name])) - 1), min_size=1))
        after[name].view(-1)[sorted(positions)] = 9.0
    models = [Ranked(rank, ranks, dtype=dtype) for rank in range(ranks)]
    patch = patch_file(folder, before, after)
    counts = [mapping.patch(str(patch)) for mapping in loaded(folder, before, models)]

    changed = sum(int((after[name] != before[name]).sum()) for name in after)
    norms = int((after["norm"] != before["norm"]).sum()) * (ranks - 1)  # every rank has the whole norm
    assert sum(counts) == changed + norms
    for rank, model in enumerate(models):
        wanted = Ranked(rank, ranks, dtype=dtype)
        wanted.load_weights(after.items())
        for name, parameter in model.parameters().items():
            assert torch.equal(parameter, wanted.parameters()[name]), name


def test_a_patch_without_a_load_is_refused(tmp_path: Path) -> None:
    patch = patch_file(tmp_path, tensors(0), tensors(1))

    with pytest.raises(CannotPatch, match="no weight mapping"):
        WeightMapping().patch(str(patch))


class Transposed(Ranked):
    """Stores `down` transposed and scaled, as a quantised layer does."""

    def load_weights(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in named:
            if name == "down":
                self.down.copy_((tensor.float() * 2).to(tensor.dtype))
            else:
                super().load_weights([(name, tensor)])


def test_a_transformed_tensor_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    model = Transposed()
    (mapping,) = loaded(tmp_path, tensors(0), [model])
    before = {name: parameter.clone() for name, parameter in model.parameters().items()}

    with pytest.raises(CannotPatch, match="'down'"):
        mapping.patch(str(patch_file(tmp_path, tensors(0), tensors(1))))
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.parameters().items())


def test_untransformed_tensors_of_the_model_are_patched(tmp_path: Path) -> None:
    model = Transposed()
    (mapping,) = loaded(tmp_path, tensors(0), [model])
    after = {**tensors(0), "norm": tensors(1)["norm"]}
    mapping.patch(str(patch_file(tmp_path, tensors(0), after)))

    assert torch.equal(model.norm, after["norm"])


@pytest.mark.parametrize("is_sharded", [False, True])
def test_a_patch_of_a_part_that_no_rank_has_is_refused(tmp_path: Path, is_sharded: bool) -> None:
    model = Ranked(0, 2)  # knows one half
    (mapping,) = loaded(tmp_path, tensors(0), [model], is_sharded=is_sharded)
    before = {name: parameter.clone() for name, parameter in model.parameters().items()}
    only_norm = {**tensors(0), "norm": tensors(1)["norm"]}
    mapping.patch(str(patch_file(tmp_path, tensors(0), only_norm)))  # every rank has the whole norm

    with pytest.raises(CannotPatch, match="not copied unchanged"):
        mapping.patch(str(patch_file(tmp_path, tensors(0), tensors(1))))
    assert torch.equal(model.norm, only_norm["norm"])
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.parameters().items() if name != "norm")


class TransposedElsewhere(Ranked):
    """Passes `down` through a new tensor before the copy that can be watched."""

    def load_weights(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in named:
            super().load_weights([(name, tensor.t().contiguous().t() if name == "down" else tensor)])


@pytest.mark.parametrize("unwatched", [{0}, {1}, {0, 1}])
def test_a_tensor_transformed_by_one_rank_is_refused_by_all_ranks(tmp_path: Path, unwatched: set[int]) -> None:
    models = [(TransposedElsewhere if rank in unwatched else Ranked)(rank, 2) for rank in range(2)]
    before = models[0].down.clone()
    for mapping in loaded(tmp_path, tensors(0), models):
        with pytest.raises(CannotPatch, match="'down'"):
            mapping.patch(str(patch_file(tmp_path, tensors(0), {**tensors(0), "down": tensors(1)["down"]})))
    assert not torch.equal(models[0].down, before)  # loaded, and patched by none
    assert torch.equal(models[0].down, tensors(0)["down"][:, : WIDE // 2])


def test_a_patch_before_the_other_ranks_have_loaded_is_refused(tmp_path: Path) -> None:
    (first,) = loaded(tmp_path, tensors(0), [Ranked(0, 2)], is_sharded=True)
    patch = str(patch_file(tmp_path, tensors(0), tensors(1)))

    with pytest.raises(CannotPatch, match="not copied unchanged"):
        first.patch(patch)
    loaded(tmp_path, tensors(0), [Ranked(1, 2)], is_sharded=True)
    assert first.patch(patch) > 0


def test_loading_restores_the_copy_method_of_torch(tmp_path: Path) -> None:
    original = torch.Tensor.copy_
    save_file(tensors(0), tmp_path / "model.safetensors")

    def fail(_: object) -> None:
        raise RuntimeError("broken loader")

    with pytest.raises(RuntimeError, match="broken loader"):
        WeightMapping().load(str(tmp_path / "model.safetensors"), fail)
    assert torch.Tensor.copy_ is original
