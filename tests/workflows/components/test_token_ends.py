"""Ends of tokens: each character belongs to the token that completes it, with every kind of tokenizer."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.generation import Finish, Generation, VersionSpan
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.models.huggingface_tokenizers import HuggingFaceTokenizer
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.workflows.components.token_ends import MAX_TOKENS, token_ends
from astraflow.workflows.components.trajectory_builder import TrajectoryBuilder, with_text

TEXT = "naïve café — 日本語 🙂🙃 ok\n\tdéjà vu 👩‍👩‍👧"


def bpe(*, is_byte_level: bool) -> ChatTokenizer:
    """Returns a BPE tokenizer trained on little text: of bytes, or of words with their spaces and single bytes for
    characters that it does not know."""
    core = Tokenizer(BPE(unk_token=None, byte_fallback=not is_byte_level))
    corpus = ["hello world, the quick brown fox", "the naïve café", "hello there world"] * 3
    byte_tokens = [f"<0x{value:02X}>" for value in range(256)]
    if is_byte_level:
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<end>"])
    else:
        core.pre_tokenizer = pre_tokenizers.Metaspace()
        core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(), decoders.Fuse()])
        trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=["<end>", *byte_tokens])
    core.train_from_iterator(corpus, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", clean_up_tokenization_spaces=False)
    if not is_byte_level:
        fast = PreTrainedTokenizerFast(tokenizer_object=_without_special_bytes(core), eos_token="<end>")
    fast.chat_template = "{{ messages[0]['content'] }}"
    return HuggingFaceTokenizer(fast, vocab_size=len(fast), stop_tokens=(int(fast.vocab["<end>"]),))


def _without_special_bytes(core: Tokenizer) -> Tokenizer:
    """Returns the tokenizer with its byte tokens as ordinary ones: special ones would not be decoded."""
    import json

    content = json.loads(core.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] == "<end>"]
    return Tokenizer.from_str(json.dumps(content))


TOKENIZERS = {
    "bytes": ByteTokenizer(),
    "byte-level BPE": bpe(is_byte_level=True),
    "BPE with spaces and byte fallback": bpe(is_byte_level=False),
}
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)


def reference(tokens: Sequence[int], tokenizer: ChatTokenizer) -> list[int]:
    """Returns the ends by decoding every beginning of the sequence: the part that the whole text begins with too."""
    ids = np.array(tokens, dtype=np.int32)
    whole = tokenizer.decode(ids)
    ends = []
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:end])
        equal = [left == right for left, right in zip(text, whole, strict=False)]
        ends.append(equal.index(False) if False in equal else len(equal))
    return list(accumulate(ends, max))  # a decoder with byte fallback takes whole characters back


def ends_of(tokens: Sequence[int], tokenizer: ChatTokenizer) -> list[int]:
    ids = np.array(tokens, dtype=np.int32)
    everything = np.ones(len(ids), dtype=np.bool_)
    return list(token_ends(ids, tokenizer.decode(ids), everything, begin=0, tokenizer=tokenizer))


@every_tokenizer
def test_ends_are_those_of_decoding_every_beginning(tokenizer: ChatTokenizer) -> None:
    tokens = [*tokenizer.encode(TEXT).tolist(), tokenizer.stop_tokens[0]]
    ends = ends_of(tokens, tokenizer)
    assert ends == reference(tokens, tokenizer)
    assert ends[-1] == len(tokenizer.decode(np.array(tokens, dtype=np.int32)))


@every_tokenizer
@given(text=st.text(st.sampled_from("a é日🙂\ufffd\n"), max_size=12))
def test_ends_of_any_text_are_ascending_and_complete(tokenizer: ChatTokenizer, text: str) -> None:
    tokens = tokenizer.encode(text).tolist()
    ends = ends_of(tokens, tokenizer)
    assert len(ends) == len(tokens)
    assert ends == sorted(ends)
    assert not ends or ends[-1] == len(tokenizer.decode(np.array(tokens, dtype=np.int32)))


@given(st.lists(st.sampled_from([0x61, 0x20, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0xFF, 0xC3, 257]), max_size=12))
def test_ends_of_invalid_bytes_are_those_of_decoding_every_beginning(tokens: list[int]) -> None:
    assert ends_of(tokens, TOKENIZERS["bytes"]) == reference(tokens, TOKENIZERS["bytes"])


def test_a_character_belongs_to_the_token_that_completes_it() -> None:
    assert ends_of([0x61, 0xE2, 0x82, 0xAC, 0x62], TOKENIZERS["bytes"]) == [1, 1, 1, 2, 3]


def test_too_many_tokens_have_no_ends() -> None:
    assert len(ends_of([0x61] * MAX_TOKENS, TOKENIZERS["bytes"])) == MAX_TOKENS
    assert ends_of([0x61] * (MAX_TOKENS + 1), TOKENIZERS["bytes"]) == []


def test_a_decoder_that_does_not_add_up_has_no_ends() -> None:
    class Emphatic(ByteTokenizer):
        def decode(self, ids: Int32Array, *, keep_special_tokens: bool = False) -> str:
            return super().decode(ids, keep_special_tokens=keep_special_tokens) + "!" * (len(ids) > 2)

    assert ends_of(list(b"ab"), Emphatic()) == [1, 2]
    assert ends_of(list(b"abc"), Emphatic()) == []


def test_only_model_written_tokens_of_a_trajectory_have_ends() -> None:
    tokenizer = ByteTokenizer()
    builder = TrajectoryBuilder(PolicyId("solver"))
    builder.add_context(tokenizer.encode_chat([{"role": "user", "content": "é?"}]))
    for text, speaker in (("né", ""), ("→ 1", "tool"), ("ok", "")):
        tokens = tokenizer.encode(text)
        if speaker:
            builder.add_context(tokens, speaker=speaker)
            continue
        spans = (VersionSpan(length=len(tokens), version=Version(1)),)
        logprobs = np.zeros(len(tokens), dtype=np.float32)
        builder.add_generation(Generation(tokens=tokens, logprobs=logprobs, spans=spans, finish=Finish.STOP))
    trajectory = with_text(builder.build(1.0), tokenizer)

    whole = trajectory.prompt_text + trajectory.completion_text
    ends = trajectory.token_ends
    assert len(ends) == trajectory.model_tokens == 5
    assert trajectory.completion_text == "né→ 1ok"
    assert [whole[begin:end] for begin, end in pairwise((len(trajectory.prompt_text), *ends[:3]))] == ["n", "", "é"]
    assert [whole[end - 1] for end in ends[3:]] == ["o", "k"]
