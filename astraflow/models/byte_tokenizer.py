"""Tokenizer without dependencies or vocabulary file: UTF-8 bytes and three special tokens. For simulation and tests."""

from collections.abc import Sequence

import numpy as np

from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.tokenizers import Message, ToolSchema

_START, _END, _PAD = 256, 257, 258
_BEGIN = np.array([_START], dtype=np.int32)
_END_OF_MESSAGE = np.array([_END, *b"\n"], dtype=np.int32)
_ANSWER = np.array([_START, *b"assistant\n"], dtype=np.int32)
_SPECIAL_TOKENS = {_START: "<|im_start|>", _END: "<|im_end|>", _PAD: "<|pad|>"}


class ByteTokenizer:
    """Maps UTF-8 bytes to token ids below 256; a conversation is ChatML with separate ids for the special tokens.

    >>> tokenizer = ByteTokenizer()
    >>> ids = tokenizer.encode_chat([{"role": "user", "content": "hé"}])
    >>> tokenizer.decode(ids, keep_special_tokens=True)
    '<|im_start|>user\\nhé<|im_end|>\\n<|im_start|>assistant\\n'
    >>> tokenizer.decode(tokenizer.encode("née"))
    'née'
    """

    @property
    def vocab_size(self) -> int:
        """Upper bound (exclusive) of the token ids."""
        return 259

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Id of the token that ends a message."""
        return (_END,)

    @property
    def pad_token(self) -> int:
        """Id of the padding token, which decodes to nothing."""
        return _PAD

    def encode_chat(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = (), add_generation_prompt: bool = True
    ) -> Int32Array:
        """Returns the ids of a conversation; the format cannot describe tools. Names of special tokens in a message
        are encoded as plain text, so no message can forge a turn."""
        return np.concatenate(
            [self._encode_message(message) for message in messages] + [_ANSWER] * add_generation_prompt
        )

    def encode_answer(self, text: str) -> Int32Array:
        """Returns the ids of the text and of the end of a message."""
        return np.append(self.encode(text), _END_OF_MESSAGE[:1])

    def answer_text(self, read: Int32Array, written: Int32Array, *, tools: Sequence[ToolSchema] = ()) -> str:
        """Returns the decoded text."""
        return self.decode(written)

    def bridge(
        self, read: Int32Array, written: Int32Array, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = ()
    ) -> Int32Array:
        """Returns the ids from the end of an answer's text to the beginning of the next answer."""
        end = _END_OF_MESSAGE[1:] if written[-1:].tolist() == [_END] else _END_OF_MESSAGE
        return np.concatenate([end, self.encode_chat(messages)])

    @property
    def has_tools(self) -> bool:
        """False: the format cannot describe tools."""
        return False

    def _encode_message(self, message: Message) -> Int32Array:
        return np.concatenate([_BEGIN, self.encode(f"{message['role']}\n{message['content']}"), _END_OF_MESSAGE])

    def encode(self, text: str) -> Int32Array:
        """Returns the ids of plain text, without special tokens."""
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)

    def decode(self, ids: Int32Array, *, keep_special_tokens: bool = False) -> str:
        """Returns the text of the ids; bytes that are not valid UTF-8 become the replacement character."""
        if keep_special_tokens:
            pieces = (piece for piece in np.split(ids, np.flatnonzero(ids >= _START)) if len(piece))
            return "".join(_SPECIAL_TOKENS.get(int(piece[0]), "") + self.decode(piece) for piece in pieces)
        return ids[ids < _START].astype(np.uint8).tobytes().decode(errors="replace")
