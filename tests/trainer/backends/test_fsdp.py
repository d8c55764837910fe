"""The backend of several ranks trains, saves and publishes as the local one does: real processes over gloo."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.models import models
from astraflow.models.causal import named_weights
from astraflow.trainer.backends import backends
from astraflow.trainer.backends.fsdp import FsdpBackend
from astraflow.trainer.backends.rank_trainer import FsdpOptions
from astraflow.trainer.backends.state.sharded import INDEX
from astraflow.trainer.engines import fsdp as fsdp_engine
from astraflow.trainer.model_preparation import prepare_model
from astraflow.trainer.ranks import launch
from astraflow.weights.publish.staging_buffers import StagedVersion
from tests import make_torch
from tests.errors import raises_code
from tests.fakes.forking import ForkingProgram
from tests.snapshots import Snapshot, snapshot_of
from tests.suites.backend_suite import assert_same
from tests.trainer.backends.test_local import CRITIC, batch, local, with_foreign_token

LEARNING_RATE = 1e-3


def fsdp(
    model: Mapping[str, Any] = make_torch.TINY, algorithm: Mapping[str, Any] = CRITIC, **options: Any
) -> FsdpBackend:
    spec = {"kind": "fsdp", "learning_rate": LEARNING_RATE, "device": "cpu", "rank_timeout_s": 60, **options}
    backend = backends.build(spec, model, algorithm, seed=0)
    assert isinstance(backend, FsdpBackend)
    return backend


@pytest.fixture(scope="module")
def rank_command(rank_python: ForkingProgram) -> tuple[str, ...]:
    """Command line of a rank without the time of its imports."""
    assert launch.RANK_COMMAND[0] == sys.executable
    return (*rank_python.command, *launch.RANK_COMMAND[1:])


@pytest.fixture(scope="module")
def pair(rank_command: tuple[str, ...]) -> Iterator[FsdpBackend]:
    """Backend of two ranks; a test leaves it working, with any weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "RANK_COMMAND", rank_command)
        backend = fsdp(ranks=2)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def start(pair: FsdpBackend, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State of two ranks after two steps."""
    folder = tmp_path_factory.mktemp("start")
    local(CRITIC, learning_rate=LEARNING_RATE).capture().write(folder)
    pair.load(folder)
    for step in (1, 2):
        pair.step(batch(step))
    saved = tmp_path_factory.mktemp("saved")
    pair.capture().write(saved)
    return saved


def digest(snapshot: Snapshot) -> str:
    return hashlib.sha256(b"".join(bits.tobytes() for _, _, bits in snapshot.tensors.values())).hexdigest()


def assert_close(first: Snapshot, second: Snapshot, *, share: float) -> None:
    """Asserts that at most this share of the published elements differs, each by one unit in the last place."""
    assert first.tensors.keys() == second.tensors.keys()
    gaps = np.concatenate(
        [
            np.abs(first.tensors[name][2].astype(np.int64) - second.tensors[name][2].astype(np.int64)).reshape(-1)
            for name in first.tensors
        ]
    )
    assert gaps.max() <= 1
    assert (gaps > 0).mean() <= share


@pytest.mark.long
def test_two_ranks_publish_the_same_weights_as_one_process_up_to_rounding(pair: FsdpBackend, tmp_path: Path) -> None:
    single = local(CRITIC, learning_rate=LEARNING_RATE)
    single.capture().write(tmp_path)
    pair.load(tmp_path)
    assert_same(snapshot_of(pair), snapshot_of(single))

    for step in (1, 2, 3):
        expected, actual = single.step(batch(step)), pair.step(batch(step))
        assert actual["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert actual["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
        for name in ("entropy", "value_loss", "critic_grad_norm"):
            assert actual[name] == pytest.approx(expected[name], rel=1e-5)

    assert_close(snapshot_of(pair), snapshot_of(single), share=0.01)


def test_bad_rows_are_dropped_once_before_the_ranks_get_their_shares(pair: FsdpBackend, start: Path) -> None:
    pair.load(start)
    metrics = pair.step(with_foreign_token(batch(3), 0, 5))
    assert (metrics["dropped_rows"], metrics["dropped_token_id"], metrics["updates"]) == (2.0, 2.0, 1.0)
    trained = digest(snapshot_of(pair))
    pair.load(start)
    assert pair.step(with_foreign_token(batch(3), *range(12)))["updates"] == 0
    pair.load(start)
    whole = batch(3)
    pair.step(replace(whole, rows=[row for index, row in enumerate(whole.rows) if index not in (0, 5)]))
    assert digest(snapshot_of(pair)) == trained


def test_published_names_match_the_model_file(pair: FsdpBackend) -> None:
    (file,) = prepare_model(make_torch.TINY).glob("*.safetensors")
    with safe_open(file, framework="np") as stored:
        assert set(pair.published_shapes) == set(stored.keys())


@pytest.mark.long
def test_a_restored_run_continues_bit_for_bit(pair: FsdpBackend, start: Path) -> None:
    digests = []
    for _ in range(2):
        pair.load(start)
        pair.step(batch(3))
        digests.append(digest(snapshot_of(pair)))

    assert digests[0] == digests[1]


@pytest.mark.long
def test_one_process_can_restore_a_checkpoint_of_two_ranks(pair: FsdpBackend, start: Path) -> None:
    single = local(CRITIC, learning_rate=LEARNING_RATE)
    single.load(start)
    pair.load(start)
    assert digest(snapshot_of(single)) == digest(snapshot_of(pair))

    expected, actual = single.step(batch(3)), pair.step(batch(3))

    assert expected["learning_rate"] == actual["learning_rate"]
    assert expected["value_loss"] == pytest.approx(actual["value_loss"], rel=1e-5)
    assert_close(snapshot_of(pair), snapshot_of(single), share=0.01)


RESTORED = """
from tests.trainer.backends.test_fsdp import *
if __name__ == "__main__":
    launch.RANK_COMMAND = {command}
    backend = fsdp(ranks={ranks}, **{options})
    backend.load(Path({folder!r}))
    print("restored", digest(snapshot_of(backend)))
    backend.step(batch(3))
    backend.capture().write(Path({target!r}))
    print("trained", digest(snapshot_of(backend)))
    backend.close()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "options"),
    [(3, {}), pytest.param(4, {"replicas": 2}, marks=pytest.mark.long), pytest.param(1, {}, marks=pytest.mark.long)],
)
def test_checkpoints_can_be_restored_by_another_number_of_ranks(
    pair: FsdpBackend,
    start: Path,
    tmp_path: Path,
    ranks: int,
    options: dict[str, int],
    rank_python: ForkingProgram,
    rank_command: tuple[str, ...],
) -> None:
    program = RESTORED.format(
        ranks=ranks, options=options, command=rank_command, folder=str(start), target=str(tmp_path)
    )
    command = [*rank_python.command, "-c", program]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)

    assert done.returncode == 0, done.stderr
    digests = dict(line.split() for line in done.stdout.splitlines() if line.startswith(("restored", "trained")))
    pair.load(start)
    assert digests["restored"] == digest(snapshot_of(pair))
    pair.load(tmp_path)
    assert digests["trained"] == digest(snapshot_of(pair))


