"""A tokenizer without dependencies or a vocabulary file: UTF-8 bytes and three marks. For stand-ins and tests."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from astraflow.contract.trajectories import Int32Array

_START, _END, _PAD = 256, 257, 258
_MARKS = {_START: "<|im_start|>", _END: "<|im_end|>", _PAD: "<|pad|>"}


class ByteTokenizer:
    """Token ids below 256 are UTF-8 bytes; a conversation is ChatML with its own ids for the marks.

    >>> tokenizer = ByteTokenizer()
    >>> ids = tokenizer.encode_chat([{"role": "user", "content": "hé"}])
    >>> tokenizer.decode(ids, keep_specials=True)
    '<|im_start|>user\\nhé<|im_end|>\\n<|im_start|>assistant\\n'
    >>> tokenizer.decode(tokenizer.encode("née"))
    'née'
    """

    @property
    def vocab_size(self) -> int:
        """Every id is below this."""
        return 259

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """The mark that ends a message."""
        return (_END,)

    @property
    def pad_token(self) -> int:
        """A mark that reads as nothing."""
        return _PAD

    def encode_chat(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> Int32Array:
        """Token ids of a conversation. Text that spells a mark stays text: nobody can forge a turn."""
        ids: list[int] = []
        for message in messages:
            ids += [_START, *f"{message['role']}\n{message['content']}".encode(), _END, *b"\n"]
        if add_generation_prompt:
            ids += [_START, *b"assistant\n"]
        return np.array(ids, dtype=np.int32)

    def encode(self, text: str) -> Int32Array:
        """Token ids of plain text, nothing added."""
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)

    def decode(self, ids: Int32Array, *, keep_specials: bool = False) -> str:
        """The text of some ids; bytes that are no UTF-8 become the replacement character."""
        return b"".join(_pieces(ids, keep_specials=keep_specials)).decode(errors="replace")


def _pieces(ids: Int32Array, *, keep_specials: bool) -> Iterator[bytes]:
    for token in ids.tolist():
        if token < _START:
            yield bytes((token,))
        elif keep_specials:
            yield _MARKS[token].encode()
