"""The local backend passes the backend suite, follows the loss, and publishes the weights it computes with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from astraflow.contract.batches import Batch, Row
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import BatchId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.contract.weights import Dtype, Probe
from astraflow.models import models
from astraflow.models.causal import named_weights
from astraflow.models.precision import bits_of, torch_dtype_of, values_of
from astraflow.trainer.backends import backends
from astraflow.trainer.backends.base import Backend
from astraflow.trainer.backends.local import LocalBackend, LocalOptions, training_dtype
from astraflow.trainer.backends.state import files as state_files
from astraflow.trainer.checkpoints import CheckpointIdentity, Checkpoints, TrainingProgress, fork_checkpoint
from astraflow.trainer.retention import Retention
from astraflow.trainer.step.packing import pack_sequences
from tests import make_torch
from tests.errors import raises_code
from tests.snapshots import Snapshot, snapshot_of
from tests.suites.backend_suite import BackendSuite, assert_same

SPEED = {"tokens_per_s", "computed_tokens_per_s", "flops_per_s"}
SPEED |= {"pass_s", "forward_backward_s", "attention_s", "head_s", "optimizer_s"}
"""Metrics that differ between equal steps."""


def local(
    algorithm: dict[str, Any] | None = None,
    *,
    seed: int = 0,
    model: Mapping[str, Any] = make_torch.TINY,
    **options: Any,
) -> Backend:
    spec = {"kind": "local", "learning_rate": 1e-2, **options}
    return backends.build(spec, model, {"max_mismatch": None, **(algorithm or {})}, seed=seed)  # logprobs are made up


CRITIC: dict[str, Any] = {
    "advantages": [],
    "token_advantages": [{"kind": "gae"}, {"kind": "whitened"}],
    "critic": {"learning_rate": 1e-3},
    "max_mismatch": None,
}
"""PPO with a critic."""


def batch(
    step: int = 1, *, groups: int = 3, members: int = 4, version: int = 0, born: int = 0, truncated: bool = False
) -> Batch:
    """Returns random answers to random prompts; the first member of a group is correct."""
    draws = np.random.default_rng(step)
    rows = []
    for group in range(groups):
        prompt = draws.integers(4, 128, 6)
        for member in range(members):
            answer = draws.integers(4, 128, draws.integers(1, 6))
            trajectory = Trajectory(
                policy=PolicyId("solver"),
                tokens=np.concatenate([prompt, answer]).astype(np.int32),
                logprobs=np.full(len(answer), -4.8, dtype=np.float32),
                spans=(
                    Span(author=Author.CONTEXT, length=6),
                    Span(author=Author.MODEL, length=len(answer), version=Version(born)),
                ),
                reward=float(member == 0),
                is_truncated=truncated and member == 1,
            )
            name = f"train:{step}.{group}"
            rows.append(
                Row(group=GroupId(name), task=TaskId(f"{name}/{member}"), node=NodeId("node-1"), trajectory=trajectory)
            )
    return Batch(
        id=BatchId(f"solver:{step}"),
        policy=PolicyId("solver"),
        version=Version(version),
        is_redelivered=False,
        rows=tuple(rows),
    )


class TestLocalBackend(BackendSuite):
    @pytest.fixture
    def build(self) -> Callable[[], Backend]:
        return local

    @pytest.fixture
    def batches(self) -> Sequence[Batch]:
        return [batch(step) for step in range(1, 5)]


@pytest.mark.long
class TestLocalBackendWithCritic(BackendSuite):
    @pytest.fixture
    def build(self) -> Callable[[], Backend]:
        algorithm = {**CRITIC, "critic": {"warmup_steps": 2}}
        return lambda: local(algorithm, warmup_steps=3)  # so that the models have other counts and learning rates

    @pytest.fixture
    def batches(self) -> Sequence[Batch]:
        return [batch(step, version=step) for step in range(1, 5)]


def values(snapshot: Snapshot) -> dict[str, torch.Tensor]:
    return {
        name: values_of(bits, dtype, into=torch.float32).view(shape)
        for name, (dtype, shape, bits) in snapshot.tensors.items()
    }


def probed(probe: Probe) -> list[tuple[np.ndarray[Any, Any], int, np.ndarray[Any, Any]]]:
    """Returns tokens, first scored position, and logprobs of each sequence."""
    tokens, logprobs = np.frombuffer(probe.tokens, "<i4"), np.frombuffer(probe.logprobs, "<f4")
    probed_prompts = []
    for length, begin in zip(probe.lengths, probe.scored_from, strict=True):
        probed_prompts.append((tokens[:length], begin, logprobs[: length - begin]))
        tokens, logprobs = tokens[length:], logprobs[length - begin :]
    return probed_prompts


def obvious_step(training_batch: Batch, *, learning_rate: float, epsilon: float) -> dict[str, torch.Tensor]:
    """Performs a GRPO step one trajectory at a time, with transformers' own forward pass and torch's AdamW.

    With a large epsilon AdamW moves in proportion to the gradient, so that the test compares gradients.
    """
    model = models.build(make_torch.TINY).architecture()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, eps=epsilon, weight_decay=0.0)
    rewards = torch.tensor([row.trajectory.reward for row in training_batch.rows])
    groups = torch.tensor([int(str(row.group).rsplit(".", 1)[1]) for row in training_batch.rows])
    gains = torch.zeros(len(rewards))
    for group in groups.unique():
        own = rewards[groups == group]
        gains[groups == group] = (own - own.mean()) / (own.std() + 1e-4)
    total = sum(row.trajectory.model_tokens for row in training_batch.rows)
    loss = torch.zeros(())
    for row, gain in zip(training_batch.rows, gains, strict=True):
        ids = torch.from_numpy(row.trajectory.tokens.astype(np.int64))[None]
        all_logprobs = model(input_ids=ids).logits[0].log_softmax(-1)
        for number, position in enumerate(np.flatnonzero(row.trajectory.loss_mask())):
            logprob = all_logprobs[position - 1, ids[0, position]]
            ratio = (logprob - float(row.trajectory.logprobs[number])).exp()
            loss = loss - torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain) / total
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return {name: weight.detach() for name, weight in named_weights(model).items()}


@pytest.mark.long
def test_a_step_matches_a_plain_loop() -> None:
    backend = local(learning_rate=1.0, epsilon=1.0, weights_dtype="float32")
    expected = obvious_step(batch(), learning_rate=1.0, epsilon=1.0)

    backend.step(batch())

    for name, value in values(snapshot_of(backend)).items():
        torch.testing.assert_close(value, expected[name], atol=1e-6, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize("cut", [{"micro_batch_tokens": 1}, {"micro_batch_tokens": 12}, {"micro_batch_tokens": 40}])
def test_results_do_not_depend_on_micro_batches(cut: dict[str, Any]) -> None:
    whole, parts = (local(epsilon=1.0, weights_dtype="float32", **other) for other in ({}, cut))

    metrics, other = whole.step(batch()), parts.step(batch())

    for name in metrics.keys() - SPEED:
        assert other[name] == pytest.approx(metrics[name], rel=1e-3, abs=1e-5), name
    other_values = values(snapshot_of(parts))
    for name, value in values(snapshot_of(whole)).items():
        torch.testing.assert_close(value, other_values[name], atol=1e-6, rtol=0)


def test_published_weights_equal_the_compute_weights() -> None:
    backend = local()
    backend.step(batch())

    snapshot = snapshot_of(backend)

    model = make_torch.model()
    with torch.no_grad():
        for name, weight in named_weights(model).items():
            weight.copy_(values(snapshot)[name])
    assert snapshot.probe is not None
    for tokens, begin, logprobs in probed(snapshot.probe):
        np.testing.assert_allclose(logprobs, make_torch.logprobs(model, tokens, begin), atol=1e-5)


@pytest.mark.long
def test_steps_below_bf16_precision_accumulate() -> None:
    backend = local(learning_rate=3e-6)
    first = snapshot_of(backend)

    shares = []
    for _ in range(8):
        backend.step(batch())
        now = snapshot_of(backend)
        changed = [now.tensors[name][2] != first.tensors[name][2] for name in first.tensors]
        shares.append(float(np.concatenate(changed).mean()))

    assert 0 < shares[0] < 0.2
    assert shares[-1] > 2 * shares[0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_weights_are_published_in_the_configured_dtype(dtype: str) -> None:
    snapshot = snapshot_of(local(weights_dtype=dtype))

    expected = {"bfloat16": Dtype.BFLOAT16, "float16": Dtype.FLOAT16, "float32": Dtype.FLOAT32}[dtype]
    assert {published_dtype for published_dtype, _, _ in snapshot.tensors.values()} == {expected}
    original = named_weights(make_torch.model())
    assert torch_dtype_of(expected).itemsize == expected.size_bytes
    if dtype == "bfloat16":
        for name, (_, _, bits) in snapshot.tensors.items():
            np.testing.assert_array_equal(bits, bits_of(original[name], expected))


@pytest.mark.long
def test_the_logprob_mismatch_is_measured_on_rows_of_the_current_version() -> None:
    assert local().step(batch(version=1, born=1))["mismatch_max"] < 1.0
    assert "mismatch_max" not in local().step(batch(version=1, born=0))


@pytest.mark.long
def test_the_logprob_mismatch_is_the_largest_difference_to_the_models_logprobs() -> None:
    training_batch = batch()
    expected = max(
        float(np.abs(row.trajectory.logprobs - make_torch.logprobs(make_torch.model(), row.trajectory.tokens, 6)).max())
        for row in training_batch.rows
    )

    assert local().step(training_batch)["mismatch_max"] == pytest.approx(expected, abs=1e-5)


def test_metrics_describe_the_batch() -> None:
    metrics = local().step(batch(groups=2, members=4, version=3, born=1))

    assert metrics["reward_mean"] == 0.25
    assert metrics["staleness_mean"] == 2
    assert metrics["signal_fraction"] == 1.0
    assert 4.0 < metrics["entropy"] < np.log(128) + 1e-3
    assert metrics["grad_norm"] > 0


@pytest.mark.long
def test_truncated_rows_can_be_left_out() -> None:
    kept = local({"mask_truncated": True}).step(batch(truncated=True))
    alone = local().step(batch(truncated=False))

    assert kept["truncated_fraction"] == 0.25
    assert kept["loss"] != alone["loss"]


@pytest.mark.parametrize("loss", ["ppo", "m2po", "decoupled_ppo", "dpo"])
def test_a_batch_without_a_signal_changes_no_weights_and_counts(loss: str) -> None:
    backend, training_batch = (
        local({"mask_truncated": True, "loss": {"kind": loss}}),
        batch(groups=1, members=2, truncated=True),
    )
    only_truncated = Batch(
        id=training_batch.id,
        policy=training_batch.policy,
        version=training_batch.version,
        is_redelivered=False,
        rows=training_batch.rows[1:],
    )
    before = snapshot_of(backend)

    metrics = backend.step(only_truncated)

    assert metrics["grad_norm"] == 0
    for name, (_, _, bits) in snapshot_of(backend).tensors.items():
        np.testing.assert_array_equal(bits, before.tensors[name][2])


def test_a_loss_that_is_not_finite_is_skipped_and_counted() -> None:
    backend, training_batch = local({"advantages": [{"kind": "group_centred"}]}), batch()
    rows = tuple(
        replace(row, trajectory=replace(row.trajectory, reward=-3e38 if index % 4 else 3e38))
        for index, row in enumerate(training_batch.rows)
    )  # whose distance from the mean exceeds float32
    training_batch = replace(training_batch, rows=rows)
    before = snapshot_of(backend)

    metrics = backend.step(training_batch)

    assert metrics["skipped"] == 1
    for name, (_, _, bits) in snapshot_of(backend).tensors.items():
        np.testing.assert_array_equal(bits, before.tensors[name][2])


@pytest.mark.long
def test_a_divergence_penalty_keeps_the_policy_near_the_reference() -> None:
    free = local({"max_mismatch": None})
    tied = local({"max_mismatch": None, "loss": {"kind": "ppo", "kl_coefficient": 5.0}})
    assert tied.step(batch())["kl_reference"] == pytest.approx(0.0, abs=1e-6)
    free.step(batch())
    for _ in range(5):
        free.step(batch())
        metrics = tied.step(batch())

    assert metrics["kl_reference"] > 0
    assert free.step(batch())["ratio_mean"] > metrics["ratio_mean"]


def test_the_learning_rate_warms_up_and_is_part_of_the_state(tmp_path: Path) -> None:
    backend, other = local(warmup_steps=3), local(warmup_steps=3)
    rates = [backend.step(batch(step))["learning_rate"] for step in range(3)]
    backend.capture().write(tmp_path)
    other.load(tmp_path)

    assert [*rates, other.step(batch())["learning_rate"]] == pytest.approx([0.0025, 0.005, 0.0075, 0.01])


def test_state_of_another_model_is_refused(tmp_path: Path) -> None:
    local().capture().write(tmp_path)
    other = backends.build({"kind": "local"}, {**make_torch.TINY, "layers": 1}, {}, seed=0)
    before = snapshot_of(other)

    with raises_code(InvalidInput, "checkpoint.shape_mismatch"):
        other.load(tmp_path)

    assert_same(snapshot_of(other), before)


@pytest.mark.parametrize("options", [{"moments_dtype": "bfloat16"}, {"optimizer": "muon"}], ids=str)
def test_a_checkpoint_of_other_options_is_refused_as_such_and_not_as_damaged(
    options: dict[str, Any], tmp_path: Path
) -> None:
    identity = CheckpointIdentity(policy=PolicyId("solver"), model=make_torch.TINY, backend="local")
    checkpoints = Checkpoints(tmp_path, identity, keep=Retention(newest=2))
    progress = TrainingProgress(run="run", step=1, report=None)
    checkpoints.save(progress, local().capture().write, published={})

    with raises_code(InvalidInput, "checkpoint.shape_mismatch", "moments_dtype"):
        checkpoints.load(local(**options).load)
    assert checkpoints.load(local().load) == progress


def test_a_checkpoint_without_the_random_state_of_a_device_keeps_the_current_one(tmp_path: Path) -> None:
    device, state = torch.device("cpu"), state_files.random_state(torch.device("cpu"))
    state_files.write_tensors(tmp_path / "random.safetensors", {"device": torch.zeros(16, dtype=torch.uint8)})

    restored = state_files.read_random_state(tmp_path / "random.safetensors", device)

    assert restored.keys() == {"host"}
    assert torch.equal(restored["host"], state["host"])


def test_float32_on_a_gpu_is_refused() -> None:
    gpu = torch.device("cuda")
    with raises_code(InvalidInput, "trainer.float32_on_gpu", "compute_dtype"):
        training_dtype(LocalOptions(compute_dtype="float32"), gpu)
    assert training_dtype(LocalOptions(), gpu) is torch.bfloat16


def test_an_unknown_algorithm_key_is_refused_with_the_nearest() -> None:
    with raises_code(InvalidInput, "config.invalid", "algorithm.temprature"):
        local({"temprature": 1.0})


def with_own_logprobs(training_batch: Batch, backend: Backend) -> Batch:
    """Returns the batch as if the backend's current weights had sampled it."""
    model = make_torch.model()
    with torch.no_grad():
        for name, weight in named_weights(model).items():
            weight.copy_(values(snapshot_of(backend))[name])
    rows = [
        replace(row, trajectory=replace(row.trajectory, logprobs=make_torch.logprobs(model, row.trajectory.tokens, 6)))
        for row in training_batch.rows
    ]
    return replace(training_batch, rows=tuple(rows))


