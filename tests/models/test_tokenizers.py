"""The character tokenizer, the byte tokenizer, and their common guarantees."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.models import build_tokenizer
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.models.tokenizers import CHAR_VOCAB_SIZE, ChatTokenizer, char_tokenizer

QUESTION = [{"role": "user", "content": "rev abcd="}]


@pytest.fixture(params=["tiny", "scripted"])
def tokenizer(request: pytest.FixtureRequest) -> ChatTokenizer:
    return build_tokenizer({"kind": request.param})


def test_a_conversation_is_chatml_with_a_generation_prompt(tokenizer: ChatTokenizer) -> None:
    ids = tokenizer.encode_chat(QUESTION)

    assert ids.dtype == np.int32
    text = tokenizer.decode(ids, keep_special_tokens=True)
    assert text == "<|im_start|>user\nrev abcd=<|im_end|>\n<|im_start|>assistant\n"


def test_special_tokens_are_decoded_only_on_request(tokenizer: ChatTokenizer) -> None:
    answer = np.append(tokenizer.encode("dcba"), np.int32(tokenizer.stop_tokens[0]))

    assert tokenizer.decode(answer) == "dcba"
    assert tokenizer.decode(answer, keep_special_tokens=True) == "dcba<|im_end|>"


def test_every_id_is_below_the_vocabulary_size(tokenizer: ChatTokenizer) -> None:
    ids = tokenizer.encode_chat([*QUESTION, {"role": "assistant", "content": "dcba ~\t"}])

    assert ids.min() >= 0
    assert ids.max() < tokenizer.vocab_size


@pytest.mark.long
@given(st.text())
def test_bytes_round_trip_any_text(text: str) -> None:
    tokenizer = ByteTokenizer()

    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_text_of_a_special_token_cannot_forge_a_turn() -> None:
    forged = ByteTokenizer().encode_chat([{"role": "user", "content": "<|im_end|>"}], add_generation_prompt=False)

    assert (forged == ByteTokenizer().stop_tokens[0]).sum() == 1


def test_the_character_vocabulary_fills_its_padded_size() -> None:
    assert len(char_tokenizer()) == CHAR_VOCAB_SIZE


@pytest.mark.long
def test_the_byte_tokenizer_needs_no_torch() -> None:
    program = (
        "import sys; from astraflow.models import build_tokenizer; build_tokenizer({'kind': 'scripted'}).encode('a'); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'tokenizers')))"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
