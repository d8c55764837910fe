"""Generated puzzles of reasoning-gym, with a verifier for each.

Source: Reasoning Gym, arXiv:2505.24760.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from typing import Annotated, Any

from pydantic import Field, field_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION, DatasetShare, check_index
from astraflow.datasets.published.loading import fill_template
from astraflow.runtime.config.base import Config, suggest_name
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.imports import require_package

GENERATOR = "generator"
"""Field of a prompt: the name of its generator."""

SETTINGS = "settings"
"""Field of a prompt: the settings of its generator."""

METADATA = "metadata"
"""Field of a prompt: what the verifier needs."""

EXCLUDED = {
    "boxnet": "its items have no answer",
    "composite": "it is a mixture of others, which the option `generators` is as well",
    "game_of_life_halting": "its verifier accepts any text",
    "graph_color": "its items have no answer",
    "propositional_logic": "its items have no answer",
    "puzzle24": "its verifier accepts an expression with other numbers than those of the item",
    "rubiks_cube": "its items have no answer",
    "rush_hour": "its items have no answer",
}
"""Generators that cannot be used, with the reason."""


class GeneratorOptions(Config):
    """Share and difficulty of one generator."""

    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Its share of the issued prompts is this weight over the sum of all weights."""
    level: int | None = Field(default=None, ge=0)
    """Difficulty, the same for all its attributes, up to the highest level of each; None: the generator's defaults."""
    settings: Annotated[dict[str, Any], SettableBy.RECIPE] = Field(default_factory=dict)
    """Settings of the generator, such as `max_terms`; they take precedence over the level."""

    @field_validator("settings")
    @classmethod
    def _check_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        fixed = sorted({"seed", "size"} & settings.keys())
        if fixed:
            raise ValueError(f"{fixed[0]} is not a setting of a generator here; leave it out")
        return settings


class ReasoningGymOptions(Config):
    """Generators to mix."""

    generators: Annotated[dict[str, GeneratorOptions], SettableBy.AGENT] = Field(min_length=1)
    """By name."""
    size: int = Field(default=100_000, ge=1, le=2**31)
    """Number of prompts of each generator."""
    template: Annotated[str, SettableBy.AGENT] = "{question}"
    """Prompt; `{question}` is the puzzle."""


@datasets.register("reasoning_gym", options=ReasoningGymOptions)
class ReasoningGym:
    """Generated puzzles of Reasoning Gym, which its verifiers score.

    Fields: question, answer, and those that the reward `reasoning_gym` needs: generator, settings, metadata.

    Most items are generated in less than a millisecond; knight_swap takes half a second, futoshiki, sokoban,
    intermediate_integration and zebra_puzzles a tenth.
    """

    def __init__(self, options: ReasoningGymOptions, seed: int) -> None:
        require_package("reasoning_gym", extra="reasoning-gym", to="use dataset 'reasoning_gym'")
        self._options = options
        self._seed = seed
        self._settings = {name: _settings(name, chosen) for name, chosen in options.generators.items()}
        self._names = list(options.generators)

    @property
    def size(self) -> int:
        """Number of prompts of all generators."""
        return len(self._names) * self._options.size

    @property
    def fingerprint(self) -> str:
        """Release of the package, seed and settings, which determine the prompts; weights may change."""
        prompts = [self._options.size, self._options.template, self._settings]
        return f"reasoning-gym {version('reasoning-gym')} seed {self._seed} {json.dumps(prompts, sort_keys=True)}"

    @property
    def shares(self) -> tuple[DatasetShare, ...]:
        """Shares of the generators."""
        return tuple(
            DatasetShare(name=name, size=self._options.size, weight=chosen.weight)
            for name, chosen in self._options.generators.items()
        )

    def prompt(self, index: int) -> Prompt:
        """Returns a puzzle with the id `generator:index`."""
        check_index(index, self.size)
        ordinal, item = divmod(index, self._options.size)
        name, settings = self._names[ordinal], self._settings[self._names[ordinal]]
        entry = build_generator(name, settings, seed=self._seed, size=self._options.size)[item]
        metadata: Json = json.loads(json.dumps(entry["metadata"], default=_plain))
        return Prompt(
            id=PromptId(f"{name}:{item}"),
            fields={
                QUESTION: fill_template(self._options.template, question=entry["question"]),
                ANSWER: entry["answer"],
                GENERATOR: name,
                SETTINGS: settings,
                METADATA: metadata,
            },
        )


def build_generator(name: str, settings: Mapping[str, Any], *, seed: int = 0, size: int = 1) -> Any:
    """Returns a generator, which also verifies answers; it is reused. Raises: InvalidInput for wrong settings."""
    return _built(name, json.dumps(settings, sort_keys=True), seed, size)


@lru_cache(maxsize=128)
def _built(name: str, settings: str, seed: int, size: int) -> Any:
    from reasoning_gym.factory import create_dataset

    try:
        return create_dataset(name, **json.loads(settings), seed=seed, size=size)
    except (AssertionError, TypeError, ValueError) as problem:
        raise InvalidInput(
            f"cannot use generator {name!r} of reasoning-gym: {problem}; correct its `settings`",
            code="dataset.generator_settings",
        ) from problem


def generator_names() -> list[str]:
    """Returns the names of the usable generators, sorted."""
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS.keys() - EXCLUDED.keys())


def _settings(name: str, options: GeneratorOptions) -> dict[str, Any]:
    """Returns the settings of a generator after its level is applied. Raises: InvalidInput."""
    if name in EXCLUDED:
        raise InvalidInput(
            f"cannot use generator {name!r} of reasoning-gym: {EXCLUDED[name]}; choose another generator",
            code="dataset.generator_excluded",
        )
    if name not in generator_names():
        raise InvalidInput(
            f"cannot use generator {name!r} of reasoning-gym: unknown name; {suggest_name(name, generator_names())}",
            code="dataset.unknown_generator",
        )
    settings = (_settings_of_level(name, options.level) if options.level is not None else {}) | options.settings
    build_generator(name, settings)
    return settings


def _settings_of_level(name: str, level: int) -> dict[str, Any]:
    from reasoning_gym.factory import create_curriculum, has_curriculum

    if not has_curriculum(name):
        raise InvalidInput(
            f"cannot set the level of generator {name!r}: it has no levels; use its `settings`",
            code="dataset.generator_without_levels",
        )
    curriculum = create_curriculum(name)
    for attribute_name, attribute in curriculum.attributes.items():
        curriculum.set_attr_level(attribute_name, min(level, len(attribute.levels) - 1))
    chosen = vars(curriculum.generate_configuration({"size": 1, "seed": 0}))
    kinds = ("field_name", "lower_field_name", "upper_field_name")
    names = {getattr(attribute, kind, None) for attribute in curriculum.attributes.values() for kind in kinds}
    return {name: json.loads(json.dumps(chosen[name], default=_plain)) for name in sorted(filter(None, names))}


def _plain(value: Any) -> Any:
    """Returns a value of metadata as JSON: numpy's numbers and arrays, sets, and anything else as text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)