@pytest.mark.long
def test_distillation_moves_the_policy_towards_its_teacher() -> None:
    algorithm = {
        "advantages": [],
        "token_advantages": [{"kind": "distillation"}],
        "teachers": {"large": {"model": {**make_torch.TINY, "seed": 1}}},
        "max_mismatch": None,
    }
    backend, teacher = local(algorithm, learning_rate=3e-3, weights_dtype="float32"), make_torch.model(seed=1)
    tokens = [row.trajectory.tokens for row in batch().rows]
    target = [make_torch.logprobs(teacher, row, 6) for row in tokens]

    def distance() -> float:
        policy = make_torch.model()
        with torch.no_grad():
            for name, weight in named_weights(policy).items():
                weight.copy_(values(snapshot_of(backend))[name])
        row_logprobs = [make_torch.logprobs(policy, row, 6) for row in tokens]
        return float(np.mean([np.abs(own - other).mean() for own, other in zip(row_logprobs, target, strict=True)]))

    before = distance()
    for _ in range(10):
        backend.step(with_own_logprobs(batch(), backend))

    assert distance() < 0.8 * before


def test_a_teacher_with_another_vocabulary_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LocalBackend._load_model

    def other(self: LocalBackend, model: Mapping[str, Any]) -> Any:
        loaded = original(self, model)
        if model["seed"] == 1:
            loaded.config.vocab_size += 1
        return loaded

    monkeypatch.setattr(LocalBackend, "_load_model", other)
    with raises_code(InvalidInput, "trainer.teacher_vocabulary"):
        backends.build(
            {"kind": "local"},
            {**make_torch.TINY, "seed": 0},
            {
                "token_advantages": [{"kind": "distillation"}],
                "teachers": {"large": {"model": {**make_torch.TINY, "seed": 1}}},
            },
            seed=0,
        )


