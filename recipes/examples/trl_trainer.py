"""Trains a policy of a run with the GRPOTrainer of TRL (`pip install trl`).

    ASTRAFLOW_TOKEN=... python recipes/examples/trl_trainer.py HOST:PORT MODEL_FOLDER OUTPUT_FOLDER

GRPOTrainer owns loss, optimizer, schedule and checkpoints. The run's nodes generate and score in its place: a batch of
the run is one of its steps. Kill it at any time and start it again with the same arguments: it continues from its
checkpoint.
"""

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from plain_trainer import advantages, written
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, PreTrainedModel
from transformers_trainer import RunBatches, RunTrainer, train
from trl import GRPOConfig, GRPOTrainer

from astraflow.contract.batches import Batch

TEMPERATURE = 1.0
"""Temperature at which the run samples."""
ROWS = 8
"""Rows of a forward pass."""


def main() -> None:
    """Trains until the run is complete."""
    train("trl", new_trainer)


def new_trainer(model: PreTrainedModel, stream: RunBatches, folder: Path, options: dict[str, Any]) -> GRPOTrainer:
    """Returns the trainer of a model. folder: of the model and its tokenizer."""
    trainer = RunGrpoTrainer(
        model=model,
        reward_funcs=lambda **_: [],  # the rows have rewards
        args=GRPOConfig(
            learning_rate=1e-5,
            temperature=TEMPERATURE,
            loss_type="dapo",  # or cispo or vespo, which also divide by the tokens of the whole batch
            per_device_train_batch_size=ROWS,
            bf16=torch.cuda.is_available(),
            **options,
        ),
        train_dataset=Dataset.from_list([{"prompt": ""}]),  # its type is checked; the stream takes its place
        processing_class=AutoTokenizer.from_pretrained(folder),
    )
    trainer.train_dataset = stream
    return trainer


class RunGrpoTrainer(GRPOTrainer):  # type: ignore[misc]  # mypy skips the types of TRL
    """GRPOTrainer whose steps are batches of the run, with the tensors that its own generation would return."""

    get_train_dataloader = RunTrainer.get_train_dataloader

    def training_step(self, model: Any, inputs: dict[str, Batch], num_items_in_batch: Any) -> torch.Tensor:
        """Adds the gradients of a batch; returns its loss."""
        rows = tensors(inputs["rows"], padding=self.processing_class.pad_token_id)
        items = rows["tool_mask"].sum()
        parts = zip(*(part.split(self.args.per_device_train_batch_size) for part in rows.values()), strict=True)
        losses = [
            super(RunGrpoTrainer, self).training_step(
                model, {**dict(zip(rows, part, strict=True)), "num_items_in_batch": items}, num_items_in_batch
            )
            for part in parts
        ]
        return torch.stack(losses).sum()

    def _prepare_inputs(self, generation_batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: values.to(self.accelerator.device) for name, values in generation_batch.items()}


def tensors(batch: Batch, *, padding: int) -> dict[str, torch.Tensor]:
    """Returns a batch as GRPOTrainer pads it: contexts on the left, and what follows the first written token right.

    tool_mask: 1 for tokens that the model wrote, 0 for those of tools and environments between them.
    """
    tokens = [torch.from_numpy(row.trajectory.tokens.astype("int64")) for row in batch.rows]
    masks = [written(row) for row in batch.rows]
    begins = [int(mask.nonzero()[0]) for mask in masks]
    contexts = [part[:begin] for part, begin in zip(tokens, begins, strict=True)]
    answers = [part[begin:] for part, begin in zip(tokens, begins, strict=True)]
    masks = [mask[begin:] for mask, begin in zip(masks, begins, strict=True)]
    logprobs = [
        torch.zeros(len(mask)).masked_scatter(mask, torch.tensor(row.trajectory.logprobs))
        for mask, row in zip(masks, batch.rows, strict=True)
    ]

    def padded(parts: list[torch.Tensor], side: str = "right", value: int = 0) -> torch.Tensor:
        return pad_sequence(parts, batch_first=True, padding_value=value, padding_side=side)

    return {
        "prompt_ids": padded(contexts, "left", padding),
        "prompt_mask": padded([torch.ones_like(part) for part in contexts], "left"),
        "completion_ids": padded(answers, value=padding),
        "completion_mask": padded([torch.ones_like(part) for part in answers]),
        "tool_mask": padded([mask.long() for mask in masks]),
        "old_per_token_logps": padded(logprobs),
        "advantages": torch.tensor(advantages(batch)),
    }


if __name__ == "__main__":
    main()
