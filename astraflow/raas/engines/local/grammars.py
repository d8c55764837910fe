"""Grammars: tokens that can follow, so that an answer matches a JSON schema or a regular expression.

The masks come from the library llguidance, of the extra `grammars`. A mask applies to the logits before temperature and
cuts, as in vLLM and SGLang, so that kept sets and logprobs are those of the distribution that is sampled.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.generation import Sampling
from astraflow.models.huggingface_tokenizers import HuggingFaceTokenizer
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.runtime.imports import needs_extra

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_GRAMMAR_CHARACTERS: Final = 2**16
"""Largest schema or expression."""


class Grammars:
    """Grammars over the vocabulary of one model. Any thread."""

    def __init__(self, tokenizer: ChatTokenizer, *, vocabulary: int) -> None:
        """vocabulary: number of logits, which may be more than the tokenizer has."""
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary

    def of(self, sampling: Sampling) -> "Grammar":
        """Returns the grammar of the schema or the expression of a request, which has one.

        Raises: InvalidInput for one that is invalid or too large, that the vocabulary cannot spell, and without the
        library.
        """
        text = sampling.json_schema or sampling.regex
        with needs_extra("grammars", to="sample by a JSON schema or a regular expression"):
            from llguidance import LLMatcher
        if len(text) > MAX_GRAMMAR_CHARACTERS:
            raise _invalid(f"it has {len(text)} characters; use at most {MAX_GRAMMAR_CHARACTERS}")
        compiled = LLMatcher.grammar_from_json_schema if sampling.json_schema else LLMatcher.grammar_from_regex
        try:
            matcher = LLMatcher(self._library_tokenizer, compiled(text), log_level=0)
        except ValueError as problem:
            raise _invalid(f"{problem}; write it as JSON") from None
        if matcher.is_error():
            raise _invalid(f"{matcher.get_error().splitlines()[0]}; correct it, or use the engine sglang or vllm")
        grammar = Grammar(matcher, self._spelled, stop_tokens=sampling.stop_tokens)
        if not grammar.allowed.any():
            raise _invalid("no token of the vocabulary can begin an answer; allow what the tokenizer can spell")
        return grammar

    @cached_property
    def _library_tokenizer(self) -> "LLTokenizer":
        """Vocabulary of the library; takes a second for a large one."""
        from llguidance import LLTokenizer
        from llguidance.hf import from_tokenizer

        ends = list(self._tokenizer.stop_tokens)
        if isinstance(self._tokenizer, HuggingFaceTokenizer):
            try:
                return from_tokenizer(self._tokenizer.pretrained, n_vocab=self._vocabulary, eos_token=ends)
            except ValueError:
                pass  # neither bytes nor bytes as a fallback: its tokens are whole texts
        return LLTokenizer(_WholeTexts(self._tokenizer, self._vocabulary), eos_token=ends)

    @cached_property
    def _spelled(self) -> npt.NDArray[np.bool_]:
        """Tokens with a text: bool `[vocabulary]`."""
        library = self._library_tokenizer
        spelled = (
            bool(library.decode_bytes([token])) and not library.is_special_token(token)
            for token in range(library.vocab_size)
        )
        return np.fromiter(spelled, np.bool_, library.vocab_size)


class Grammar:
    """State of a grammar after the tokens of one answer."""

    def __init__(self, matcher: "LLMatcher", spelled: npt.NDArray[np.bool_], *, stop_tokens: Sequence[int]) -> None:
        """spelled: tokens with a text. stop_tokens: may follow a complete answer."""
        self._matcher = matcher
        self._spelled = spelled
        self._stop_tokens = list(stop_tokens)
        self.allowed = self._next()
        """Tokens that can follow, bool `[vocabulary]`: none after the end, and where the vocabulary cannot go on."""

    @property
    def is_complete(self) -> bool:
        """True if the tokens so far are an answer."""
        return bool(self._matcher.is_accepting())

    def accept(self, token: int) -> None:
        """Appends an allowed token that does not end the answer."""
        self._matcher.consume_token(token)
        self.allowed = self._next()

    def _next(self) -> npt.NDArray[np.bool_]:
        allowed = np.zeros(len(self._spelled), np.bool_)
        if not self._matcher.is_stopped():
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            allowed[:] = np.unpackbits(bits, count=len(allowed), bitorder="little")
            allowed &= self._spelled
        if self.is_complete:
            allowed[self._stop_tokens] = True
        return allowed


class _WholeTexts:
    """Vocabulary whose tokens are whole texts, in the form that `LLTokenizer` reads."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: ChatTokenizer, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self.tokens = [self._text(token) for token in range(vocabulary)]
        self.special_token_ids = [token for token, text in enumerate(self.tokens) if not text]
        self.eos_token_id = tokenizer.stop_tokens[0]

    def __call__(self, text: bytes | str) -> list[int]:
        whole = text if isinstance(text, str) else text.decode(errors="replace")
        ids: list[int] = self._tokenizer.encode(whole).tolist()
        return ids

    def _text(self, token: int) -> bytes:
        return self._tokenizer.decode(np.array([token], np.int32)).encode()


def _invalid(cause: str) -> InvalidInput:
    return InvalidInput(f"cannot sample by a grammar: {cause}", code="engine.invalid_grammar")