def test_blocks_are_not_compiled_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)

    with raises_code(InvalidInput, "trainer.no_compiler"):
        local(compile_blocks=True)


def test_blocks_are_not_compiled_without_the_headers_of_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))

    with raises_code(InvalidInput, "trainer.no_headers"):
        local(compile_blocks=True)


def with_foreign_token(original: Batch, *rows: int) -> Batch:
    """Returns the batch with a token id in these rows that the model does not have."""
    changed = []
    for index, row in enumerate(original.rows):
        tokens = row.trajectory.tokens.copy()
        tokens[-1] = 10**6 if index in rows else tokens[-1]
        changed.append(replace(row, trajectory=replace(row.trajectory, tokens=tokens)))
    return replace(original, rows=tuple(changed))


def test_a_bad_row_is_left_out_as_if_it_had_not_been_sampled() -> None:
    good = batch()
    without = replace(good, rows=good.rows[1:])
    poisoned, expected = local(), local()
    metrics = poisoned.step(with_foreign_token(good, 0))
    expected.step(without)
    assert (metrics["dropped_rows"], metrics["dropped_token_id"], metrics["updates"]) == (1.0, 1.0, 1.0)
    assert_same(snapshot_of(poisoned), snapshot_of(expected))


def test_a_batch_of_bad_rows_is_a_step_without_an_update() -> None:
    backend = local()
    before = snapshot_of(backend)
    metrics = backend.step(with_foreign_token(batch(groups=1), 0, 1, 2, 3))
    assert metrics == {"updates": 0.0, "dropped_rows": 4.0, "dropped_token_id": 4.0}
    assert_same(snapshot_of(backend), before)
    assert backend.step(batch())["updates"] == 1.0


