"""Models before training: whether their files are here, and a short supervised warm start, run once and cached."""

from astraflow.cli.recipes.cards import SIMULATED_KIND
from astraflow.cli.running.supervisor import PROGRESS
from astraflow.models import models
from astraflow.models.base import OnProgress, WarmStartProgress
from astraflow.recipe.config import Recipe
from astraflow.trainer.model_preparation import prepare_model


def policies_to_prepare(recipe: Recipe) -> list[str]:
    """Returns the policies whose models need a warm start."""
    return [name for name, policy in recipe.policies.items() if models.build(policy.model).examples_source is not None]


def check_models(recipe: Recipe) -> None:
    """Checks that this machine has the files of all models. Raises: InvalidInput, which names the remedy."""
    for policy in recipe.policies.values():
        models.build(policy.model).check()


def prepare_models(recipe: Recipe) -> None:
    """Prepares the models and prints progress and folders. Raises: InvalidInput if a model misses its target
    accuracy."""
    for name, policy in recipe.policies.items():
        if policy.model.get("kind") == SIMULATED_KIND:
            continue  # it has no weights
        folder = prepare_model(policy.model, on_progress=_print_progress(name))
        print(f"model of {name}: {folder}", flush=True)  # noqa: T201 (the command's result)


def _print_progress(policy: str) -> OnProgress:
    def print_progress(progress: WarmStartProgress) -> None:
        print(  # noqa: T201 (a line for the parent process: see cli.running.supervisor)
            f"{PROGRESS}warm start of {policy}: step {progress.step} of at most {progress.steps}, loss "
            f"{progress.loss:.3f}, {progress.accuracy:.0%} of the answers as in the examples{_goal(progress)}",
            flush=True,
        )

    return print_progress


def _goal(progress: WarmStartProgress) -> str:
    return "" if progress.target_accuracy is None else f" (goal {progress.target_accuracy:.0%})"
