"""Time to the same reward: a recipe on the real planes and TRL's `GRPOTrainer`, alternating, on the same machine.

    python -m benchmarks.against_trl [--recipe smollm/lora] [--rewards 0.2 0.4 0.6] [--repeats 2] [--limit-s 900]
                                           [--set SETTING ...] [--json FILE]

Both train the recipe's model on its prompts with its reward, group size, groups for each step, learning rate, adapters
and answer length. A recipe has one policy and one flow with the workflow `single_turn`. A run of the recipe
has an engine and a trainer with one thread each, as `OMP_NUM_THREADS=1` sets; TRL has one process with a thread for
each core, generates with transformers, and trains without activation checkpointing, which only makes it slower. TRL's
sampling, its loss (`dapo`) and its order of prompts are its own. Time begins with the end of the first step, so that
loading models does not count. The reward is the mean of the last five steps.

TRL is no dependency of this project. Install it beside the other packages, without its dependencies, which are here:
`pip install --no-deps trl==1.16.0`.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from astraflow.archive.reports import read_reports
from astraflow.contract.rollouts.generation import Finish
from astraflow.dataflow.config import FlowConfig
from astraflow.datasets import datasets
from astraflow.recipe.config import PolicyConfig
from astraflow.recipe.loading import load_recipe
from astraflow.rewards import rewards
from astraflow.rewards.base import score_completion
from astraflow.trainer.model_preparation import prepare_model
from benchmarks.recipe_curves import finished_run
from benchmarks.trainer_step.trl_loop import MISSING

WINDOW = 5
"""Steps over which the reward is averaged."""
Curve = list[tuple[float, float]]
"""Seconds since the end of the first step, and mean reward, of each step."""


def main() -> None:
    """Prints the time to each reward for both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="smollm/lora")
    parser.add_argument("--rewards", nargs="+", type=float, default=[0.2, 0.4, 0.6])
    parser.add_argument("--repeats", type=int, default=2, help="runs of each, with the seeds 0, 1, ...")
    parser.add_argument("--limit-s", type=float, default=900.0, help="of one run")
    parser.add_argument("--set", action="append", default=[], metavar="SETTING", dest="settings")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--trl-seed", type=int, help=argparse.SUPPRESS)  # in the process that this program starts
    options = parser.parse_args()
    if find_spec("trl") is None:
        raise SystemExit(MISSING)
    goal = max(options.rewards)
    settings = [*options.settings, f"stop.reward={goal}", f"stop.window_steps={WINDOW}", "stop.steps=10000"]
    if options.trl_seed is not None:
        curve = trl_run(options.recipe, settings, options.trl_seed, goal=goal, limit_s=options.limit_s)
        sys.stdout.write(f"{json.dumps(curve)}\n")
        return
    curves: dict[str, list[Curve]] = {"astraflow": [], "trl": []}
    for seed in range(options.repeats):
        with finished_run(options.recipe, [*settings, f"seed={seed}"], limit_s=options.limit_s) as (_, archive):
            curves["astraflow"].append(recorded_curve(archive))
        sys.stdout.write(row("astraflow", seed, curves["astraflow"][-1], options.rewards))
        sys.stdout.flush()
        curves["trl"].append(trl_process(sys.argv[1:], seed))
        sys.stdout.write(row("trl", seed, curves["trl"][-1], options.rewards))
        sys.stdout.flush()
    sys.stdout.write(summary(curves, options.rewards))
    if options.json:
        options.json.write_text(json.dumps(curves))


def recorded_curve(archive: Path) -> Curve:
    """Returns the curve of a run with one policy; the end of a step is known to a second."""
    ends: dict[int, tuple[float, float]] = {}
    for report in read_reports(archive, resolution_s=1):
        (stream,) = report.streams
        for step, reward in enumerate(
            stream.training.rewards, start=stream.training.steps - len(stream.training.rewards) + 1
        ):
            ends.setdefault(step, (report.at, reward))
    first, _ = ends[1]
    return [(at - first, reward) for _, (at, reward) in sorted(ends.items())]


def trl_process(arguments: Sequence[str], seed: int) -> Curve:
    """Runs TRL in a process of its own, with a thread for each core. Raises: CalledProcessError when it fails."""
    command = [sys.executable, "-m", "benchmarks.against_trl", *arguments, "--trl-seed", str(seed)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(os.cpu_count()), "TOKENIZERS_PARALLELISM": "false"}
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return [tuple(point) for point in json.loads(ended.stdout.splitlines()[-1])]


