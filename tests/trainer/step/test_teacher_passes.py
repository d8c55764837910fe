"""Each teacher scores its own rows, with the prompt that it reads, whatever the packs and ranks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from astraflow.algorithms.config import AlgorithmConfig
from astraflow.contract.batches import Batch
from astraflow.contract.weights import Dtype
from astraflow.trainer.engines.base import Batching
from astraflow.trainer.engines.local import LocalEngine
from astraflow.trainer.engines.optimizers import OptimizerOptions
from astraflow.trainer.engines.spec import EngineSpec
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.planner import StepPlanner
from astraflow.trainer.step.shares import Share
from astraflow.trainer.step.teacher_passes import OwnTeachers
from tests import make_torch
from tests.trainer.backends.test_local import batch

TWO: dict[str, Any] = {
    "teachers": {name: {"model": {**make_torch.TINY, "seed": seed}} for name, seed in (("math", 1), ("code", 2))},
    "teacher_field": "part",
}
ITSELF: dict[str, Any] = {"teachers": {"self": {"policy": "current"}}}
BOTH: dict[str, Any] = {**TWO, "teachers": {**TWO["teachers"], "code": {"policy": "initial"}}}


def taught_batch() -> Batch:
    """Returns a batch whose groups have different teachers; those of `code` read a longer prompt, one row a shorter."""
    rows = []
    for number, row in enumerate(batch().rows):
        is_math = row.group != batch().rows[0].group
        prompt = () if is_math else (9, 8, 7, *row.trajectory.tokens[:6].tolist())
        prompt = (5,) if number == 1 else prompt
        trajectory = replace(row.trajectory, teacher="math" if is_math else "code", teacher_prompt=prompt)
        rows.append(replace(row, trajectory=trajectory))
    return replace(batch(), rows=tuple(rows))


def scores_of_rows(
    algorithm: dict[str, Any], batching: Batching, *, ranks: int, top: int, taught: Batch | None = None
) -> dict[int, dict[str, torch.Tensor]]:
    """Returns the teachers' scores of each row, planned for `ranks` ranks and computed one after the other."""
    config = AlgorithmConfig.parse(
        {"loss": {"kind": "distillation", "teacher_tokens": top}, "minibatches": 2, **algorithm}, where="algorithm"
    )
    model = make_torch.model()
    planner = StepPlanner(
        config, data_ranks=ranks, micro_batch_tokens=40, cost=ForwardCost.of_model(model), batching=batching
    )
    spec = EngineSpec(
        optimizer=OptimizerOptions(),
        device=torch.device("cpu"),
        published_dtype=Dtype.FLOAT32,
        needs_reference=True,
        batching=batching,
    )
    teachers = {name: make_torch.model(int(own["seed"])) for name, own in config.teacher_models.items()}
    engine = OwnTeachers(LocalEngine(model, spec, teachers=teachers), config)
    plan = planner.plan(taught or taught_batch())
    results = {}
    for share, begins in zip(plan.shares, plan.rows_of_ranks(), strict=True):
        sent = Share.decode(*share.encode())
        packs = [pack for part in sent.optimizer_batches for pack in part.packs]
        scores = engine.scores(sent.token_data(torch.device("cpu")), packs, sent.teacher_passes, None)
        for row, begin in begins.items():
            own = slice(begin, begin + taught_batch().rows[row].trajectory.model_tokens)
            results[row] = {name: values[own] for name, values in scores.items()}
    return results


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("batching", list(Batching))
@pytest.mark.parametrize("algorithm", [TWO, ITSELF, BOTH], ids=["two", "itself", "both"])
def test_a_row_has_the_scores_of_its_teacher_after_the_prompt_that_it_reads(
    algorithm: dict[str, Any], batching: Batching, ranks: int
) -> None:
    rows = scores_of_rows(algorithm, batching, ranks=ranks, top=3)

    assert sorted(rows) == list(range(12))
    for number, scores in rows.items():
        trajectory = taught_batch().rows[number].trajectory
        teacher = "self" if algorithm is ITSELF else trajectory.teacher
        own = algorithm["teachers"][teacher]
        model = make_torch.model(own["model"]["seed"] if "model" in own else 0)
        prompt = trajectory.teacher_prompt if "policy" in own and trajectory.teacher_prompt else trajectory.tokens[:6]
        tokens = np.concatenate([np.array(prompt, np.int32), trajectory.tokens[6:]])
        with torch.no_grad():
            logits = model(input_ids=torch.from_numpy(tokens.astype(np.int64))[None], use_cache=False).logits[0]
        expected = logits[len(prompt) - 1 : -1].float().log_softmax(-1)
        written = torch.from_numpy(tokens[len(prompt) :].astype(np.int64))
        torch.testing.assert_close(
            scores["teacher_logprobs"], expected.gather(-1, written[:, None])[:, 0], atol=1e-5, rtol=1e-5
        )
        torch.testing.assert_close(scores["teacher_top_logprobs"], expected.topk(3, -1).values, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(
            expected.gather(-1, scores["teacher_top_tokens"]), expected.topk(3, -1).values, atol=1e-5, rtol=1e-5
        )


def test_more_tokens_than_the_vocabulary_has_are_absent() -> None:
    scores = scores_of_rows(ITSELF, Batching.PACKED, ranks=1, top=130)[0]

    assert scores["teacher_top_tokens"][:, 128:].eq(-1).all()
    assert scores["teacher_top_logprobs"][:, 128:].eq(-torch.inf).all()
    assert scores["teacher_top_logprobs"].exp().sum(-1).tolist() == pytest.approx(
        [1.0] * len(scores["teacher_logprobs"])
    )


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_teacher_without_prompts_in_the_batch_computes_nothing(ranks: int) -> None:
    rows = [replace(row, trajectory=replace(row.trajectory, teacher="math")) for row in taught_batch().rows]
    algorithm = {**BOTH, "teachers": {"code": {"policy": "current"}, "math": BOTH["teachers"]["math"]}}

    scores = scores_of_rows(
        algorithm, Batching.PACKED, ranks=ranks, top=2, taught=replace(taught_batch(), rows=tuple(rows))
    )

    assert sorted(scores) == list(range(12))
    assert all(own["teacher_logprobs"].isfinite().all() for own in scores.values())
