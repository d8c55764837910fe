"""Tokenizers: the interface, and the character tokenizer of the tiny model."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from astraflow.contract.rollouts.trajectories import Int32Array

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHAR_VOCAB_SIZE = 128
"""Printable characters and special tokens, padded to a power of two."""

_SPECIALS = ("<|pad|>", "<|unknown|>", "<|im_start|>", "<|im_end|>")
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


Message = Mapping[str, str]
"""A chat message: `{"role": ..., "content": ...}`; the content of the assistant has the form of `answer_texts`, and a
result may have the `tool_call_id` of its call."""
ToolSchema = Mapping[str, Any]
"""A function that a model may call: `{"type": "function", "function": {"name", "description", "parameters"}}`."""


class ChatTokenizer(Protocol):
    """Tokenizer with a chat format, as workflows use it."""

    @property
    def vocab_size(self) -> int:
        """Upper bound (exclusive) of the token ids."""

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids with which the model ends its answer."""

    def encode_chat(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = (), add_generation_prompt: bool = True
    ) -> Int32Array:
        """Returns the token ids of a conversation in the model's chat format. Text of a message or of a tool that
        spells a special token stays text, keys of tools included, so that it cannot forge a turn.

        tools: described to the model, if `has_tools`. add_generation_prompt: append the start of the assistant's
        turn. Raises: InvalidInput for messages that the chat format does not allow.
        """

    def encode_answer(self, text: str) -> Int32Array:
        """Returns the token ids of an answer as the policy would write it, with the token that ends it.

        text: in the form of `answer_texts`.
        """

    def answer_text(self, read: Int32Array, written: Int32Array, *, tools: Sequence[ToolSchema] = ()) -> str:
        """Returns the text of an answer in the form of `answer_texts`, in whatever form the policy writes thoughts and
        calls. read, tools: as in `bridge`."""

    def bridge(
        self, read: Int32Array, written: Int32Array, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = ()
    ) -> Int32Array:
        """Returns the token ids between an answer and the next answer: the end of the answer unless the policy wrote
        it, `messages`, and the start of the next answer. Everything before stays as the policy read and wrote it.

        read: tokens between the previous answer and this one. written: the answer. tools: at the begin of the
        conversation. Takes time linear in the arguments, not in the conversation.
        Raises: InvalidInput for messages that the chat format does not allow, and for a format that cannot continue.
        """

    @property
    def has_tools(self) -> bool:
        """True if the chat format describes tools, has a role `tool` for their results, and calls of it are in the
        text of an answer."""

    def encode(self, text: str) -> Int32Array:
        """Returns the token ids of plain text, without special tokens."""

    def decode(self, ids: Int32Array, *, keep_special_tokens: bool = False) -> str:
        """Returns the text of the ids; special tokens are omitted by default."""


def char_vocab_size(words: Sequence[str] = ()) -> int:
    """Returns the vocabulary size of `char_tokenizer(words)`: padded to a multiple of 64."""
    return max(CHAR_VOCAB_SIZE, -(-(len(_SPECIALS) + len(string.printable) + len(words)) // 64) * 64)


def char_tokenizer(words: Sequence[str] = ()) -> PreTrainedTokenizerBase:
    """Returns a ChatML tokenizer with one token per printable character, so that a tiny model learns within seconds.

    words: texts with a token of their own, of at least two characters; the longest that matches wins.
    It is an ordinary fast tokenizer: saved with `save_pretrained`, it loads in transformers, vLLM and SGLang.
    """
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    vocab = {token: index for index, token in enumerate((*_SPECIALS, *string.printable, *words))}
    for index in range(len(vocab), char_vocab_size(words)):
        vocab[f"<|unused_{index}|>"] = index
    pieces = [*map(re.escape, sorted(words, key=len, reverse=True)), r"[\s\S]"]
    core = Tokenizer(WordLevel(vocab, unk_token=_SPECIALS[1]))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(pieces)), "isolated")
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
