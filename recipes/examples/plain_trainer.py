"""Trains a policy of a run in plain PyTorch: REINFORCE with the mean reward of the group as the baseline.

    python recipes/examples/plain_trainer.py RUN_FOLDER MODEL_FOLDER CHECKPOINT_FOLDER --policy solver
    ASTRAFLOW_TOKEN=... python recipes/examples/plain_trainer.py HOST:PORT MODEL_FOLDER CHECKPOINT_FOLDER

Kill it at any time and start it again with the same arguments: it continues from its checkpoint.
"""

import argparse
import json
import os
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from astraflow.contract.batches import Batch, Row
from astraflow.contract.rollouts.spans import Author
from astraflow.trainer.session import SessionState, TrainerSession

LEARNING_RATE = 1e-2


def main() -> None:
    """Trains until the run is complete."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", help="folder of a run of this machine, or address of a dataflow service")
    parser.add_argument("model", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--policy", default="policy")
    arguments = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)  # has no state that a checkpoint must hold
    state = resume(model, arguments.checkpoint)
    if Path(arguments.run).is_dir():
        session = TrainerSession.of_run(arguments.run, policy=arguments.policy, name="plain", **state)
    else:
        token = os.environ["ASTRAFLOW_TOKEN"]
        session = TrainerSession(arguments.run, token=token, policy=arguments.policy, name="plain", **state)
    with session:
        session.begin(dict(model.named_parameters()))
        while (batch := session.pull()) is not None:
            loss = batch_loss(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            save(model, session.state_after(batch), arguments.checkpoint)
            session.end_step(batch, dict(model.named_parameters()), metrics={"loss": float(loss)})


def batch_loss(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """Returns the loss of a batch: -advantage * ratio, averaged over the tokens that the model wrote."""
    losses = [-gain * ratios(model, row) for gain, row in zip(advantages(batch), batch.rows, strict=True)]
    return torch.cat(losses).mean()


def advantages(batch: Batch) -> list[float]:
    """Returns the reward of each row less the mean reward of its group."""
    rewards: dict[str, list[float]] = defaultdict(list)
    for row in batch.rows:
        rewards[row.group].append(row.trajectory.reward)
    return [row.trajectory.reward - fmean(rewards[row.group]) for row in batch.rows]


def ratios(model: PreTrainedModel, row: Row) -> torch.Tensor:
    """Returns the probability of each token that the model wrote, relative to that in the rollout, at most 2."""
    tokens = torch.from_numpy(row.trajectory.tokens.astype("int64"))
    logprobs = model(tokens[None, :-1]).logits[0].log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]
    gaps: torch.Tensor = logprobs[written(row)[1:]] - torch.tensor(row.trajectory.logprobs)
    return gaps.exp().clamp(max=2.0)


def written(row: Row) -> torch.Tensor:
    """Returns which tokens of a row the model wrote."""
    return torch.cat([torch.full((span.length,), span.author is Author.MODEL) for span in row.trajectory.spans])


def save(model: PreTrainedModel, state: SessionState, folder: Path) -> None:
    """Writes a durable checkpoint: the weights first, then the file that names them."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = f"weights-{state['step']}.safetensors"
    save_file({name: value.detach() for name, value in model.named_parameters()}, folder / weights)
    (folder / "state.part").write_text(json.dumps({"weights": weights, "session": state}))
    sync(folder / weights)
    sync(folder / "state.part")
    (folder / "state.part").replace(folder / "state.json")
    sync(folder)
    for old in folder.glob("weights-*.safetensors"):
        if old.name != weights:
            old.unlink()


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk. `os.sync` would wait for other programs too."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def resume(model: PreTrainedModel, folder: Path) -> SessionState:
    """Loads the checkpoint, if there is one; returns the arguments of the session."""
    if not (folder / "state.json").exists():
        return {}
    saved = json.loads((folder / "state.json").read_text())
    model.load_state_dict(load_file(folder / saved["weights"]), strict=False)
    session: SessionState = saved["session"]
    return session


if __name__ == "__main__":
    main()
