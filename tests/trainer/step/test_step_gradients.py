"""The gradient of a whole step does not depend on engine, packing or micro-batches, and is that of a plain loop."""

from dataclasses import replace
from typing import Any

import pytest

from astraflow.trainer.engines.adapters import LoraOptions
from astraflow.trainer.engines.base import Batching
from tests.trainer.plain_losses import PLAIN_LOSSES
from tests.trainer.step_gradients import (
    ENGINES,
    VOCABULARY,
    Case,
    branching_batch,
    largest_difference,
    mixed_batch,
    reference_gradients,
)

BOUND = 2e-6
"""Largest accepted difference from float64, as a share of the largest gradient: rounding of float32, of which up to
7.3e-7 was seen on a processor with AVX-512, and 1.4e-6 on one without. The mutants differ by more than fifty times as
much."""

ROWS: dict[str, Any] = {"batching": Batching.ROWS}

CASES = {
    "one pack, shared prompts": Case(),
    "each row alone": Case(micro_batch_tokens=1),
    "packs of 64 tokens": Case(micro_batch_tokens=64),
    "packs of 160 tokens": Case(micro_batch_tokens=160),
    "untied head": Case(is_tied=False),
    "untied head, packs of 64 tokens": Case(is_tied=False, micro_batch_tokens=64),
    "window": Case(window=12),
    "window, packs of 64 tokens": Case(window=5, micro_batch_tokens=64),
    "window, each row alone": Case(window=2, micro_batch_tokens=1),
    "experts": Case(experts=4),
    "experts, packs of 64 tokens": Case(experts=4, micro_batch_tokens=64, is_tied=False),
    "experts computed again": Case(experts=4, engine_options={"recompute": "full"}, micro_batch_tokens=64),
    "mean by sequence": Case(aggregation="sequence_mean", micro_batch_tokens=64),
    "fixed length": Case(aggregation="fixed_length", micro_batch_tokens=64),
    "two optimizer steps": Case(minibatches=2),
    "critic": Case(has_critic=True),
    "critic, each row alone": Case(has_critic=True, micro_batch_tokens=1),
    "critic, packs of 64 tokens, two optimizer steps": Case(has_critic=True, micro_batch_tokens=64, minibatches=2),
    "activations computed again": Case(engine_options={"recompute": "full"}, micro_batch_tokens=64),
    "norms computed again": Case(engine_options={"recompute": "selective"}, has_critic=True, is_tied=False),
    "rows": Case(engine_options=ROWS),
    "rows, packs of 100 tokens": Case(engine_options=ROWS, micro_batch_tokens=100, has_critic=True),
    "rows, experts, each alone": Case(engine_options=ROWS, micro_batch_tokens=1, experts=4, is_tied=False),
    "filtered": Case(batch=mixed_batch(support=9), micro_batch_tokens=64),
    "filtered, minibatches": Case(batch=mixed_batch(support=9), minibatches=2, is_tied=False),
    "filtered, rows": Case(batch=mixed_batch(support=9), engine_options=ROWS),
    "filtered, tree": Case(batch=mixed_batch(support=9), engine_options={"batching": Batching.TREE}),
    "centred": Case(loss="reinforce, tis", head=5, batch=mixed_batch(head=5), micro_batch_tokens=64),
    "centred, rows": Case(loss="reinforce, tis", head=5, batch=mixed_batch(head=5), engine_options=ROWS),
    "centred, tree": Case(
        loss="reinforce, tis", head=5, batch=mixed_batch(head=5), engine_options={"batching": Batching.TREE}
    ),
    "branches": Case(batch=branching_batch()),
    "branches, packs of 64 tokens": Case(batch=branching_batch(), micro_batch_tokens=64),
    "branches, window": Case(batch=branching_batch(), window=12),
    "branches, critic": Case(batch=branching_batch(), has_critic=True, micro_batch_tokens=160),
    "branches, tree": Case(batch=branching_batch(), engine_options={"batching": Batching.TREE}),
    "branches, rows": Case(batch=branching_batch(), engine_options=ROWS, aggregation="sequence_mean"),
    "branches, filtered": Case(batch=branching_batch(support=9), micro_batch_tokens=160),
    "branches, centred": Case(
        loss="reinforce, tis", head=5, batch=branching_batch(head=5), micro_batch_tokens=160, experts=4
    ),
    "replayed": Case(replays=True, experts=4, batch=mixed_batch(experts=True), micro_batch_tokens=64),
    "replayed, filtered, computed again, two optimizer steps": Case(
        replays=True,
        experts=4,
        batch=mixed_batch(experts=True, support=9),
        engine_options={"recompute": "full"},
        minibatches=2,
    ),
    "replayed, rows": Case(replays=True, experts=4, batch=mixed_batch(experts=True), engine_options=ROWS),
    "replayed, tree, computed again": Case(
        replays=True,
        experts=4,
        batch=mixed_batch(experts=True),
        engine_options={"batching": Batching.TREE, "recompute": "selective"},
    ),
    "branches, replayed": Case(replays=True, experts=4, batch=branching_batch(experts=True), micro_batch_tokens=160),
    "branches, replayed, tree": Case(
        replays=True,
        experts=4,
        batch=branching_batch(experts=True),
        engine_options={"batching": Batching.TREE, "recompute": "full"},
    ),
    "taught": Case(teacher=(5, 0.0), micro_batch_tokens=64),
    "taught, rows": Case(teacher=(5, 1.0), engine_options=ROWS, micro_batch_tokens=64),
    "taught, tree": Case(teacher=(5, 0.3), engine_options={"batching": Batching.TREE}),
    "taught by whole distributions": Case(teacher=(VOCABULARY, 0.0), micro_batch_tokens=64, minibatches=2),
    "taught and centred": Case(
        loss="reinforce, tis", head=5, batch=mixed_batch(head=5), teacher=(4, 1.0), micro_batch_tokens=64
    ),
    "three optimizer steps by sequence": Case(minibatches=3, aggregation="sequence_mean", micro_batch_tokens=64),
}