@pytest.mark.long
def test_a_missing_file_of_another_rank_is_refused_without_changes(
    pair: FsdpBackend, start: Path, tmp_path: Path
) -> None:
    pair.load(start)
    before = digest(snapshot_of(pair))
    pair.step(batch(5))
    pair.capture().write(tmp_path)
    pair.load(start)
    (tmp_path / "tensors-00001.safetensors").write_bytes(b"damaged")

    with raises_code(CorruptData, "checkpoint.unreadable_state", "tensors-00001") as caught:
        pair.load(tmp_path)

    assert caught.value.code == "checkpoint.unreadable_state"
    assert digest(snapshot_of(pair)) == before


def test_an_incomplete_index_is_refused(pair: FsdpBackend, start: Path, tmp_path: Path) -> None:
    for path in start.iterdir():
        content = path.read_bytes()
        if path.name == INDEX:
            content = content.replace(b'"offsets": [0', b'"offsets": [1', 1)
        (tmp_path / path.name).write_bytes(content)

    with pytest.raises(CorruptData):
        pair.load(tmp_path)


class _Largest(TorchDispatchMode):
    """Records the largest tensor of weights that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                self.elements = max(self.elements, value.numel())
        return result


def test_no_rank_gathers_a_tensor_to_publish_or_save(pair: FsdpBackend, tmp_path: Path) -> None:
    shapes = [shape for _, shape in pair.published_shapes.values()]
    largest_shard = max(-(-shape[0] // 2) * int(np.prod(shape[1:], dtype=int)) for shape in shapes)
    draft = StagedVersion.private(pair.published_shapes)

    with _Largest() as largest:  # type: ignore[no-untyped-call]  # torch's
        pair.snapshot(draft)
        pair.capture().write(tmp_path)

    assert 0 < largest.elements <= largest_shard


class _PeakElements(TorchDispatchMode):
    """Records the most floating-point elements that were in memory at once, of those created in the block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.peak = 0
        self._storages: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            is_shell = isinstance(value, DTensor)  # whose storage says the whole size and has no memory
            if isinstance(value, torch.Tensor) and value.is_floating_point() and not (value.is_meta or is_shell):
                self._storages[StorageWeakRef(value.untyped_storage())] = value.untyped_storage().nbytes() // 4
        self._storages = {storage: size for storage, size in self._storages.items() if not storage.expired()}
        self.peak = max(self.peak, sum(self._storages.values()))
        return result


