"""Parts of aborted generations that another request can continue."""

import numpy as np
import pytest

from astraflow.contract.ids import Version
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.raas.engines.continuations import ModelDecoder, continuable

STOPS = Sampling(max_new_tokens=200, stop_strings=("<end>", "é!"))
PADDING = "a" * 40


def decode(tokens: Int32Array) -> str:
    return ByteTokenizer().decode(tokens, keep_special_tokens=True)


def begun(text: bytes | str) -> Generation:
    """Returns an aborted generation whose first ten tokens are of version 1, and the others of version 2."""
    data = text.encode() if isinstance(text, str) else text
    tokens = np.frombuffer(data, dtype=np.uint8).astype(np.int32)
    spans = (VersionSpan(version=Version(1), length=10), VersionSpan(version=Version(2), length=len(tokens) - 10))
    logprobs = -np.arange(len(tokens), dtype=np.float32)
    return Generation(tokens=tokens, logprobs=logprobs, spans=spans, finish=Finish.ABORT)


@pytest.mark.parametrize("grammar", [{"json_schema": "{}"}, {"regex": "a+"}])
def test_a_generation_with_a_grammar_starts_anew(grammar: dict[str, str]) -> None:
    assert continuable(begun(PADDING), Sampling(max_new_tokens=200, **grammar), decode) is None  # type: ignore[arg-type]


def test_a_generation_without_stop_strings_is_kept_as_it_is() -> None:
    whole = begun(PADDING)
    assert continuable(whole, Sampling(max_new_tokens=200), decode) is whole


@pytest.mark.parametrize("end", [b"<", b"<en", b"\xc3", "é".encode(), b"", b"<enb", b"<end<end"])
def test_no_stop_string_has_begun_where_a_generation_is_cut(end: bytes) -> None:
    whole = begun(PADDING.encode() + end)
    part = continuable(whole, STOPS, decode)
    assert part is not None
    length = len(part.tokens)
    assert 10 < length <= len(whole.tokens)
    assert not decode(part.tokens).endswith(("<", "<e", "<en", "<end", "é", "\N{REPLACEMENT CHARACTER}"))
    assert (part.tokens.tolist(), part.logprobs.tolist()) == (
        whole.tokens[:length].tolist(),
        whole.logprobs[:length].tolist(),
    )
    assert [(span.version, span.length) for span in part.spans] == [(1, 10), (2, length - 10)]
    assert part.finish is Finish.ABORT


def test_the_cut_does_not_depend_on_the_tokens_after_it() -> None:
    parts = [continuable(begun(PADDING + end), STOPS, decode) for end in ("bbbb", "<end", "b<en")]
    assert len({len(part.tokens) for part in parts if part is not None}) == 1


def test_a_generation_without_a_safe_end_starts_anew() -> None:
    sampling = Sampling(max_new_tokens=200, stop_strings=("a" * 100,))
    assert continuable(begun(PADDING), sampling, decode) is None


def test_the_decoder_of_a_model_keeps_special_tokens() -> None:
    tokens = np.array([*b"hi", ByteTokenizer().stop_tokens[0]], dtype=np.int32)
    assert ModelDecoder({"kind": "scripted"})(tokens) == decode(tokens)
