"""Backends train a hybrid model in whole rows, alone and on two ranks, with every other model that they have."""

from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.trainer.engines.base import Batching
from astraflow.trainer.ranks import launch
from tests.errors import raises_code
from tests.fakes.forking import ForkingProgram
from tests.trainer.backends.test_fsdp import DISTILLATION, HYBRID, LEARNING_RATE, fsdp
from tests.trainer.backends.test_local import CRITIC, batch, local

ROWS: dict[str, Any] = {"batching": "rows", "learning_rate": LEARNING_RATE}
WITH_REFERENCE: dict[str, Any] = {"loss": {"kind": "ppo", "kl_coefficient": 0.1}}


@pytest.mark.parametrize("algorithm", [CRITIC, WITH_REFERENCE, DISTILLATION], ids=["critic", "reference", "teacher"])
def test_steps_in_rows_are_those_of_packs(algorithm: dict[str, Any]) -> None:
    packed, rows = local(algorithm, learning_rate=LEARNING_RATE), local(algorithm, **ROWS)

    for step in (1, 2):
        expected, actual = packed.step(batch(step)), rows.step(batch(step))

    for name in ("loss", "grad_norm", "entropy"):
        assert actual[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6)
    assert actual["padding_fraction"] > expected["padding_fraction"] == 0
    assert actual["flops_per_s"] > 0


def test_adapters_of_a_hybrid_train_in_rows() -> None:
    backend = local(model=HYBRID, lora={"rank": 2}, **ROWS)

    losses = [backend.step(batch(step))["grad_norm"] for step in (1, 2)]

    assert min(losses) > 0


@pytest.mark.long
def test_two_ranks_train_a_hybrid_in_rows_as_one_process(
    rank_python: ForkingProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "RANK_COMMAND", (*rank_python.command, *launch.RANK_COMMAND[1:]))
    single = local(CRITIC, model=HYBRID, **ROWS)
    pair = fsdp(HYBRID, ranks=2, batching="rows")
    try:
        assert pair._rank.engine.batching is Batching.ROWS
        for step in (1, 2):
            expected, actual = single.step(batch(step)), pair.step(batch(step))
    finally:
        pair.close()

    for name in ("loss", "grad_norm", "entropy", "value_loss", "critic_grad_norm"):
        assert actual[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5)


def test_sequence_ranks_refuse_other_batchings_by_the_name_of_the_setting() -> None:
    with raises_code(InvalidInput, "config.invalid", "sequence_ranks"):
        fsdp(HYBRID, ranks=2, sequence_ranks=2, batching="rows")
