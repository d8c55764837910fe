"""Science experiments in ScienceWorld (arXiv:2203.07540): the task and its variation. The world is the environment
`scienceworld`."""

from typing import Annotated, Literal

from pydantic import field_validator

from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION, check_index
from astraflow.datasets.tables.base import fingerprint_of
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

VARIATIONS = {
    "boil": 30,
    "change-the-state-of-matter-of": 30,
    "chemistry-mix": 32,
    "chemistry-mix-paint-secondary-color": 36,
    "chemistry-mix-paint-tertiary-color": 36,
    "find-animal": 300,
    "find-living-thing": 300,
    "find-non-living-thing": 300,
    "find-plant": 300,
    "freeze": 30,
    "grow-fruit": 126,
    "grow-plant": 126,
    "identify-life-stages-1": 14,
    "identify-life-stages-2": 10,
    "inclined-plane-determine-angle": 168,
    "inclined-plane-friction-named-surfaces": 1386,
    "inclined-plane-friction-unnamed-surfaces": 162,
    "lifespan-longest-lived": 125,
    "lifespan-longest-lived-then-shortest-lived": 125,
    "lifespan-shortest-lived": 125,
    "measure-melting-point-known-substance": 436,
    "measure-melting-point-unknown-substance": 300,
    "melt": 30,
    "mendelian-genetics-known-plant": 120,
    "mendelian-genetics-unknown-plant": 480,
    "power-component": 20,
    "power-component-renewable-vs-nonrenewable-energy": 20,
    "test-conductivity": 900,
    "test-conductivity-of-unknown-substances": 600,
    "use-thermometer": 540,
}
"""Number of variations of each task, in release 1.2 of the package."""

SIMPLIFICATIONS = ("easy", "teleportAction", "selfWateringFlowerPots", "openContainers", "openDoors")
"""Changes that make a task easier; `easy` is all of them, and no electrical actions where the task needs none."""

_SHARES = {"train": (0.0, 0.5), "dev": (0.5, 0.75), "test": (0.75, 1.0)}
"""Part of the variations of each task that belongs to a split, as the package divides them."""


class ScienceWorldOptions(Config):
    """Tasks to use."""

    tasks: Annotated[tuple[str, ...], SettableBy.AGENT] = tuple(VARIATIONS)
    """Tasks, such as `find-plant`."""
    split: Annotated[Literal["train", "dev", "test"], SettableBy.AGENT] = "train"
    """The first half of the variations of each task, the next quarter, or the last one."""
    simplifications: Annotated[tuple[str, ...], SettableBy.AGENT] = ("easy",)
    """Changes that make the tasks easier; empty for the original ones."""

    @field_validator("tasks")
    @classmethod
    def _check_tasks(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _known(names, tuple(VARIATIONS), "tasks", needs_one=True)

    @field_validator("simplifications")
    @classmethod
    def _check_simplifications(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _known(names, SIMPLIFICATIONS, "simplifications", needs_one=False)


@datasets.register("scienceworld", options=ScienceWorldOptions)
class ScienceWorld:
    """Tasks of ScienceWorld in their variations.

    Fields: question (name of the task; the world describes it), answer (empty: the world decides), task, variation,
    simplification (for the engine)."""

    def __init__(self, options: ScienceWorldOptions, _seed: int) -> None:
        self._simplification = ",".join(options.simplifications)
        lower, upper = _SHARES[options.split]
        self._variations = [
            (task, variation)
            for task in options.tasks
            for variation in range(int(VARIATIONS[task] * lower), int(VARIATIONS[task] * upper))
        ]

    @property
    def size(self) -> int:
        """Number of variations of all tasks."""
        return len(self._variations)

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self._simplification, *(f"{task}/{number}" for task, number in self._variations))

    def prompt(self, index: int) -> Prompt:
        """Returns variation number `index`."""
        check_index(index, self.size)
        task, variation = self._variations[index]
        fields: dict[str, Json] = {
            QUESTION: f"ScienceWorld: {task}",
            ANSWER: "",
            "task": task,
            "variation": variation,
            "simplification": self._simplification,
        }
        return Prompt(id=PromptId(f"scienceworld:{task}:{variation}"), fields=fields)


def _known(names: tuple[str, ...], known: tuple[str, ...], what: str, *, needs_one: bool) -> tuple[str, ...]:
    if needs_one and not names:
        raise ValueError(f"name at least one of {what}")
    if unknown := set(names) - set(known):
        raise ValueError(f"unknown {what} {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    return names
