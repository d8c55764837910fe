"""How much of what a trainer learned its published weights show, by step, with and without a dithered start.

    TMPDIR=/dev/shm python -m benchmarks.dead_zone [--recipe smollm] [--rates 2e-5 1e-6] [--steps 1 2 5 10 20 50]
                                                         [--set SETTING ...] [--json FILE] [--svg FILE]

Each run is `astraflow run RECIPE --headless` at one learning rate. Of the checkpoints at these steps, the published
weights are compared with the float32 masters that they are rounded from: elements that differ from the first version;
the part of the masters' movement that the published weights made, as a projection; and the same of the policy: the
change of the log-probabilities of the first token of answers, over the whole vocabulary. 1 is all. Other work on the
machine changes none of these. Two checkpoints of all weights and moments need room at a time, and one for each step.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from astraflow.datasets import datasets
from astraflow.models import models
from astraflow.models.causal import named_weights
from astraflow.recipe.loading import load_recipe
from astraflow.runtime.plot import Curve, line_plot
from astraflow.trainer.backends.state.sharded import WholeTensors
from astraflow.trainer.engines.optimizers import dither
from astraflow.trainer.model_preparation import prepare_model

PROMPTS = 16
"""Prompts whose answers' first token is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Published weights of one version against the masters."""

    learning_rate: float
    is_dithered: bool
    step: int
    changed_share: float
    """Elements that differ from the first version."""
    weights_share: float
    """Part of the masters' movement since the start."""
    policy_share: float
    """Part of the change of the float32 policy since the start."""