def trl_run(recipe_name: str, settings: Sequence[str], seed: int, *, goal: float, limit_s: float) -> Curve:
    """Trains with TRL until the mean reward reaches the goal or the limit."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    recipe = load_recipe(recipe_name, [*settings, f"seed={seed}"])
    (policy,), (flow,) = recipe.policies.values(), recipe.flows.values()
    folder = prepare_model(policy.model)
    curve: Curve = []
    first: list[float] = []

    class Recorder(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if not logs or "reward" not in logs:
                return
            now = time.monotonic()
            first.append(now)
            curve.append((now - first[0], float(logs["reward"])))
            reached = len(curve) >= WINDOW and statistics.fmean(reward for _, reward in curve[-WINDOW:]) >= goal
            control.should_training_stop = reached or now - first[0] > limit_s

    source = datasets.build(flow.dataset, seed)
    prompts = [source.prompt(index) for index in range(min(source.size, 10_000))]
    system = [{"role": "system", "content": flow.workflow["system"]}] if flow.workflow.get("system") else []
    tokenizer = AutoTokenizer.from_pretrained(folder)
    reward = rewards.build(flow.reward)

    def scores(completions: list[Any], completion_ids: list[list[int]], index: list[int], **_: Any) -> list[float]:
        async def all_scores() -> list[float]:
            scored = [
                score_completion(
                    reward,
                    prompts[number],
                    completion[0]["content"],
                    Finish.STOP if ids and ids[-1] == tokenizer.eos_token_id else Finish.LENGTH,
                    tokens=len(ids),
                )
                for completion, ids, number in zip(completions, completion_ids, index, strict=True)
            ]
            return [score.value for score in await asyncio.gather(*scored)]

        return asyncio.run(all_scores())

    lora = policy.backend.get("lora")
    with tempfile.TemporaryDirectory() as temporary:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype="float32"),
            reward_funcs=scores,
            args=GRPOConfig(output_dir=temporary, seed=seed, max_steps=100_000, **shared_options(policy, flow)),
            train_dataset=Dataset.from_list(
                [
                    {"prompt": [*system, {"role": "user", "content": prompt.fields["question"]}], "index": number}
                    for number, prompt in enumerate(prompts)
                ]
            ),
            processing_class=tokenizer,
            callbacks=[Recorder()],
            peft_config=lora
            and LoraConfig(
                r=lora["rank"], lora_alpha=lora["alpha"], target_modules="all-linear", task_type="CAUSAL_LM"
            ),
        )
        trainer.train()
    return curve


def shared_options(policy: PolicyConfig, flow: FlowConfig) -> dict[str, Any]:
    """Returns TRL's options for the settings of a recipe."""
    return {
        "learning_rate": policy.backend["learning_rate"],
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "adam_beta2": 0.999,
        "max_grad_norm": 1.0,
        "per_device_train_batch_size": policy.batch_groups * flow.group_size,
        "num_generations": flow.group_size,
        "max_completion_length": flow.workflow["max_new_tokens"],
        "temperature": flow.workflow["temperature"],
        "epsilon": 0.2,  # without effect: TRL trains each rollout once, with the weights that sampled it
        "beta": 0.0,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }


def seconds_to(curve: Curve, reward: float) -> float | None:
    """Returns the time at which the mean of five steps reached the reward; None if it never did."""
    windows = (curve[end - WINDOW : end] for end in range(WINDOW, len(curve) + 1))
    return next((window[-1][0] for window in windows if statistics.fmean(part for _, part in window) >= reward), None)


def row(name: str, seed: int, curve: Curve, goals: Sequence[float]) -> str:
    """Formats one run."""
    cells = [f"to {goal}: {_seconds(seconds_to(curve, goal)):>7}" for goal in goals]
    step_s = statistics.median(end - begin for (begin, _), (end, _) in pairwise(curve))
    first, last = (statistics.fmean(reward for _, reward in part) for part in (curve[:WINDOW], curve[-WINDOW:]))
    figures = f"{len(curve):>4} steps, median {step_s:5.1f} s, reward {first:.3f} to {last:.3f}"
    return f"{name:10} seed {seed}: {'  '.join(cells)}   {figures}, load {os.getloadavg()[0]:.1f}\n"


def summary(curves: dict[str, list[Curve]], goals: Sequence[float]) -> str:
    """Formats the medians of both, and their ratio, for the rewards that every run reached."""
    lines = []
    for goal in goals:
        times = {name: [seconds_to(curve, goal) for curve in runs] for name, runs in curves.items()}
        if any(seconds is None for runs in times.values() for seconds in runs):
            lines.append(f"to {goal}: not reached by every run\n")
            continue
        ours, theirs = (statistics.median(filter(None, times[name])) for name in ("astraflow", "trl"))
        lines.append(f"to {goal}: {ours:.0f} s against {theirs:.0f} s, {theirs / ours:.2f} times as fast\n")
    return "".join(lines)


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.0f} s"


if __name__ == "__main__":
    main()
