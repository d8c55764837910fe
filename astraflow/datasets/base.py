"""Interface of datasets, and helpers for generated datasets."""

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Protocol, runtime_checkable

from xxhash import xxh3_128

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json

QUESTION = "question"
"""Field of a prompt: the question, as text."""

ANSWER = "answer"
"""Field of a prompt: a correct answer, as text; empty where tests or an environment decide and no solution is known."""

HISTORY = "history"
"""Field of a prompt: the messages before the question, as texts of user and assistant in turn. For examples."""

_SAMPLED_PROMPTS = 64
"""Prompts in the fingerprint of a generated dataset: two datasets with equal samples are almost surely equal. Count."""


class Dataset(Protocol):
    """A numbered list of prompts. Built by `datasets.build(spec, seed)`.

    A prompt depends on the spec, the seed and its index alone, so a cursor is a single integer.
    Every prompt has the fields `question` and `answer`, and further fields for its reward or workflow.

    A plugin is a class in a module that registers itself; list the module under the entry point group
    `astraflow.datasets`:

        @datasets.register("riddles", options=RiddleOptions)
        class Riddles:
            def __init__(self, options: RiddleOptions, seed: int) -> None: ...
    """

    @property
    def size(self) -> int:
        """Number of prompts, at least 1."""

    @property
    def fingerprint(self) -> str:
        """Text that changes when an index may mean another prompt; a restarted run compares it."""

    def prompt(self, index: int) -> Prompt:
        """Returns prompt number `index`. Raises: InvalidInput outside `0 <= index < size`."""


class GeneratedDataset(ABC):
    """Dataset whose prompts are computed from options, seed and index."""

    def __init__(self, size: int) -> None:
        self._size = size

    @property
    def size(self) -> int:
        """Number of prompts."""
        return self._size

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the prompts."""
        return sampled_fingerprint(self)

    def prompt(self, index: int) -> Prompt:
        check_index(index, self._size)
        return self._prompt(index)

    @abstractmethod
    def _prompt(self, index: int) -> Prompt:
        """Returns a prompt whose index is in range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetShare:
    """One part of a mixed dataset."""

    name: str
    size: int
    """Number of prompts; their indices follow the indices of the previous parts."""
    weight: float
    """Share of the issued prompts, relative to the other parts."""


@runtime_checkable
class MixedDataset(Dataset, Protocol):
    """A dataset with parts that are issued in fixed shares."""

    @property
    def shares(self) -> tuple[DatasetShare, ...]:
        """Shares of the parts, in the order of their prompts."""


def examples(dataset: Dataset, *, seed: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields conversations that end with a question, and its correct answer; drawn without end, for a supervised warm
    start. The parts of a mixture are drawn by their weights."""
    rng = random.Random(f"examples/{seed}")
    while True:
        fields = dataset.prompt(_draw_index(dataset, rng)).fields
        yield (*earlier_messages(fields), str(fields[QUESTION])), str(fields[ANSWER])


def _draw_index(dataset: Dataset, rng: random.Random) -> int:
    parts, weights = _parts(dataset)
    return rng.choice(parts[0] if len(parts) == 1 else rng.choices(parts, weights)[0])


def draw_indices(dataset: Dataset, count: int, rng: random.Random) -> list[int]:
    """Returns the indices of `count` prompts, at most as many as there are, in random order.

    They are different ones, and those of a mixture are divided over its parts by the weights: prompts of a part that
    has too few are there several times.
    """
    parts, weights = _parts(dataset)
    count = min(count, dataset.size)
    sums = list(accumulate(weights))
    drawn: list[int] = []
    for part, part_sum in zip(parts, sums, strict=True):
        end = round(count * part_sum / sums[-1])
        while len(drawn) < end:
            drawn += rng.sample(part, min(end - len(drawn), len(part)))
    return rng.sample(drawn, count) if len(parts) > 1 else drawn


def _parts(dataset: Dataset) -> tuple[list[range], list[float]]:
    """Returns the indices of the prompts of each part of a dataset, and the weights of the parts."""
    if not isinstance(dataset, MixedDataset):
        return [range(dataset.size)], [1.0]
    ends = list(accumulate(share.size for share in dataset.shares))
    return [range(end - share.size, end) for share, end in zip(dataset.shares, ends, strict=True)], [
        share.weight for share in dataset.shares
    ]


def earlier_messages(fields: Mapping[str, Json]) -> tuple[str, ...]:
    """Returns the messages before the question, of user and assistant in turn; none without a history."""
    history = fields.get(HISTORY, [])
    return tuple(map(str, history)) if isinstance(history, list) else ()


def generated_prompt(kind: str, index: int, *, question: str, answer: str) -> Prompt:
    return Prompt(id=PromptId(f"{kind}:{index}"), fields={QUESTION: question, ANSWER: answer})


def sampled_fingerprint(dataset: Dataset) -> str:
    """Returns the fingerprint of a generated dataset, computed from its size and a sample of its prompts.

    A sample is sufficient, because a change of options, seed or code changes nearly all prompts.
    """
    digest = xxh3_128(str(dataset.size).encode())
    for sample in range(_SAMPLED_PROMPTS):
        prompt = dataset.prompt(sample * dataset.size // _SAMPLED_PROMPTS)
        digest.update(json.dumps([prompt.id, dict(prompt.fields)], sort_keys=True).encode())
    return digest.hexdigest()


def path_remedy(path: str) -> str:
    """Returns what to do about a path at which no dataset is; a relative path counts from the working directory, not
    from the recipe's folder, as `extends` does."""
    if Path(path).expanduser().is_absolute():
        return "check the path"
    return (
        f"check the path: {path!r} is relative to the working directory {str(Path.cwd())!r}, not to the folder of the "
        "recipe"
    )


def check_index(index: int, size: int) -> None:
    """Checks the index of a prompt. Raises: InvalidInput when it is out of range."""
    if not 0 <= index < size:
        raise InvalidInput(
            f"cannot get prompt {index}: the dataset has {size} prompts, numbered from 0; use a smaller index",
            code="dataset.index_out_of_range",
        )
