"""Answers of the local engine match their schema, and logprobs are those over the tokens that it left."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.generation import Finish, Sampling
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.models import models
from astraflow.models.huggingface_tokenizers import HuggingFaceTokenizer
from astraflow.raas.engines import engines
from astraflow.raas.engines.base import Engine
from astraflow.raas.engines.local.grammars import Grammars
from tests import make_torch
from tests.errors import raises_code
from tests.suites.serving import serving, within

PROMPT = np.array([5, 6, 7, 8, 9], dtype=np.int32)
END = 3
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"enum": [1, 22, 333]}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
TOKENIZER = models.build(make_torch.TINY).tokenizer()


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    weights = make_torch.published(make_torch.model())
    async with serving(lambda: engines.build({"kind": "local_torch", "seed": 7}, make_torch.TINY), weights) as served:
        yield served


@pytest.mark.anyio
async def test_answers_match_their_schema_with_logprobs_over_the_tokens_that_it_left(engine: Engine) -> None:
    sampling = Sampling(max_new_tokens=60, json_schema=json.dumps(SCHEMA), stop_tokens=(END,)).recording_support()
    requests = [engine.generate(f"{number}", PROMPT, sampling) for number in range(12)]
    plain, *answers = await within(asyncio.gather(engine.generate("x", PROMPT, Sampling(max_new_tokens=4)), *requests))

    assert not plain.columns
    assert len({answer.tokens.tobytes() for answer in answers}) > 1
    for answer in answers:
        value = json.loads(TOKENIZER.decode(answer.tokens))
        assert (answer.finish, int(answer.tokens[-1])) == (Finish.STOP, END)
        assert value.keys() == {"n", "ok"}
        assert value["n"] in (1, 22, 333)
        assert answer.has_support
        text = torch.from_numpy(np.concatenate([PROMPT, answer.tokens]).astype(np.int64))
        logits = make_torch.model()(text[None]).logits[0, len(PROMPT) - 1 : -1].detach().double().numpy()
        for row, kept, token, logprob in zip(
            logits, answer.columns[TokenColumn.SUPPORT], answer.tokens, answer.logprobs, strict=True
        ):
            ids = kept[kept >= 0]
            assert row[token] - np.logaddexp.reduce(row[ids]) == pytest.approx(logprob, abs=1e-5)


@pytest.mark.anyio
async def test_an_answer_ends_where_its_expression_does(engine: Engine) -> None:
    answer = await engine.generate("a", PROMPT, Sampling(max_new_tokens=9, regex="[a-c]{4}"))
    assert re.fullmatch("[a-c]{4}", TOKENIZER.decode(answer.tokens))
    assert answer.finish is Finish.STOP
    cut = await engine.generate("b", PROMPT, Sampling(max_new_tokens=3, regex="[a-c]{4}", stop_tokens=(END,)))
    assert (len(cut.tokens), cut.finish) == (3, Finish.LENGTH)


@pytest.mark.anyio
async def test_an_answer_that_the_vocabulary_cannot_go_on_with_counts_as_cut(engine: Engine) -> None:
    answer = await engine.generate("a", PROMPT, Sampling(max_new_tokens=9, regex="abé"))
    assert (TOKENIZER.decode(answer.tokens), answer.finish) == ("ab", Finish.LENGTH)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "grammar",
    [
        {"json_schema": "{"},
        {"json_schema": '{"type": "nothing"}'},
        {"regex": "(a"},
        {"regex": "é"},
        {"regex": "a" * 2**17},
    ],
    ids=["no JSON", "unknown type", "no expression", "nothing to begin with", "too large"],
)
async def test_grammars_that_nothing_can_match_are_refused(engine: Engine, grammar: dict[str, Any]) -> None:
    running = asyncio.create_task(engine.generate("other", PROMPT, Sampling(max_new_tokens=5)))
    with raises_code(InvalidInput, "engine.invalid_grammar"):
        await engine.generate("a", PROMPT, Sampling(max_new_tokens=5, **grammar))
    assert len((await within(running)).tokens) == 5


def test_tokens_that_are_a_part_of_a_character_follow_each_other() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(BPE({text: token for token, text in enumerate([*alphabet, "<|im_end|>"])}, []))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    pretrained = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", chat_template="x")
    tokenizer = HuggingFaceTokenizer(pretrained, vocab_size=320, stop_tokens=(256,))
    grammar = Grammars(tokenizer, vocabulary=320).of(Sampling(max_new_tokens=9, regex="é|è", stop_tokens=(256,)))

    first, *_ = tokenizer.encode("é").tolist()
    assert np.flatnonzero(grammar.allowed).tolist() == [first]
    grammar.accept(first)
    seconds = {int(tokenizer.encode(text)[1]) for text in "éè"}
    assert set(np.flatnonzero(grammar.allowed)) == seconds
    grammar.accept(min(seconds))
    assert grammar.is_complete
    assert np.flatnonzero(grammar.allowed).tolist() == [256]