def elements_at_start(experts: int) -> dict[str, int]:
    """Returns elements of the policy, of its largest part that is sharded at once, and of the most that were in memory
    at once while policy and reference were sharded over two ranks."""
    spec = {**make_torch.TINY, "layers": 8, "experts": experts}
    source = models.build(spec)
    weights = named_weights(source.load(prepare_model(spec)))
    blocks = [sum(weight.numel() for name, weight in weights.items() if f"layers.{n}." in name) for n in range(8)]
    total = sum(weight.numel() for weight in weights.values())
    memory = _PeakElements()
    sharded = fsdp_engine._sharded

    def observed(*args: Any, **options: Any) -> Any:
        with memory:
            return sharded(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsdp_engine, "_sharded", observed)
        patch.setattr(type(source), "load", lambda *_: pytest.fail("the whole model was loaded"))
        algorithm = {"loss": {"kind": "ppo", "kl_coefficient": 0.1}}
        fsdp(spec, algorithm, ranks=2, weights_dtype="float32").close()
    return {"policy": total, "part": max(*blocks, total - sum(blocks)), "peak": memory.peak}


STARTED = """
import json
from tests.trainer.backends.test_fsdp import *
if __name__ == "__main__":
    launch.RANK_COMMAND = {command}
    print("elements", json.dumps(elements_at_start({experts})))
"""


@pytest.mark.parametrize("experts", [0, 4])  # which two ranks can halve
def test_a_rank_holds_its_shards_and_one_block_while_it_starts(
    experts: int, rank_python: ForkingProgram, rank_command: tuple[str, ...]
) -> None:
    command = [*rank_python.command, "-c", STARTED.format(command=rank_command, experts=experts)]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)

    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("elements"))
    elements = json.loads(line.removeprefix("elements"))
    shards = elements["policy"]  # two halves: of the policy, and of the reference
    assert shards <= elements["peak"] <= 1.05 * (shards + 1.5 * elements["part"]) < 1.5 * elements["policy"], elements


HYBRID = {**make_torch.TINY, "family": "lfm2"}
DISTILLATION: dict[str, Any] = {
    "advantages": [],
    "token_advantages": [{"kind": "distillation"}],
    "teachers": {"large": {"model": {**make_torch.TINY, "layers": 1, "seed": 1}}},
    "max_mismatch": None,
}
DISTILLED = """
import json
from tests.trainer.backends.test_fsdp import *
if __name__ == "__main__":
    launch.RANK_COMMAND = ("env", "PYTHONHASHSEED=2", *launch.RANK_COMMAND)
    backend = fsdp(HYBRID, DISTILLATION, ranks=2)
    print("loss", backend.step(batch())["loss"])
    backend.close()
"""


def test_ranks_with_other_hash_seeds_train_with_a_teacher_as_one_process() -> None:
    """Every rank checks and gathers the models in the same order, which must not be that of a set. The policy is not
    computed in packs, the teacher is."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}

    done = subprocess.run(
        [sys.executable, "-c", DISTILLED], capture_output=True, text=True, check=False, timeout=240, env=environment
    )

    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("loss"))
    expected = local(DISTILLATION, model=HYBRID, learning_rate=LEARNING_RATE).step(batch())["loss"]
    assert float(line.removeprefix("loss")) == pytest.approx(expected, rel=1e-4)


@pytest.mark.long
def test_ranks_exchange_no_pickles(pair: FsdpBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("pickle was used")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refused)
    pair.step(batch(7))
    snapshot_of(pair)
    pair.capture().write(tmp_path)
    pair.load(tmp_path)


@pytest.mark.parametrize("options", [{"ranks": 4, "replicas": 3}, {"ranks": 2, "sequence_ranks": 4}, {"device": "tpu"}])
def test_an_impossible_division_of_ranks_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        FsdpOptions.parse(options, where="backend")
