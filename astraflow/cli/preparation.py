"""What a recipe's models need before they can be trained: a short supervised start, made once and cached."""

from astraflow.cli.child import PROGRESS
from astraflow.models import models
from astraflow.models.base import OnProgress, WarmStartProgress
from astraflow.recipe import Recipe
from astraflow.trainer.preparation import prepare_model


def unprepared(recipe: Recipe) -> list[str]:
    """The policies whose models are yet to be made."""
    return [name for name, policy in recipe.policies.items() if models.build(policy.model).examples_from is not None]


def prepare_models(recipe: Recipe) -> None:
    """Make them, telling on standard output how far it is. Raises: InvalidInput when one does not get there."""
    for policy in unprepared(recipe):
        prepare_model(recipe.policies[policy].model, on_progress=_tell(policy))


def _tell(policy: str) -> OnProgress:
    def tell(progress: WarmStartProgress) -> None:
        print(  # noqa: T201 (a line for the parent process: see cli.child)
            f"{PROGRESS}warm start of {policy}: step {progress.step}, {progress.accuracy:.0%} of its answers right, "
            f"{progress.target_accuracy:.0%} wanted",
            flush=True,
        )

    return tell
