"""Update of TRL's `GRPOTrainer` on rows that were generated before: its own loss, backward pass, clipping, optimizer.

TRL is no dependency of this project. Install it beside the other packages, without its dependencies, which are here:
`pip install --no-deps trl==1.16.0`.
"""

import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from astraflow.contract.batches import Batch
from astraflow.contract.rollouts.trajectories import Trajectory
from benchmarks.trainer_step.loops import CLIP, LEARNING_RATE, MAX_NORM, Setting, micro_batches

MISSING = "cannot compare with TRL: it is not installed; pip install --no-deps trl==1.16.0"


class TrlLoop:
    """Micro-batches of TRL's loss `dapo` (mean over the batch's tokens), as `GRPOTrainer` computes it.

    Activation checkpointing, which TRL's configuration turns on, is off: it would make TRL slower by a quarter. The
    rows are padded as TRL pads a generation batch: prompts on the left and answers on the right, each to the longest.
    """

    def __init__(self, setting: Setting) -> None:
        """Raises: SystemExit when TRL is not installed."""
        if find_spec("trl") is None:
            raise SystemExit(MISSING)
        self._trainer = _trainer_of(setting)
        self._model = self._trainer.model_wrapped
        self._device = setting.device
        self._micro_batch_tokens = setting.micro_batch_tokens
        self._trainer.create_optimizer()
        self._trainer.optimizer = self._trainer.accelerator.prepare(self._trainer.optimizer)

    def step(self, batch: Batch) -> float:
        """Trains the batch; returns the loss."""
        trainer = self._trainer
        parts = list(self._inputs([row.trajectory for row in batch.rows]))
        trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = len(parts)
        self._model.train()
        loss = 0.0
        for inputs in parts:
            part = trainer.compute_loss(self._model, inputs)
            trainer.accelerator.backward(part)
            loss += float(part.detach())
        trainer.accelerator.clip_grad_norm_(self._model.parameters(), MAX_NORM)
        trainer.optimizer.step()
        self._model.zero_grad()
        trainer._metrics["train"].clear()
        return loss

    def _inputs(self, rows: Sequence[Trajectory]) -> Iterator[dict[str, Tensor]]:
        prompts = [row.tokens[: len(row.tokens) - row.model_tokens] for row in rows]
        answers = [row.tokens[len(row.tokens) - row.model_tokens :] for row in rows]
        whole = {
            "prompt_ids": _padded(prompts, side="left"),
            "prompt_mask": _padded([torch.ones(len(part)) for part in prompts], side="left").long(),
            "completion_ids": _padded(answers, side="right"),
            "completion_mask": _padded([torch.ones(len(part)) for part in answers], side="right").long(),
            "old_per_token_logps": _padded([row.logprobs for row in rows], side="right"),
            "advantages": torch.tensor([row.reward for row in rows]),
        }
        whole = {name: values.to(self._device) for name, values in whole.items()}
        tokens = torch.tensor(float(sum(row.model_tokens for row in rows)), device=self._device)
        begin = 0
        for part in micro_batches(rows, self._micro_batch_tokens):
            end = begin + len(part)
            yield {**{name: values[begin:end] for name, values in whole.items()}, "num_items_in_batch": tokens}
            begin = end


def _padded(parts: Sequence[Any], *, side: str) -> Tensor:
    return pad_sequence([torch.as_tensor(part) for part in parts], batch_first=True, padding_side=side)


def _trainer_of(setting: Setting) -> Any:
    """Returns a `GRPOTrainer` with the model of the setting. Its data set and its reward are never used."""
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    vocabulary = {"<pad>": 0, "<eos>": 1}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="<pad>")), pad_token="<pad>", eos_token="<eos>"
    )
    options = GRPOConfig(
        output_dir=tempfile.gettempdir(),
        learning_rate=LEARNING_RATE,
        weight_decay=0.0,
        adam_beta2=0.999,
        max_grad_norm=MAX_NORM,
        loss_type="dapo",
        epsilon=CLIP,
        beta=0.0,
        bf16=setting.dtype == torch.bfloat16,
        use_cpu=setting.device == "cpu",
        gradient_checkpointing=False,
        report_to=[],
        per_device_train_batch_size=8,
        num_generations=8,
    )
    return GRPOTrainer(
        model=setting.model(),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=options,
        train_dataset=Dataset.from_list([{"prompt": "a"}] * 8),
        processing_class=tokenizer,
    )
