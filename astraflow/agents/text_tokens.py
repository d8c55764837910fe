"""Token ids that carry text: the form in which workflows exchange conversations with endpoints that have no token ids.

Nothing is trained on these ids. They let a workflow build a prompt from messages as for every other tokenizer, and let
a client of an endpoint read the messages back exactly.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from astraflow.agents.calls import AgentMessage, Role
from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.tokenizers import Message, ToolSchema

_BEGIN, _END = 0, 1
_LENGTH_SHIFT = 24
_BYTES_PER_TOKEN = 3
_SPECIAL_TEXTS = {_BEGIN: "<|message|>", _END: "<|end|>\n"}


class TextTokenizer:
    """Maps up to three bytes of UTF-8 to an id, so that a limit in tokens is about as strict as for a language model.

    A conversation is a sequence of messages, each between two ids that no text has: a message cannot forge another.

    >>> tokenizer = TextTokenizer()
    >>> prompt = tokenizer.encode_chat([{"role": "user", "content": "naïve?"}])
    >>> [(message.role.value, message.content) for message in tokenizer.messages(prompt)]
    [('user', 'naïve?')]
    >>> len(tokenizer.encode("naïve?")), tokenizer.decode(tokenizer.encode("naïve?"))
    (3, 'naïve?')
    """

    @property
    def vocab_size(self) -> int:
        """Upper bound (exclusive) of the token ids."""
        return (_BYTES_PER_TOKEN + 1) << _LENGTH_SHIFT

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Id of the token that ends a message."""
        return (_END,)

    def encode_chat(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = (), add_generation_prompt: bool = True
    ) -> Int32Array:
        """Returns the ids of a conversation. Raises: InvalidInput for tools, which the format has no place for."""
        if tools:
            raise InvalidInput(
                "cannot describe tools in a conversation of texts: the format has no place for them; describe them in "
                "a message",
                code="upstream.tools_in_template",
            )
        parts = [part for message in messages for part in self._message(message["role"], message["content"], _END)]
        answer = self._message(Role.ASSISTANT.value, "") if add_generation_prompt else []
        return np.concatenate([*parts, *answer, np.empty(0, np.int32)])

    def encode_answer(self, text: str) -> Int32Array:
        """Returns the ids of the text and of the end of a message."""
        return np.append(self.encode(text), np.int32(_END))

    def answer_text(self, read: Int32Array, written: Int32Array, *, tools: Sequence[ToolSchema] = ()) -> str:
        """Returns the decoded text."""
        return self.decode(written)

    def bridge(
        self, read: Int32Array, written: Int32Array, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = ()
    ) -> Int32Array:
        """Returns the ids between the text of an answer and the next answer."""
        end = [] if written[-1:].tolist() == [_END] else [_END]
        return np.concatenate([np.array(end, np.int32), self.encode_chat(messages)])

    @property
    def has_tools(self) -> bool:
        """False: workflows describe tools in a message."""
        return False

    def encode(self, text: str) -> Int32Array:
        """Returns the ids of plain text."""
        values = np.frombuffer(text.encode(errors="replace"), dtype=np.uint8).astype(np.int32)
        padded = np.zeros(-(-len(values) // _BYTES_PER_TOKEN) * _BYTES_PER_TOKEN, np.int32)
        padded[: len(values)] = values
        first, second, third = padded.reshape(-1, _BYTES_PER_TOKEN).T
        lengths = np.full(len(first), _BYTES_PER_TOKEN, np.int32)
        lengths[-1:] = len(values) - _BYTES_PER_TOKEN * (len(first) - 1)
        ids: Int32Array = (lengths << _LENGTH_SHIFT) | (first << 16) | (second << 8) | third
        return ids

    def decode(self, ids: Int32Array, *, keep_special_tokens: bool = False) -> str:
        """Returns the text of the ids; bytes that are not valid UTF-8 become the replacement character."""
        return b"".join(_pieces(ids, keep_special_tokens=keep_special_tokens)).decode(errors="replace")

    def messages(self, prompt: Int32Array) -> tuple[AgentMessage, ...]:
        """Returns the messages of a prompt that asks for an answer of the assistant.

        Raises: InvalidInput for ids that are no such conversation.
        """
        begins = np.flatnonzero(prompt == _BEGIN)
        if not len(begins) or begins[0] != 0:
            raise _no_conversation("it does not begin with a message")
        *messages, (last, is_open) = [self._read(part) for part in np.split(prompt, begins[1:])]
        if not is_open or last.role is not Role.ASSISTANT or last.content or any(is_cut for _, is_cut in messages):
            raise _no_conversation("it does not end where the assistant's answer begins")
        return tuple(message for message, _ in messages)

    def _message(self, role: str, content: str, *end: int) -> list[Int32Array]:
        """Returns the ids of a message; of one that the model continues without `end`."""
        return [np.array([_BEGIN], np.int32), self.encode(f"{role}\n"), self.encode(content), np.array(end, np.int32)]

    def _read(self, ids: Int32Array) -> tuple[AgentMessage, bool]:
        """Returns a message, and whether it has no end yet."""
        role, _, content = self.decode(ids).partition("\n")
        try:
            return AgentMessage(role=Role(role), content=content), _END not in ids
        except ValueError:
            raise _no_conversation(f"a message has the unknown role {role!r}") from None


def _no_conversation(cause: str) -> InvalidInput:
    return InvalidInput(
        f"cannot send the prompt to a chat endpoint: {cause}; use a workflow that asks with chat messages, or a model "
        "folder",
        code="upstream.no_conversation",
    )


def _pieces(ids: Int32Array, *, keep_special_tokens: bool) -> Iterator[bytes]:
    for token in ids.tolist():
        length = token >> _LENGTH_SHIFT
        if length:
            yield token.to_bytes(4, "big")[1 : 1 + length]
        elif keep_special_tokens:
            yield _SPECIAL_TEXTS[token].encode()
