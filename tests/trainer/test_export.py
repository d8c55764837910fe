"""Exported checkpoints: models that transformers loads, with the bits of the published version."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from astraflow.cli.main import app
from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.values import Json
from astraflow.contract.weights import Dtype
from astraflow.models import models
from astraflow.models.causal import named_weights
from astraflow.models.published import published_tensors
from astraflow.trainer import export as export_module
from astraflow.trainer.backends import backends
from astraflow.trainer.backends.shards import local_shards
from astraflow.trainer.backends.state.files import CapturedFiles, write_numbers
from astraflow.trainer.backends.state.sharded import INDEX, joined_index, shard_file, shard_index
from astraflow.trainer.checkpoints import CheckpointIdentity, Checkpoints, TrainingProgress
from astraflow.trainer.export import Exported, export_checkpoint
from astraflow.trainer.retention import Retention
from tests.errors import raises_code
from tests.make_torch import published_weights
from tests.snapshots import snapshot_of
from tests.suites.backend_suite import assert_same
from tests.trainer.backends.test_local import batch

MODEL: dict[str, Json] = {"kind": "tiny", "hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 32}


@pytest.fixture(scope="module")
def masters(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Tensor]:
    model = models.build(MODEL).architecture()
    random = torch.Generator().manual_seed(3)
    return {name: torch.randn(weight.shape, generator=random) for name, weight in named_weights(model).items()}


def checkpoints(folder: Path, masters: Mapping[str, Tensor], *, backend: str = "local") -> Checkpoints:
    store = Checkpoints(
        folder, CheckpointIdentity(policy=PolicyId("solver"), model=MODEL, backend=backend), keep=Retention(newest=2)
    )
    store.folder.mkdir(parents=True, exist_ok=True)
    return store


def saved(folder: Path, masters: Mapping[str, Tensor]) -> Checkpoints:
    prefixes = ("weight", "exp_avg", "critic/weight")
    tensors = {f"{prefix}/{name}": value for name, value in masters.items() for prefix in prefixes}
    index = joined_index([shard_index(tensors, local_shards(tensors, is_first=True), rank=0)])
    store = checkpoints(folder, masters)
    for step in (1, 2):
        state = CapturedFiles(tensors={shard_file(0): tensors}, numbers={INDEX: index})
        store.save(progress(step), state.write, published=dict.fromkeys(masters, "BF16"))
    return store


def progress(step: int) -> TrainingProgress:
    return TrainingProgress(run="run", step=step, report=None)


def test_experts_are_exported_under_the_names_of_a_checkpoint(tmp_path: Path) -> None:
    spec: dict[str, Json] = {**MODEL, "experts": 3}
    model = models.build(spec).architecture()
    tensors = {f"weight/{name}": weight.detach() for name, weight in named_weights(model).items()}
    published = published_weights(model)
    store = Checkpoints(
        tmp_path / "checkpoints",
        CheckpointIdentity(policy=PolicyId("solver"), model=spec, backend="local"),
        keep=Retention(newest=2),
    )
    store.folder.mkdir(parents=True)
    index = joined_index([shard_index(tensors, local_shards(tensors, is_first=True), rank=0)])
    state = CapturedFiles(tensors={shard_file(0): tensors}, numbers={"state.json": {}, INDEX: index})
    store.save(progress(1), state.write, published=dict.fromkeys(published, "BF16"))

    export_checkpoint(store.folder, tmp_path / "model")

    with safe_open(tmp_path / "model" / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(published)
    loaded_model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto", output_loading_info=True)
    loaded, report = loaded_model
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for name, weight in named_weights(loaded).items():
        assert torch.equal(weight, tensors[f"weight/{name}"].bfloat16()), name


def assert_published_bits(folder: Path, masters: Mapping[str, Tensor]) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    weights = named_weights(loaded)
    assert weights.keys() == masters.keys()
    for name, master in masters.items():
        assert weights[name].dtype == torch.bfloat16
        assert torch.equal(weights[name].detach(), master.bfloat16()), name


def test_transformers_loads_the_bits_of_the_published_version(tmp_path: Path, masters: Mapping[str, Tensor]) -> None:
    store = saved(tmp_path / "checkpoints", masters)
    assert export_checkpoint(store.folder, tmp_path / "model") == Exported(version=Version(2))
    assert_published_bits(tmp_path / "model", masters)
    text = "answer 42"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_checkpoint_can_be_exported_by_its_folder(tmp_path: Path, masters: Mapping[str, Tensor]) -> None:
    store = saved(tmp_path / "checkpoints", masters)
    assert export_checkpoint(store.folder / "step-00000001", tmp_path / "model").version == 1


def test_the_shards_of_ranks_are_joined(tmp_path: Path, masters: Mapping[str, Tensor]) -> None:
    def write(folder: Path) -> None:
        index = {}
        shards: list[dict[str, Tensor]] = [{}, {}]
        for name, master in masters.items():
            parts, begin = [], 0
            for rank, part in enumerate(master.tensor_split(2)):
                shards[rank][f"weight/{name}"] = part.contiguous()
                offsets = [begin] + [0] * (master.ndim - 1)
                parts.append({"file": f"{rank}.safetensors", "offsets": offsets, "shape": list(part.shape)})
                begin += len(part)
            index[f"weight/{name}"] = {"dtype": "torch.float32", "shape": list(master.shape), "parts": parts}
        for rank, shard in enumerate(shards):
            save_file(shard, folder / f"{rank}.safetensors")
        write_numbers(folder / INDEX, {"format": 1, "tensors": index})

    store = checkpoints(tmp_path / "checkpoints", masters, backend="fsdp")
    store.save(progress(1), write, published=dict.fromkeys(masters, "BF16"))
    export_checkpoint(store.folder, tmp_path / "model")
    assert_published_bits(tmp_path / "model", masters)


def test_an_export_does_not_overwrite_files(tmp_path: Path, masters: Mapping[str, Tensor]) -> None:
    store = saved(tmp_path / "checkpoints", masters)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").touch()
    with raises_code(InvalidInput, "export.folder_in_use"):
        export_checkpoint(store.folder, tmp_path / "model")


def test_a_folder_without_checkpoints_is_refused(tmp_path: Path) -> None:
    with raises_code(InvalidInput, "export.no_checkpoint"):
        export_checkpoint(tmp_path, tmp_path / "model")


def test_a_state_without_weights_is_refused(tmp_path: Path, masters: Mapping[str, Tensor]) -> None:
    store = checkpoints(tmp_path / "checkpoints", masters, backend="scripted")
    store.save(progress(1), lambda folder: None, published=dict.fromkeys(masters, "BF16"))
    with raises_code(InvalidInput, "export.no_weights"):
        export_checkpoint(store.folder, tmp_path / "model")


def test_a_damaged_checkpoint_is_refused(tmp_path: Path, masters: Mapping[str, Tensor]) -> None:
    store = saved(tmp_path / "checkpoints", masters)
    path = store.folder / "step-00000002" / "state" / shard_file(0)
    path.write_bytes(path.read_bytes()[:-1])
    with raises_code(CorruptData, "checkpoint.damaged"):
        export_checkpoint(store.folder, tmp_path / "model")
    manifest = json.loads((store.folder / "step-00000001" / "manifest.json").read_text())
    assert set(manifest["published"].values()) == {"BF16"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """Checkpoint of adapters after two steps."""
    backend = backends.build({"kind": "local", "learning_rate": 1e-2, "lora": {"rank": 4}}, MODEL, {}, seed=0)
    for step in (1, 2):
        backend.step(batch(step))
    published = {name: dtype.value for name, (dtype, _) in backend.published_shapes.items()}
    store = checkpoints(tmp_path_factory.mktemp("adapters"), {})
    store.save(progress(2), backend.capture().write, published=published)
    return store


def test_adapters_are_exported_merged_or_alone_with_equal_logits(tmp_path: Path, trained: Checkpoints) -> None:
    assert export_checkpoint(trained.folder, tmp_path / "model") == Exported(version=Version(2), lost_share=0.0)
    result = CliRunner().invoke(
        app, ["export", "--adapters-only", str(trained.folder), str(tmp_path / "adapters")], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert merged.dtype == torch.float32
    base = models.build(MODEL).architecture()
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.copy_(parameter.bfloat16())  # as published
    ids = torch.arange(5, 25)[None]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", FutureWarning)  # peft uses names that transformers renamed
        before = base(input_ids=ids).logits
        adapted = PeftModel.from_pretrained(base, tmp_path / "adapters")
        logits = adapted(input_ids=ids).logits
        difference = (merged(input_ids=ids).logits - logits).abs().max()
    assert (tmp_path / "model" / "tokenizer.json").exists()
    assert not (tmp_path / "adapters" / "model.safetensors").exists()
    assert difference <= 1e-5
    assert (logits - before).abs().max() > 0.1


def test_a_rounded_sum_that_loses_much_of_the_adapters_is_refused_unless_forced(tmp_path: Path) -> None:
    young = backends.build({"kind": "local", "learning_rate": 1e-5, "lora": {"rank": 4}}, MODEL, {}, seed=0)
    young.step(batch(1))
    published = {name: dtype.value for name, (dtype, _) in young.published_shapes.items()}
    store = checkpoints(tmp_path / "checkpoints", {})
    store.save(progress(2), young.capture().write, published=published)
    with raises_code(InvalidInput, "export.lossy_sum"):
        export_checkpoint(store.folder, tmp_path / "model", rounds_sum=True)
    assert not (tmp_path / "model").exists()
    forced = export_checkpoint(store.folder, tmp_path / "model", rounds_sum=True, accepts_loss=True)
    assert forced.lost_share is not None
    assert forced.lost_share > 0.5
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert exported.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "family",
    [
        {"family": "qwen35", "layers": 2},
        pytest.param({"family": "gpt_oss", "layers": 2, "window": 4}, marks=pytest.mark.long),
        pytest.param({"family": "falcon_h1"}, marks=pytest.mark.long),
    ],
    ids=lambda options: options["family"],
)
def test_a_family_continues_after_a_stop_and_is_exported_with_the_published_bits(
    family: dict[str, Json], tmp_path: Path
) -> None:
    model = {**MODEL, **family}
    running, restarted = (backends.build({"kind": "local", "learning_rate": 1e-2}, model, {}, seed=0) for _ in range(2))
    running.step(batch(1))
    (tmp_path / "state").mkdir()
    running.capture().write(tmp_path / "state")
    restarted.load(tmp_path / "state")
    for backend in (running, restarted):
        backend.step(batch(2))
    assert_same(snapshot_of(running), snapshot_of(restarted))
    identity = CheckpointIdentity(policy=PolicyId("solver"), model=model, backend="local")
    store = Checkpoints(tmp_path / "checkpoints", identity, keep=Retention(newest=1))
    store.folder.mkdir()
    published = {name: dtype.value for name, (dtype, _) in restarted.published_shapes.items()}
    store.save(progress(2), restarted.capture().write, published=published)

    export_checkpoint(store.folder, tmp_path / "model")

    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="float32")
    assert_same_bits(published_tensors(exported, Dtype.BFLOAT16), snapshot_of(running).tensors)
    assert torch.isfinite(exported(input_ids=torch.arange(5, 25)[None]).logits).all()


def assert_same_bits(tensors: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert tensors.keys() == expected.keys()
    for name, (dtype, shape, bits) in tensors.items():
        assert (dtype, shape) == expected[name][:2], name
        assert np.array_equal(bits, expected[name][2]), name


def test_adapters_are_not_exported_on_other_weights(
    tmp_path: Path, trained: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = models.build({**MODEL, "seed": 1}).prepare()
    monkeypatch.setattr(export_module, "prepare_model", lambda spec: other)

    with raises_code(InvalidInput, "export.other_base"):
        export_checkpoint(trained.folder, tmp_path / "model")


def test_a_whole_model_has_no_adapters_to_export(tmp_path: Path, masters: Mapping[str, Tensor]) -> None:
    store = saved(tmp_path / "checkpoints", masters)
    with raises_code(InvalidInput, "export.no_adapters"):
        export_checkpoint(store.folder, tmp_path / "model", adapters_only=True)


@pytest.mark.long
def test_the_command_exports_the_newest_checkpoint(tmp_path: Path, masters: Mapping[str, Tensor]) -> None:
    store = saved(tmp_path / "checkpoints", masters)
    result = CliRunner().invoke(app, ["export", str(store.folder), str(tmp_path / "model")])
    assert result.exit_code == 0, result.output
    assert_published_bits(tmp_path / "model", masters)
