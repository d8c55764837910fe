"""Requests that most workflows share: send messages to a policy and receive its answer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, field_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.generation import Finish, Sampling
from astraflow.contract.rollouts.limits import EpisodeBounds
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets.base import QUESTION
from astraflow.datasets.published.loading import fill_template
from astraflow.models.tokenizers import Message
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.workflows.base import PolicyClient
from astraflow.workflows.components.trajectory_builder import TrajectoryBuilder

TEMPLATE_TOKENS = 4096
"""Tokens that a chat template may add to the texts of messages, such as a system message of its own. Count."""


class AnswerOptions(Config):
    """Sampling of answers; workflows extend it with their own options."""

    max_new_tokens: int = Field(default=512, ge=1)
    """Length limit of an answer. Tokens."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of every policy; 1 samples from the distribution that is trained."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Share of the probability that is sampled from, most likely tokens first; of at most 64 tokens in training, where
    `top_k` says nothing else."""
    top_k: int = Field(default=0, ge=0)
    """Number of most likely tokens that are sampled from, at most 256 in training; 0: all."""
    min_p: float = Field(default=0.0, ge=0, lt=1)
    """Smallest probability of a sampled token, relative to the most likely token; 0: no limit."""
    stop_strings: Annotated[tuple[str, ...], SettableBy.AGENT] = ()
    """Texts that end an answer; they stay part of it."""
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    """Seed of the sampling; each request derives its own from the seed and its task, so that the answers of a group
    differ. None: chosen by the engine."""
    json_schema: Annotated[str, SettableBy.AGENT] = ""
    """JSON schema, as JSON, that an answer must match; the engine samples only tokens that fit. Empty: none."""
    allow_truncated_sampling: Annotated[bool, SettableBy.AGENT] = False
    """Lets a training flow sample with `top_p`, `top_k`, `min_p` or `json_schema` although the engine records no kept
    sets and the trainer computes logprobs over all tokens, so that every importance ratio is biased."""

    @field_validator("stop_strings")
    @classmethod
    def _check_stop_strings(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        if not all(texts):
            raise ValueError("a stop string is empty; leave it out")
        return texts

    @field_validator("json_schema")
    @classmethod
    def _check_schema(cls, text: str) -> str:
        if text:
            try:
                json.loads(text)
            except ValueError as problem:
                raise ValueError(f"not JSON ({problem}); write the schema as JSON") from None
        return text

    def sampling(
        self,
        *,
        stop_tokens: tuple[int, ...] = (),
        max_new_tokens: int | None = None,
        stop_strings: Sequence[str] = (),
    ) -> Sampling:
        """Returns the sampling of a request. max_new_tokens: overrides the option. stop_strings: added to the
        option's."""
        return Sampling(
            max_new_tokens=max_new_tokens or self.max_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            stop_tokens=stop_tokens,
            stop_strings=tuple(dict.fromkeys((*self.stop_strings, *stop_strings))),
            json_schema=self.json_schema,
            seed=self.seed,
        )

    def answer_bounds(self, *, trajectories: int | None = None, context: int | None = None) -> EpisodeBounds:
        """Returns the bounds of an episode whose trajectories have one answer each. Arguments: as its fields."""
        limits = [value for name, value in self if name.endswith("max_new_tokens")]
        return EpisodeBounds(trajectories=trajectories, written=max(limits), context=context)

    @property
    def truncating_options(self) -> tuple[str, ...]:
        """Names of the options that exclude some tokens from sampling."""
        names = ("top_p", "top_k", "min_p", "json_schema")
        return tuple(name for name in names if getattr(self, name) != AnswerOptions.model_fields[name].default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer of a policy to some messages."""

    text: str
    """Text in the form of `astraflow.models.answer_texts`."""
    finish: Finish
    trajectory_builder: TrajectoryBuilder

    @property
    def tokens(self) -> int:
        """Length of the answer. Tokens."""
        return self.trajectory_builder.model_tokens


async def request_answer(
    policy: PolicyId,
    client: PolicyClient,
    messages: Sequence[Message],
    options: AnswerOptions,
    *,
    max_new_tokens: int | None = None,
) -> Answer:
    """Requests one answer in a new trajectory. max_new_tokens: overrides the options' value. Raises: RolloutFailed."""
    builder = TrajectoryBuilder(policy)
    prompt = client.tokenizer.encode_chat(messages)
    builder.add_context(prompt)
    sampling = options.sampling(stop_tokens=client.tokenizer.stop_tokens, max_new_tokens=max_new_tokens)
    generation = await client.generate(prompt, sampling)
    builder.add_generation(generation)
    text = client.tokenizer.answer_text(prompt, generation.tokens)
    return Answer(text=text, finish=generation.finish, trajectory_builder=builder)


def question_of(prompt: Prompt) -> str:
    """Returns the prompt's question. Raises: InvalidInput when it has none."""
    question = prompt.fields.get(QUESTION)
    if not isinstance(question, str):
        field_names = ", ".join(sorted(prompt.fields))
        raise InvalidInput(
            f"cannot ask prompt {prompt.id!r}: field {QUESTION!r} has no text; the prompt has {field_names}, name the "
            "question's field in the dataset's options",
            code="workflow.no_question",
        )
    return question


def filled(template: str, prompt: Prompt) -> str:
    """Returns the template with the prompt's field in place of each `{name}`; other braces stay. Raises: InvalidInput
    when it has none of the prompt's fields."""
    text = fill_template(template, **{name: str(value) for name, value in prompt.fields.items()})
    if text == template:
        raise InvalidInput(
            f"cannot write the teacher's question of prompt {prompt.id!r}: {template!r} names none of its fields; use "
            f"one of {', '.join(sorted(prompt.fields))} in teacher_question",
            code="workflow.no_field",
        )
    return text
