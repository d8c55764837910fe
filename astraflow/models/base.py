"""Interface of every kind of model: a tokenizer, an architecture, and prepared initial weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from astraflow.contract.rollouts.trajectories import BoolArray, Int32Array
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.plugins import Registry

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transcript:
    """Tokens of an episode, and which of them the model should write."""

    tokens: Int32Array
    is_written: BoolArray
    """`[n]`; the first token is read."""


Example: TypeAlias = tuple[tuple[str, ...], str] | Transcript
"""A question as a user would ask it, after earlier messages of user and assistant in turn, and its only correct answer;
or a whole episode."""


class EpisodeOptions(Config):
    """Episodes of an expert, which a warm start imitates."""

    workflow: Annotated[dict[str, Any], SettableBy.RECIPE]
    """Workflow that plays the prompts of the dataset, as its `kind` and options."""
    policy: Annotated[str, SettableBy.AGENT] = "solver"
    """Policy of the workflow whose turns are the examples; its expert and the others' play together."""
    turns: Annotated[dict[str, tuple[str, ...]], SettableBy.AGENT] = Field(default_factory=dict)
    """By policy: its replies in an episode, in order, the last one again and again; `{answer}` stands for that field of
    the prompt. A policy without an entry has an expert in `experts`, or replies with the field `answer`."""
    experts: Annotated[dict[str, str], SettableBy.AGENT] = Field(default_factory=dict)
    """By policy: the name of an expert that reads what the policy reads, or `module:function` of a file of your own,
    loaded with `--plugin`: from a `Situation` to a `Reply` (`astraflow.workflows.scripted.experts`)."""
    prompts: int = Field(default=1000, ge=1)
    """Number of prompts that are played, of a mixture by the weights of its parts; the examples then repeat in other
    orders."""
    episodes_per_prompt: int = Field(default=1, ge=1)
    """Episodes of each prompt. With an expert that sometimes errs, such as `fallible_solver`, one episode
    ties each prompt to one answer, and a verifier would learn which prompts to reject instead of which answers."""


class WarmStartOptions(Config):
    """Dataset and end of the warm start: too good a start leaves nothing for reinforcement learning to improve."""

    dataset: Annotated[dict[str, Any], SettableBy.RECIPE]
    """Dataset of the examples, as its `kind` and options. It is part of the cached folder's name; the caller of
    `prepare` builds it and passes the examples."""
    data: Annotated[str, SettableBy.RECIPE] = ""
    """Hash of the local files that `dataset` reads; set when a recipe is loaded: the cached model of other contents is
    another one. Empty: no local file."""
    system: Annotated[str, SettableBy.AGENT] = ""
    """System message before each question, such as the description of an agent's tools; empty: none."""
    episodes: EpisodeOptions | None = None
    """Whole episodes as examples, such as those of an agent in an environment, instead of a question and its answer."""
    target_accuracy: float = Field(default=0.25, gt=0, lt=1)
    """Share of sampled answers, or of whole episodes, that would equal the example, at which the warm start stops. With
    an expert that draws at random it has a ceiling, which may be near 0: give `steps` then."""
    steps: int | None = Field(default=None, ge=1)
    """Number of steps after which the warm start stops, whatever the accuracy is; None: `target_accuracy` decides."""
    batch_size: int = Field(default=64, ge=1)
    learning_rate: float = Field(default=3e-3, gt=0)
    max_steps: int = Field(default=2000, ge=1)
    report_every_steps: int = Field(default=10, ge=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamplesSource:
    """Source of the examples of a warm start."""

    dataset: Mapping[str, Any]
    """Its `kind` and options."""
    episodes: EpisodeOptions | None = None
    """Episodes on the prompts of the dataset; None: its questions and answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartProgress:
    """Progress of a warm start. `accuracy`: mean probability that a sampled answer is correct."""

    step: int
    loss: float
    accuracy: float
    target_accuracy: float | None
    """None when the number of steps decides."""
    steps: int
    """Number of steps, at most."""


OnProgress = Callable[[WarmStartProgress], None]


class ModelSource(Protocol):
    """Source of a policy's model. Built by `models.build(spec)`; building is cheap, the methods do the work."""

    @property
    def examples_source(self) -> ExamplesSource | None:
        """Source of the examples that `prepare` needs now; None when it needs none."""

    def check(self) -> None:
        """Checks, without reading weights, that this machine has the files that `prepare` needs. Raises:
        InvalidInput, whose message names the remedy."""

    def tokenizer(self) -> ChatTokenizer:
        """Returns the tokenizer; needs no weights and, for `scripted`, no torch."""

    def architecture(self) -> PreTrainedModel:
        """Returns the model with uninitialized or random float32 weights, for a node that receives weights later."""

    def prepare(self, examples: Iterator[Example] | None = None, on_progress: OnProgress | None = None) -> Path:
        """Returns a folder in Hugging Face format with the initial weights; creates it if it does not exist yet.

        examples: an endless stream from `examples_source`.
        Raises: InvalidInput when the folder cannot be provided; the message names the remedy.
        """

    @property
    def checkpoint(self) -> Path | None:
        """Folder of the checkpoint that the model comes from; None for a model that is created here. Raises:
        InvalidInput."""

    def write_server_files(self, folder: Path) -> None:
        """Writes the configuration and the tokenizer, without weights, for an engine server. Raises: InvalidInput."""

    def load(self, folder: Path) -> PreTrainedModel:
        """Returns the model with the weights of a prepared folder, in float32."""


Vectors = npt.NDArray[np.float32]


class TextKind(Enum):
    """Part that a text plays in a search; some models expect another prefix for each."""

    QUERY = "query"
    DOCUMENT = "document"


class Embedder(Protocol):
    """Turns texts into vectors whose inner product says how close their meanings are. Built by
    `embedders.build(spec)`.

    A plugin is a class in a module that registers itself; list the module under the entry point group
    `astraflow.embedders`.
    """

    def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Returns a vector of length 1 for each text: float32 `[texts, width]`. Blocks; one call at a time."""


embedders: Registry[Embedder] = Registry("embedder", built_in={"huggingface": "astraflow.models.huggingface_embedder"})