def test_a_backend_states_the_rows_that_it_can_train() -> None:
    limits = local().row_limits
    assert limits.vocabulary == models.build(make_torch.TINY).tokenizer().vocab_size
    assert limits.tokens == 512


def logprobs_under(backend: Backend, original: Batch) -> list[np.ndarray[Any, Any]]:
    """Returns the logprobs of the answers under the backend's weights, by row."""
    assert isinstance(backend, LocalBackend)
    texts = [row.trajectory.tokens for row in original.rows]
    values = backend._engine.score(pack_sequences(texts, [6] * len(texts))).logprobs.numpy()
    return np.split(values, np.cumsum([len(text) - 6 for text in texts])[:-1])


def test_one_node_with_other_logprobs_is_excluded_and_does_not_end_training() -> None:
    backend = local({"max_mismatch": 0.02, "max_mismatch_steps": 2}, learning_rate=1e-12)
    good = batch(groups=2)
    scored = logprobs_under(backend, good)
    rows = [
        replace(row, node=NodeId("bad.1" if index % 2 else "good.1"), trajectory=replace(row.trajectory, logprobs=lp))
        for index, (row, lp) in enumerate(zip(good.rows, scored, strict=True))
    ]
    spoiled = [
        replace(row, trajectory=replace(row.trajectory, logprobs=row.trajectory.logprobs - 20)) if index % 2 else row
        for index, row in enumerate(rows)
    ]
    original = replace(good, rows=tuple(spoiled))
    assert [backend.step(original).get("dropped_mismatch") for _ in range(4)] == [None, None, 4.0, 4.0]


def test_a_fork_with_a_fresh_optimizer_keeps_the_weights_and_may_change_the_optimizer(tmp_path: Path) -> None:
    trained = local(warmup_steps=3)
    trained.step(batch())
    trained.step(batch(2))
    identity = CheckpointIdentity(policy=PolicyId("solver"), model=make_torch.TINY, backend="local")
    progress = TrainingProgress(run="parent", step=2, report=None)
    (tmp_path / "parent").mkdir()
    source = Checkpoints(tmp_path / "parent", identity, keep=Retention(newest=1)).save(
        progress, trained.capture().write
    )
    (tmp_path / "child").mkdir()
    fork_checkpoint(source, tmp_path / "child", run="child", keeps_optimizer=False)
    forked = local(optimizer="muon", warmup_steps=3, seed=9)
    loaded = Checkpoints(tmp_path / "child", identity, keep=Retention(newest=1)).load(forked.load)
    assert loaded == TrainingProgress(run="child", step=0, report=None)
    assert_same(snapshot_of(forked), snapshot_of(trained))
    assert forked.step(batch(3))["learning_rate"] == pytest.approx(1e-2 / 4), "the schedule begins anew"
