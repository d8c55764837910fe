"""Tokenizers: the interface, the character tokenizer of the tiny model, and the adapter for Hugging Face tokenizers."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.trajectories import Int32Array

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHAR_VOCAB_SIZE = 128
"""Printable characters and special tokens, padded to a power of two."""

_SPECIALS = ("<|pad|>", "<|unknown|>", "<|im_start|>", "<|im_end|>")
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class ChatTokenizer(Protocol):
    """Tokenizer with a chat format, as workflows use it."""

    @property
    def vocab_size(self) -> int:
        """Upper bound (exclusive) of the token ids."""

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids with which the model ends its answer."""

    def encode_chat(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> Int32Array:
        """Returns the token ids of a conversation in the model's chat format.

        messages: each `{"role": ..., "content": ...}`. add_generation_prompt: append the start of the assistant's turn.
        """

    def encode(self, text: str) -> Int32Array:
        """Returns the token ids of plain text, without special tokens."""

    def decode(self, ids: Int32Array, *, keep_special_tokens: bool = False) -> str:
        """Returns the text of the ids; special tokens are omitted by default."""


class HuggingFaceTokenizer:
    """Adapter for a Hugging Face tokenizer that has a chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, vocab_size: int, stop_tokens: tuple[int, ...]) -> None:
        """vocab_size: vocabulary size of the model, whose embedding may be padded beyond the tokenizer's own count."""
        if not tokenizer.chat_template:
            raise InvalidInput(
                f"cannot use the tokenizer of {tokenizer.name_or_path!r}: it has no chat template; use an instruct "
                "model",
                code="model.no_chat_template",
            )
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._stop_tokens = stop_tokens

    @property
    def vocab_size(self) -> int:
        """Upper bound (exclusive) of the token ids."""
        return self._vocab_size

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids with which the model ends its answer."""
        return self._stop_tokens

    def encode_chat(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> Int32Array:
        """Returns the token ids of a conversation, formatted by the tokenizer's own chat template."""
        text = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages], add_generation_prompt=add_generation_prompt, tokenize=False
        )
        return self.encode(str(text))

    def encode(self, text: str) -> Int32Array:
        """Returns the token ids of plain text, without special tokens."""
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)

    def decode(self, ids: Int32Array, *, keep_special_tokens: bool = False) -> str:
        """Returns the text of the ids."""
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=not keep_special_tokens))


def char_tokenizer() -> PreTrainedTokenizerBase:
    """Returns a ChatML tokenizer with one token per printable character, so that a tiny model learns within seconds.

    It is an ordinary fast tokenizer: saved with `save_pretrained`, it loads in transformers, vLLM and SGLang.
    """
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    vocab = {token: index for index, token in enumerate((*_SPECIALS, *string.printable))}
    for index in range(len(vocab), CHAR_VOCAB_SIZE):
        vocab[f"<|unused_{index}|>"] = index
    core = Tokenizer(WordLevel(vocab, unk_token=_SPECIALS[1]))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=_SPECIALS[0],
        unk_token=_SPECIALS[1],
        eos_token=_SPECIALS[3],
        additional_special_tokens=[_SPECIALS[2]],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _CHATML
    return tokenizer
