"""Text to token ids and back: the port, the character tokenizer of the tiny model, and any Hugging Face one."""

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
"""Printable characters and specials, padded to a power of two."""

_SPECIALS = ("<|pad|>", "<|unknown|>", "<|im_start|>", "<|im_end|>")
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class ChatTokenizer(Protocol):
    """What a workflow needs from a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Every id is below this."""

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids with which the model ends its answer."""

    def encode_chat(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> Int32Array:
        """Token ids of a conversation in the model's chat format.

        messages: `{"role": ..., "content": ...}` each. add_generation_prompt: end where the assistant begins to write.
        """

    def encode(self, text: str) -> Int32Array:
        """Token ids of plain text, nothing added."""

    def decode(self, ids: Int32Array, *, keep_specials: bool = False) -> str:
        """The text of some ids; special tokens are left out unless asked for."""


class HuggingFaceTokenizer:
    """Any Hugging Face tokenizer that has a chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, vocab_size: int, stop_tokens: tuple[int, ...]) -> None:
        """vocab_size: of the model, whose embedding may be padded beyond the tokenizer's own count."""
        if not tokenizer.chat_template:
            raise InvalidInput(
                f"the tokenizer of {tokenizer.name_or_path!r} has no chat template: use an instruct model"
            )
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._stop_tokens = stop_tokens

    @property
    def vocab_size(self) -> int:
        """Every id is below this."""
        return self._vocab_size

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids with which the model ends its answer."""
        return self._stop_tokens

    def encode_chat(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> Int32Array:
        """Token ids of a conversation, through the tokenizer's own chat template."""
        text = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages], add_generation_prompt=add_generation_prompt, tokenize=False
        )
        return self.encode(str(text))

    def encode(self, text: str) -> Int32Array:
        """Token ids of plain text, nothing added."""
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)

    def decode(self, ids: Int32Array, *, keep_specials: bool = False) -> str:
        """The text of some ids."""
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=not keep_specials))


def char_tokenizer() -> PreTrainedTokenizerBase:
    """One token for each printable character, with ChatML: small enough that a tiny model learns in seconds.

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
