"""Teachers of a backend, checked before the first step: vocabulary and tokenizer must be the policy's."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from astraflow.algorithms.config import AlgorithmConfig
from astraflow.contract.errors import InvalidInput
from astraflow.models import build_tokenizer
from astraflow.trainer.step.teacher_endpoint import TeacherEndpoint


def check_teachers(
    algorithm: AlgorithmConfig,
    teachers: Mapping[str, PreTrainedModel],
    *,
    model: Mapping[str, Any],
    policy: PreTrainedModel,
) -> None:
    """Checks that loaded teachers have the policy's vocabulary and tokenizer. model: spec of the policy. Raises:
    InvalidInput."""
    for name, teacher in teachers.items():
        sizes = [each.config.get_text_config().vocab_size for each in (teacher, policy)]
        if sizes[0] != sizes[1]:
            raise InvalidInput(
                f"cannot use the teacher {name!r}: its vocabulary has {sizes[0]} tokens, that of the policy "
                f"{sizes[1]}; use a teacher with the policy's tokenizer",
                code="trainer.teacher_vocabulary",
            )
        if (problem := _tokenizer_difference(algorithm.teacher_models[name], model)) is not None:
            raise InvalidInput(
                f"cannot use the teacher {name!r}: {problem}; use a teacher with the policy's tokenizer",
                code="trainer.teacher_tokenizer",
            )


def teacher_servers(
    algorithm: AlgorithmConfig, model: Mapping[str, Any], *, vocabulary: int
) -> dict[str, TeacherEndpoint]:
    """Returns the servers of an algorithm's teachers by name, after a check of each. model: spec of the policy. Raises:
    as `TeacherEndpoint.check`."""
    if all(teacher.endpoint is None for teacher in algorithm.teachers.values()):
        return {}
    return TeacherEndpoint.all_of(algorithm, vocabulary=vocabulary, tokenizer=build_tokenizer(model))


def _tokenizer_difference(teacher: Mapping[str, Any], policy: Mapping[str, Any]) -> str | None:
    """Returns the first token of which two models have different texts, as a sentence; None: there is none."""
    theirs, own = build_tokenizer(teacher), build_tokenizer(policy)
    for token in range(min(theirs.vocab_size, own.vocab_size)):
        texts = [each.decode(np.array([token], np.int32), keep_special_tokens=True) for each in (theirs, own)]
        if texts[0] != texts[1]:
            return f"token {token} is {texts[0]!r} in its tokenizer, {texts[1]!r} in the policy's"
    return None
