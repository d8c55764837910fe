"""Trains a policy of a run with the Trainer of Hugging Face transformers (needs the package accelerate).

    ASTRAFLOW_TOKEN=... python recipes/examples/transformers_trainer.py HOST:PORT MODEL_FOLDER OUTPUT_FOLDER

The Trainer owns loss, optimizer, schedule and checkpoints; a batch of the run is one of its steps. Kill it at any time
and start it again with the same arguments: it continues from its checkpoint.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from plain_trainer import batch_loss
from torch.utils.data import DataLoader, IterableDataset
from transformers import AutoModelForCausalLM, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

from astraflow.contract.batches import Batch
from astraflow.trainer.session import TrainerSession

SESSION = "session.json"
METRICS = ("loss", "grad_norm", "learning_rate", "entropy")
"""Logged values of a step that the run's page shows."""


def main() -> None:
    """Trains until the run is complete."""
    train("transformers", new_trainer)


def new_trainer(model: PreTrainedModel, stream: "RunBatches", folder: Path, options: dict[str, Any]) -> Trainer:
    """Returns the trainer of a model. folder: of the model. options: arguments that any such trainer needs."""
    return RunTrainer(model=model, args=TrainingArguments(learning_rate=1e-3, **options), train_dataset=stream)


def train(name: str, build: Callable[[PreTrainedModel, "RunBatches", Path, dict[str, Any]], Trainer]) -> None:
    """Trains with the Trainer that `build` returns, until the run is complete."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("model", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--policy", default="policy")
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    checkpoint = newest_checkpoint(arguments.output)
    state = json.loads((checkpoint / SESSION).read_text()) if checkpoint else {}
    model = AutoModelForCausalLM.from_pretrained(checkpoint or arguments.model, dtype=torch.float32)
    options = {
        "output_dir": str(arguments.output),
        "max_steps": arguments.steps,
        "save_strategy": "steps",
        "save_steps": 1,  # a version is published after its checkpoint
        "save_total_limit": 2,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": not torch.cuda.is_available(),
        "ignore_data_skip": True,  # the run continues with the next batch by itself
    }
    token = os.environ["ASTRAFLOW_TOKEN"]
    with TrainerSession(arguments.address, token=token, policy=arguments.policy, name=name, **state) as session:
        stream = RunBatches(session)
        trainer = build(model, stream, arguments.model, options)
        trainer.add_callback(Publishing(session, stream))
        session.begin(dict(model.named_parameters()))
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)


def newest_checkpoint(output: Path) -> Path | None:
    """Returns the newest complete checkpoint: the session's file is written last."""
    complete = [path.parent for path in output.glob(f"checkpoint-*/{SESSION}")]
    return max(complete, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)


class RunBatches(IterableDataset[Batch]):
    """Batches of the run, each pulled when the step before has ended."""

    def __init__(self, session: TrainerSession) -> None:
        self._session = session
        self.current: Batch | None = None

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self._session.pull()) is not None:
            self.current = batch
            yield batch


class RunTrainer(Trainer):
    """Trainer whose examples are whole batches. Its own loader would pull one batch ahead, before the acknowledgement
    of the one before."""

    def get_train_dataloader(self) -> Any:
        """Returns the batches as they are."""
        return DataLoader(
            cast("RunBatches", self.train_dataset), batch_size=None, collate_fn=lambda batch: {"rows": batch}
        )

    def compute_loss(self, model: Any, inputs: dict[str, Any], *unused: Any, **options: Any) -> torch.Tensor:
        """Returns the loss of a batch."""
        return batch_loss(model, inputs["rows"])


class Publishing(TrainerCallback):
    """Publishes each step after its checkpoint."""

    def __init__(self, session: TrainerSession, stream: RunBatches) -> None:
        self._session = session
        self._stream = stream

    def on_save(self, args: TrainingArguments, state: Any, control: Any, **options: Any) -> None:
        """Completes the checkpoint, publishes the version and acknowledges the batch."""
        batch = self._stream.current
        if batch is None or batch.id == self._session.last_batch:
            return
        folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        (folder / "session.part").write_text(json.dumps(self._session.state_after(batch)))
        os.sync()
        (folder / "session.part").replace(folder / SESSION)
        metrics = {name: state.log_history[-1][name] for name in METRICS if name in state.log_history[-1]}
        self._session.end_step(batch, dict(options["model"].named_parameters()), metrics=metrics)


if __name__ == "__main__":
    main()
