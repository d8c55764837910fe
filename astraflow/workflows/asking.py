"""What most workflows do: put messages to a policy and take its answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.contract.generation import Finish, Sampling
from astraflow.contract.ids import PolicyId
from astraflow.contract.tasks import Prompt
from astraflow.datasets.base import QUESTION
from astraflow.runtime.config import Config
from astraflow.workflows.base import PolicyPort
from astraflow.workflows.transcript import Transcript

Message = Mapping[str, str]
"""`{"role": ..., "content": ...}`."""


class AnswerOptions(Config):
    """How answers are drawn; workflows extend it with their own options."""

    max_new_tokens: int = Field(default=512, ge=1)
    """Length limit of an answer."""
    temperature: float = Field(default=1.0, gt=0)
    """Of every policy; 1 samples from what the model believes, which is what it is trained on."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Share of the probability that is sampled from, most likely tokens first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a policy said to some messages."""

    text: str
    """Without special tokens."""
    finish: Finish
    transcript: Transcript


async def ask(
    policy: PolicyId,
    port: PolicyPort,
    messages: Sequence[Message],
    options: AnswerOptions,
    *,
    max_new_tokens: int | None = None,
) -> Answer:
    """One answer in a fresh transcript. max_new_tokens: instead of the options' own. Raises: RolloutBroke."""
    transcript = Transcript(policy)
    transcript.read(port.tokenizer.encode_chat(messages))
    sampling = Sampling(
        max_new_tokens=max_new_tokens or options.max_new_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        stop_tokens=port.tokenizer.stop_tokens,
    )
    generation = await port.generate(transcript.tokens(), sampling)
    transcript.wrote(generation)
    return Answer(text=port.tokenizer.decode(generation.tokens), finish=generation.finish, transcript=transcript)


def question_of(prompt: Prompt) -> str:
    """The prompt's question. Raises: InvalidInput when it has none."""
    question = prompt.fields.get(QUESTION)
    if not isinstance(question, str):
        known = ", ".join(sorted(prompt.fields))
        raise InvalidInput(f"prompt {prompt.id} has no text in field {QUESTION!r}; it has {known}")
    return question
