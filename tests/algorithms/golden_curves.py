"""Losses of 20 steps of a small policy under every algorithm, stored in `golden_curves.json`.

`python -m tests.algorithms.golden_curves` writes the file again, after a change that is meant to change results.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from astraflow.algorithms.base import advantages, token_advantages
from astraflow.algorithms.config import AlgorithmConfig
from astraflow.algorithms.losses import losses
from astraflow.algorithms.tokens import BatchStatistics, RowData, SingleRank, TokenData, TokenScores

FILE = Path(__file__).with_suffix(".json")
STEPS, STEPS_OF_A_BATCH = 20, 4
STATES, ACTIONS = 6, 8
GROUPS, MEMBERS, TOKENS = 4, 4, 5

MASKS = [{"kind": "geometric_mask", "low": 0.8, "high": 1.25}, {"kind": "opsm", "delta": 0.05}]
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {"loss": {"kind": "ppo", "aggregation": "sequence_mean"}},
    "dr_grpo": {
        "advantages": [{"kind": "group_centred"}],
        "loss": {"kind": "ppo", "aggregation": "fixed_length", "fixed_length": 8},
    },
    "dapo": {
        "advantages": [{"kind": "overlong_penalty", "max_tokens": 6, "buffer_tokens": 4}, {"kind": "group_relative"}],
        "loss": {"kind": "ppo", "clip_high": 0.28, "dual_clip": 3.0},
    },
    "decoupled_ppo": {"loss": {"kind": "decoupled_ppo"}},
    "decoupled_ppo_masked": {"loss": {"kind": "decoupled_ppo", "weight_mode": "mask", "weight_cap": 1.5}},
    "gspo": {"loss": {"kind": "gspo", "clip_low": 0.05, "clip_high": 0.05, "corrections": [{"kind": "mis"}]}},
    "cispo": {"loss": {"kind": "cispo"}},
    "sapo": {"loss": {"kind": "sapo"}},
    "dppo": {"loss": {"kind": "dppo"}},
    "dppo_symmetric": {"loss": {"kind": "dppo", "is_symmetric": True}},
    "m2po": {"loss": {"kind": "m2po"}},
    "rloo": {"advantages": [{"kind": "leave_one_out"}], "loss": {"kind": "reinforce"}},
    "reinforce_plus_plus": {
        "advantages": [{"kind": "group_centred"}],
        "token_advantages": [{"kind": "turn_discount"}, {"kind": "whitened"}],
        "loss": {"kind": "reinforce", "anchor": "proximal", "corrections": [{"kind": "tis"}, *MASKS]},
    },
    "maxrl": {"advantages": [{"kind": "maxrl"}], "loss": {"kind": "ppo", "corrections": MASKS}},
    "icepop": {"loss": {"kind": "ppo", "anchor": "proximal", "corrections": [{"kind": "icepop"}]}},
    "whitened_with_penalties": {
        "advantages": [{"kind": "batch_whitened"}],
        "loss": {
            "kind": "ppo",
            "kl_coefficient": 0.1,
            "kl_estimator": "k3+",
            "kl_unbiased": True,
            "entropy_coefficient": 0.05,
            "entropy_target": 3.0,
        },
    },
    "ppo_with_critic": {
        "advantages": [],
        "token_advantages": [{"kind": "gae"}, {"kind": "whitened"}],
        "loss": {"kind": "ppo"},
        "critic": {},
    },
    "turn_returns": {
        "advantages": [],
        "token_advantages": [{"kind": "turn_returns"}],
        "loss": {"kind": "ppo"},
    },
    "distillation": {
        "token_advantages": [{"kind": "distillation"}],
        "loss": {"kind": "reinforce", "anchor": "proximal"},
        "teachers": {"table": {"model": {"kind": "tiny"}}},
    },
    "distillation_of_heads": {
        "loss": {"kind": "distillation", "teacher_mixture": 0.5},
        "teachers": {"table": {"model": {"kind": "tiny"}}},
    },
    "sft": {"loss": {"kind": "sft"}},
    "dpo": {"advantages": [], "loss": {"kind": "dpo"}},
}


class TablePolicy:
    """A table of logits per state, a teacher, and a table of values; actions of a fixed batch."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(11)
        rows = GROUPS * MEMBERS
        lengths = torch.randint(1, TOKENS + 1, (rows,), generator=generator)
        self.owners = torch.repeat_interleave(torch.arange(rows), lengths)
        count = len(self.owners)
        starts = (lengths.cumsum(0) - lengths)[self.owners]
        self.turns = (torch.arange(count) - starts) // 2
        self.states = torch.randint(0, STATES, (count,), generator=generator)
        self.actions = torch.randint(0, ACTIONS, (count,), generator=generator)
        tables = torch.randn(3, STATES, ACTIONS, generator=generator, dtype=torch.float64)
        self.logits = tables[0].clone().requires_grad_()
        self.reference, self.teacher = tables[0].clone(), tables[1]
        self.top = self.teacher.log_softmax(-1).topk(2, -1)
        self.behaviour = self.logprobs(tables[0] + 0.2 * tables[2])
        self.values = torch.zeros(STATES, dtype=torch.float64, requires_grad=True)
        self.rewards = torch.randint(0, 2, (rows,), generator=generator).double()
        self.rows = RowData(
            groups=torch.arange(rows) // MEMBERS,
            slots=torch.arange(rows) % 2,
            is_counted=torch.ones(rows, dtype=torch.bool),
            weights=torch.ones(rows, dtype=torch.bool).float(),
            lengths=lengths,
            is_truncated=torch.zeros(rows, dtype=torch.bool),
        )
        self.statistics = BatchStatistics(tokens=count, trajectories=rows, lengths=lengths, rows=self.rows)

    def logprobs(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(-1)[self.states, self.actions]

    def scores(self) -> TokenScores:
        distribution = self.logits.log_softmax(-1)
        entropy = -(distribution.exp() * distribution).sum(-1)
        return TokenScores(
            logprobs=distribution[self.states, self.actions],
            entropy=entropy[self.states],
            values=self.values[self.states],
            top_logprobs=distribution[self.states[:, None], self.top.indices[self.states]],
        )

    @torch.no_grad()
    def tokens(self, config: AlgorithmConfig) -> TokenData:
        """Returns the data at the start of a batch."""
        values = self.rewards
        for spec in config.advantages:
            values = advantages.build(spec)(values, self.rows)
        tokens = TokenData(
            row_indices=self.owners,
            turn_indices=self.turns,
            behaviour_logprobs=self.behaviour,
            is_own_version=torch.zeros_like(self.owners, dtype=torch.bool),
            advantages=values[self.owners],
            proximal_logprobs=self.logprobs(self.logits),
            reference_logprobs=self.logprobs(self.reference),
            teacher_logprobs=self.logprobs(self.teacher),
            teacher_top_logprobs=self.top.values[self.states],
            values=self.values[self.states].clone(),
        )
        for spec in config.token_advantages:
            tokens = token_advantages.build(spec)(tokens, self.rows, SingleRank())
        return tokens


def curve(algorithm: dict[str, Any]) -> dict[str, list[float]]:
    """Returns the loss of each step, and the norm of the gradient by the logits."""
    config, policy = AlgorithmConfig.parse(algorithm, where="algorithm"), TablePolicy()
    specs = [config.loss, *([config.critic.loss] if config.critic else [])]
    curves: dict[str, list[float]] = {"loss": [], "grad_norm": []}
    for step in range(STEPS):
        if step % STEPS_OF_A_BATCH == 0:
            start = policy.tokens(config)
        total, norm = _step(policy, start, specs)
        curves["loss"].append(total)
        curves["grad_norm"].append(norm)
    return curves


def _step(policy: TablePolicy, start: TokenData, specs: list[dict[str, Any]]) -> tuple[float, float]:
    scores = policy.scores()
    tokens = replace(start, current_logprobs=scores.logprobs.detach())
    total = scores.logprobs.new_zeros(())
    for spec in specs:
        loss = losses.build(spec)
        state = loss.prepare(tokens, policy.statistics, SingleRank())
        total = total + loss(scores, tokens, policy.statistics, state).loss
    total.backward()
    norm = 0.0
    with torch.no_grad():
        for weights in (policy.logits, policy.values):
            if weights.grad is not None:
                norm = norm or float(weights.grad.norm())
                weights -= 2.0 * weights.grad
                weights.grad = None
    return float(total.detach()), norm


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(curve(algorithm))}" for name, algorithm in ALGORITHMS.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
