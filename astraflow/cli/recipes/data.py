"""Data sets of a recipe, opened before the run: their first prompts, and what would fail at the start."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from astraflow.cli.recipes.downloads import dataset_needs
from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.dataflow.config import EvaluationConfig, FlowConfig
from astraflow.datasets import datasets
from astraflow.datasets.base import QUESTION
from astraflow.datasets.files.prompts import RowOptions
from astraflow.recipe.config import Recipe
from astraflow.rewards import rewards
from astraflow.rewards.base import PromptReader
from astraflow.runtime.folders.data_root import RemoteOptions

_SAMPLED = 64
"""First prompts of a data set that are read. Count."""
_MEASURED = 256
"""Questions of a data set whose length is measured. Count."""


def first_prompts(spec: Mapping[str, Any]) -> list[Prompt]:
    """Returns the first prompts of a data set; none where the data are elsewhere. Raises: AstraFlowError when the run
    could not open it either."""
    if _is_elsewhere(spec):
        return []
    dataset = datasets.build(spec, 0)
    return [dataset.prompt(index) for index in range(min(_SAMPLED, dataset.size))]


def _is_elsewhere(spec: Mapping[str, Any]) -> bool:
    options = datasets.check(spec)
    is_remote = isinstance(options, RemoteOptions) and options.remote_source() is not None
    parts = (part for _, registry, part in datasets.nested(spec) if registry is datasets)
    return is_remote or any(not need.is_here for need in dataset_needs(spec)) or any(map(_is_elsewhere, parts))


def readable_prompts(spec: Mapping[str, Any]) -> list[Prompt]:
    """Returns the first prompts of a data set; none where the data are elsewhere or cannot be read."""
    try:
        return first_prompts(spec)
    except AstraFlowError:  # `data_problems` reports it
        return []


def question_length(spec: Mapping[str, Any], length: Callable[[str], int]) -> int:
    """Returns the length of the longest question of a sample that is spread over a data set; 0 where the data are
    elsewhere or cannot be read."""
    try:
        if _is_elsewhere(spec):
            return 0
        dataset = datasets.build(spec, 0)
        indices = range(0, dataset.size, -(-dataset.size // _MEASURED))
        questions = [dataset.prompt(index).fields.get(QUESTION) for index in indices]
    except AstraFlowError:  # `data_problems` reports it
        return 0
    return max((length(question) for question in questions if isinstance(question, str)), default=0)


def reward_fields(flow: FlowConfig | EvaluationConfig) -> tuple[tuple[str, ...], ...]:
    """Returns the fields of a prompt that the reward of a flow needs, each with those that stand for it; none for a
    reward that does not say, or that the workflow does not use."""
    workflow = flow.workflow
    source = (workflow.get("score") or {}).get("by", "reward")
    if workflow.get("kind") == "dataset_answers" or "environment" in workflow or source != "reward":
        return ()
    options = rewards.check(flow.reward)
    return options.prompt_fields if isinstance(options, PromptReader) else ()


def data_problems(recipe: Recipe) -> Iterator[InvalidInput]:
    """Yields data sets of files that cannot be opened, and fields that a reward needs and their prompts lack."""
    tables: Mapping[str, Mapping[str, FlowConfig | EvaluationConfig]] = {
        "flows": recipe.flows,
        "evaluations": recipe.evaluations,
    }
    for table, flows in tables.items():
        for name, flow in flows.items():
            if isinstance(datasets.check(flow.dataset), RowOptions):  # others need more than files
                try:
                    prompts = first_prompts(flow.dataset)
                except AstraFlowError as problem:
                    yield InvalidInput(f"{table}.{name}.dataset: {problem}", code=problem.code)
                else:
                    yield from _missing_fields(f"{table}.{name}", flow, prompts)


def _missing_fields(
    where: str, flow: FlowConfig | EvaluationConfig, prompts: Sequence[Prompt]
) -> Iterator[InvalidInput]:
    for names in reward_fields(flow):
        lacking = next((prompt for prompt in prompts if not any(name in prompt.fields for name in names)), None)
        if lacking is not None:
            yield InvalidInput(
                f"{where}.reward: cannot score prompt {lacking.id!r} by {flow.reward['kind']!r}: it has no field "
                f"{' or '.join(map(repr, names))}, but {', '.join(sorted(lacking.fields))}; name one of these in the "
                "options of the reward, or add the field to the data",
                code="recipe.reward_field_missing",
            )