LOSSES = {
    name: Case(
        loss=name,
        aggregation="sequence_mean" if name in ("gspo, mis", "sapo") else "token_mean",
        micro_batch_tokens=64,
        entropy_coefficient=0.0 if name == "sft" else 0.01,
    )
    for name in sorted(PLAIN_LOSSES.keys() - {"ppo"})
}
"""Every other loss over four shares, of which one may have no trained token, a group of one, and a row longer than a
pack."""

LORA = LoraOptions(rank=4, alpha=6)
ATTENTION = LoraOptions(rank=4, alpha=6, target_modules=("q_proj", "k_proj", "v_proj", "o_proj"))


ADAPTERS = {
    f"adapters, {name}": replace(case, lora=LORA)
    for name, case in CASES.items()
    if not case.has_critic and not case.experts and not case.window
}


@pytest.mark.parametrize(
    ("engine", "case"),
    [
        *(pytest.param("local", case, id=f"local, {name}") for name, case in CASES.items()),
        *(pytest.param("shares", case, id=f"shares, {name}", marks=pytest.mark.long) for name, case in CASES.items()),
        *(pytest.param("local", case, id=name, marks=pytest.mark.long) for name, case in ADAPTERS.items()),
        pytest.param("local", Case(experts=4, lora=ATTENTION), id="adapters, experts"),
        pytest.param(
            "local",
            Case(experts=4, lora=ATTENTION, replays=True, batch=mixed_batch(experts=True)),
            id="adapters, replayed experts",
        ),
        *(pytest.param("shares", case, id=name, marks=pytest.mark.long) for name, case in LOSSES.items()),
    ],
)
def test_the_gradient_of_a_step_matches_a_plain_loop(engine: str, case: Case) -> None:
    step = ENGINES[engine](case)

    expected = [reference_gradients(case, members) for members in step.members]
    assert len(step.gradients) == len(expected) == case.minibatches
    assert sorted(row for members in step.members for row in members) == [
        index for index, row in enumerate(case.batch.rows) if row.trajectory.model_tokens
    ]
    for actual, (gradients, _) in zip(step.gradients, expected, strict=True):
        assert largest_difference(actual, gradients) <= BOUND
    mean_loss = sum(loss for _, loss in expected) / len(expected)
    assert step.loss == pytest.approx(mean_loss, rel=1e-5, abs=1e-6)  # terms of both signs cancel


@pytest.mark.long
def test_chosen_layers_only_have_adapters_and_their_gradient_is_that_of_a_plain_loop() -> None:
    case = Case(lora=LORA.model_copy(update={"target_modules": ("q_proj", "down_proj")}), micro_batch_tokens=64)

    (gradients,) = ENGINES["local"](case).gradients

    assert {name.split(".")[-3] for name in gradients} == {"q_proj", "down_proj"}
    (members,) = ENGINES["local"](case).members
    assert largest_difference(gradients, reference_gradients(case, members)[0]) <= BOUND


@pytest.mark.parametrize("engine", ENGINES)
def test_optimizer_steps_have_whole_groups(engine: str) -> None:
    case = replace(CASES["two optimizer steps"])

    first, second = ({case.batch.rows[index].group for index in members} for members in ENGINES[engine](case).members)

    assert not first & second


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself, where the compiler is imported
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # of torch's compiler, which reads it
@pytest.mark.parametrize("options", [{}, {"recompute": "full"}, ROWS], ids=["packed", "computed again", "rows"])
def test_compiled_blocks_have_the_same_gradient(options: dict[str, Any]) -> None:
    case = Case(engine_options={"compile_blocks": True, **options}, micro_batch_tokens=160)

    step = ENGINES["local"](case)

    assert largest_difference(step.gradients[0], reference_gradients(case, step.members[0])[0]) <= BOUND
