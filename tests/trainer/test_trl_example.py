"""The example with TRL's GRPOTrainer computes the gradient of its loss. Runs where TRL is installed."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from astraflow.contract.batches import Batch, Row
from astraflow.contract.ids import BatchId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.trajectories import Trajectory
from tests.conformance.test_trainers import EXAMPLES, save_tokenizer
from tests.trainer.step_gradients import Gradients, largest_difference, tiny_model

CLIP = 0.2


def conversation(*lengths: int, seed: int, reward: float) -> Row:
    """Returns a row whose tokens are of the context and of the model in turn."""
    draws = np.random.default_rng(seed)
    authors = [Author.MODEL if index % 2 else Author.CONTEXT for index in range(len(lengths))]
    trajectory = Trajectory(
        policy=PolicyId("policy"),
        tokens=draws.integers(3, 29, sum(lengths)).astype(np.int32),
        logprobs=draws.normal(-3.4, 0.3, sum(lengths[1::2])).astype(np.float32),
        spans=tuple(
            Span(author=author, length=length, version=Version(0) if author is Author.MODEL else None)
            for author, length in zip(authors, lengths, strict=True)
        ),
        reward=reward,
    )
    return Row(group=GroupId(f"g:{seed // 2}"), task=TaskId(f"g:{seed}/0"), node=NodeId("n"), trajectory=trajectory)


def clipped_loss(model: Any, batch: Batch) -> torch.Tensor:
    """Returns PPO's loss by row and token: without padding, the mean over the tokens that the model wrote."""
    losses = []
    for row in batch.rows:
        rewards = [other.trajectory.reward for other in batch.rows if other.group == row.group]
        advantage = row.trajectory.reward - sum(rewards) / len(rewards)
        tokens = torch.tensor(row.trajectory.tokens, dtype=torch.int64)
        logprobs = model(tokens[None]).logits[0, :-1].log_softmax(-1)
        recorded, position = iter(row.trajectory.logprobs), 0
        for span in row.trajectory.spans:
            for index in range(position, position + span.length if span.author is Author.MODEL else position):
                ratio = (logprobs[index - 1, tokens[index]] - float(next(recorded))).exp()
                losses.append(-torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage))
            position += span.length
    return torch.stack(losses).mean()


def gradients_of(model: PreTrainedModel) -> Gradients:
    """Returns copies of the gradients by name."""
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.filterwarnings("ignore")  # of TRL and its imports
def test_the_gradient_of_several_turns_in_micro_batches_is_that_of_the_clipped_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl")
    monkeypatch.syspath_prepend(EXAMPLES)
    trl_trainer = import_module("trl_trainer")

    save_tokenizer(tmp_path)
    model = tiny_model(is_tied=True)
    batch = Batch(
        id=BatchId("policy:1"),
        policy=PolicyId("policy"),
        version=Version(0),
        is_redelivered=False,
        rows=[
            conversation(4, 5, seed=0, reward=1.0),
            conversation(2, 3, 4, 6, seed=1, reward=0.0),
            conversation(6, 1, 1, 1, 1, 1, seed=2, reward=0.25),
            conversation(3, 7, seed=3, reward=1.0),
        ],
    )
    options = {"output_dir": str(tmp_path), "report_to": [], "use_cpu": True, "num_generations": 2}
    monkeypatch.setattr(trl_trainer, "ROWS", 2)
    trainer = trl_trainer.new_trainer(model, None, tmp_path, {**options, "gradient_checkpointing": False})
    trainer.current_gradient_accumulation_steps = 1  # set by `train`
    loss = trainer.training_step(model, {"rows": batch}, None)
    gradients = gradients_of(model)

    model.zero_grad()
    expected = clipped_loss(model.eval(), batch)
    expected.backward()

    assert float(loss) == pytest.approx(float(expected.detach()), abs=1e-6)
    assert largest_difference(gradients, gradients_of(model)) <= 1e-5