def main() -> None:
    """Prints a row for each run and step, and writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="smollm", help="with one policy, whose weights are stored in bfloat16")
    parser.add_argument("--rates", nargs="+", type=float, default=[2e-5, 1e-6])
    parser.add_argument("--steps", nargs="+", type=int, default=[1, 2, 5, 10, 20, 50])
    parser.add_argument("--set", action="append", default=[], metavar="SETTING", dest="settings")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    points: list[Point] = []
    sys.stdout.write(f"{'rate':>6} {'dithered':>8} {'step':>4} {'changed':>8} {'weights':>8} {'policy':>8}\n")
    for rate in options.rates:
        for is_dithered in (False, True):
            for point in measured_run(options.recipe, options.settings, rate, options.steps, is_dithered=is_dithered):
                points.append(point)
                shares = f"{point.changed_share:8.4f} {point.weights_share:8.3f} {point.policy_share:8.3f}"
                sys.stdout.write(f"{rate:6.0e} {'yes' if is_dithered else 'no':>8} {point.step:>4} {shares}\n")
                sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps([asdict(point) for point in points], indent=1) + "\n")
    if options.svg:
        options.svg.write_text(plot(points))


def measured_run(
    recipe_name: str, settings: Sequence[str], rate: float, steps: Sequence[int], *, is_dithered: bool
) -> list[Point]:
    """Runs the recipe and compares the versions of these steps."""
    (policy,) = load_recipe(recipe_name, settings).policies
    backend = f"policies.{policy}.backend"
    settings = [
        *settings,
        f"{backend}.learning_rate={rate}",
        f"{backend}.dithered_start={str(is_dithered).lower()}",
        f"stop.steps={max(steps)}",
        "stop.reward=1000",
    ]
    with tempfile.TemporaryDirectory() as temporary:
        checkpoints = kept_checkpoints(recipe_name, settings, steps, Path(temporary), policy=policy)
        compare = Comparison(recipe_name, settings, is_dithered=is_dithered)
        return [
            Point(learning_rate=rate, is_dithered=is_dithered, step=step, **compare.shares(folder))
            for step, folder in checkpoints.items()
        ]


def kept_checkpoints(
    recipe_name: str, settings: Sequence[str], steps: Sequence[int], folder: Path, *, policy: str
) -> dict[int, Path]:
    """Runs the recipe and links the checkpoints of these steps before the run removes them."""
    command = [sys.executable, "-m", "astraflow.cli", "run", recipe_name, "--headless", "--no-web"]
    command += ["--run-dir", str(folder / "run"), *(part for setting in settings for part in ("--set", setting))]
    kept: dict[int, Path] = {}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) as run:
        while True:
            has_ended = run.poll() is not None
            for step in steps:
                source, target = folder / f"run/trainer-{policy}/checkpoints/step-{step:08d}", folder / str(step)
                if step not in kept and source.is_dir():
                    shutil.copytree(source, target, copy_function=lambda a, b: Path(b).hardlink_to(a))
                    kept[step] = target
            if has_ended:
                break
            time.sleep(0.1)
    if missing := sorted(set(steps) - kept.keys()):
        raise SystemExit(f"the run of {recipe_name} ended before step {missing[0]}")
    shutil.rmtree(folder / "run")
    return dict(sorted(kept.items()))


class Comparison:
    """Published weights and masters against those of the start."""

    def __init__(self, recipe_name: str, settings: Sequence[str], *, is_dithered: bool) -> None:
        recipe = load_recipe(recipe_name, settings)
        (policy,), (flow,) = recipe.policies.values(), recipe.flows.values()
        self._source, folder = models.build(policy.model), prepare_model(policy.model)
        self._model = self._source.load(folder).float().eval()
        self._weights = named_weights(self._model)
        self._published = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._masters = {name: weight.clone() for name, weight in self._published.items()}
        for name, master in self._masters.items() if is_dithered else ():
            dither(master, name, whole=master, grid=torch.bfloat16)
        dataset, tokenizer = datasets.build(flow.dataset, 0), self._source.tokenizer()
        system = [{"role": "system", "content": flow.workflow["system"]}] if flow.workflow.get("system") else []
        questions = (
            {"role": "user", "content": str(dataset.prompt(index).fields["question"])} for index in range(PROMPTS)
        )
        self._prompts = [torch.from_numpy(tokenizer.encode_chat([*system, question])).long() for question in questions]
        self._first_published, self._first_masters = self._logprobs(self._published), self._logprobs(self._masters)

    def shares(self, checkpoint: Path) -> dict[str, float]:
        """Returns the shares of `Point`."""
        stored = WholeTensors(checkpoint / "state")
        masters = {name: stored.read(f"weight/{name}") for name in self._weights}
        published = {name: master.bfloat16().float() for name, master in masters.items()}
        changed, elements, product, square = 0, 0, 0.0, 0.0
        for name, master in masters.items():
            moved, served = master - self._masters[name], published[name] - self._published[name]
            changed += int((served != 0).sum())
            elements += served.numel()
            product += float((moved * served).sum(dtype=torch.float64))
            square += float(moved.square().sum(dtype=torch.float64))
        learned = self._logprobs(masters) - self._first_masters
        shown = self._logprobs(published) - self._first_published
        weights = self._first_masters.exp()
        policy = (weights * learned * shown).sum() / (weights * learned.square()).sum()
        return {"changed_share": changed / elements, "weights_share": product / square, "policy_share": float(policy)}

    @torch.no_grad()
    def _logprobs(self, weights: dict[str, Tensor]) -> Tensor:
        """Returns the log-probabilities of the first token of each prompt's answer, `[prompts, vocabulary]`."""
        for name, weight in self._weights.items():
            weight.copy_(weights[name])
        logits = [self._model(input_ids=prompt[None], use_cache=False).logits[0, -1] for prompt in self._prompts]
        return torch.stack(logits).double().log_softmax(-1)


def plot(points: Sequence[Point]) -> str:
    """Draws the part of the policy's change that is published."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        name = f"{point.learning_rate:.0e}, {'dithered' if point.is_dithered else 'as stored'}"
        curves.setdefault(name, [(0.0, 0.0)] if not point.is_dithered else []).append((point.step, point.policy_share))
    return line_plot(
        [Curve(name=name, points=tuple(steps)) for name, steps in curves.items()],
        x_label="step",
        y_label="published part of the policy's change",
    )


if __name__ == "__main__":
    main()
