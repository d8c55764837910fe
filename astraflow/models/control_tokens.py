"""Control tokens of a tokenizer: those with a meaning in the chat format, which texts of messages and tools must not
become."""

import json
import re
import secrets
import string
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.trajectories import Int32Array

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class ControlTokens:
    """Encodes text of the chat template, in which only the template's own control tokens become control tokens.

    A copy of the tokenizer has secret names for them, so that a text that spells one is as plain as every other, while
    all rules that depend on neighbours (spaces that a token swallows, a space before the first word) stay the same.
    """

    def __init__(self, core: "Tokenizer", ids: Mapping[str, int]) -> None:
        """ids: the control tokens by their text."""
        self._core = core
        self._ids = dict(ids)
        self._pattern = re.compile("|".join(map(re.escape, sorted(ids, key=len, reverse=True))) or r"(?!)")
        self._beginnings = {name[:size] for name in ids for size in range(1, len(name))}
        self._longest = max(map(len, ids), default=0)

    @property
    def ids(self) -> Collection[int]:
        """Ids of the control tokens."""
        return self._ids.values()

    def escapes(self, *values: Any) -> "Escapes | None":
        """Returns the escapes of JSON values whose texts or keys spell a control token or begin one at their end; None
        without such a text."""
        texts = list(_texts(values))
        if not any(self.spells(text) or self._open_end(text) for text in texts):
            return None
        mark = next(mark for mark in (f"escape{number}x" for number in count()) if not any(mark in t for t in texts))
        return Escapes(self, mark)

    def spells(self, text: str) -> bool:
        """Returns whether the text contains the text of a control token."""
        return self._pattern.search(text) is not None

    def broken(self, text: str, mark: str) -> str:
        """Returns the text with `mark` inside each control token that it spells, and inside one that it may begin."""
        text = self._pattern.sub(lambda match: f"{match[0][0]}{mark}{match[0][1:]}", text)
        begun = self._open_end(text)
        if not begun:
            return text
        position = len(text.rstrip()) - begun + 1
        return f"{text[:position]}{mark}{text[position:]}"

    def encode(self, text: str, escapes: "Escapes | None" = None) -> Int32Array:
        """Returns the ids of text from the chat template; without escapes, of text that has no control token."""
        if escapes is not None:
            text = escapes.removed(self._pattern.sub(lambda match: self._aliases[match[0]], text))
        return np.asarray(self._renamed.encode(text, add_special_tokens=False).ids, dtype=np.int32)

    def _open_end(self, text: str) -> int:
        """Returns the number of last characters, spaces aside, with which a control token begins; 0: none."""
        end = text.rstrip()[-self._longest :]
        return next((size for size in range(len(end), 0, -1) if end[-size:] in self._beginnings), 0)

    @cached_property
    def _aliases(self) -> dict[str, str]:
        """Names that no text has: letters only, which no normalizer changes. None is the beginning of another."""
        return {name: "".join(secrets.choice(string.ascii_lowercase) for _ in range(32)) for name in self._ids}

    @cached_property
    def _renamed(self) -> "Tokenizer":
        from tokenizers import Tokenizer

        source = json.loads(self._core.to_str()) | {"truncation": None, "padding": None, "post_processor": None}
        renamed = Tokenizer.from_str(json.dumps(_with_names(source, self._aliases), ensure_ascii=False))
        if any(renamed.token_to_id(self._aliases[name]) != number for name, number in self._ids.items()):
            raise InvalidInput(
                "cannot encode a text that spells a special token: the tokenizer numbers its added tokens in another "
                "order once it is saved; save it with `save_pretrained`, and load that",
                code="model.unsupported_tokenizer",
            )
        return renamed


class Escapes:
    """Changes texts so that they spell no control token while a chat template formats them."""

    def __init__(self, control: ControlTokens, mark: str) -> None:
        self._control = control
        self._mark = mark

    def escaped(self, value: Any) -> Any:
        """Returns a JSON value with changed texts and keys."""
        if isinstance(value, str):
            return self._control.broken(value, self._mark)
        if isinstance(value, Mapping):
            return {self.escaped(key): self.escaped(item) for key, item in value.items()}
        return [self.escaped(item) for item in value] if isinstance(value, list | tuple) else value

    def removed(self, text: str) -> str:
        """Returns text from the chat template without the changes."""
        return text.replace(self._mark, "")


def _texts(value: Any) -> Iterator[str]:
    """Yields the texts in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _with_names(source: dict[str, Any], aliases: Mapping[str, str]) -> dict[str, Any]:
    """Returns a serialized tokenizer whose added tokens and vocabulary have other names, with the same ids."""
    for token in source["added_tokens"]:
        token["content"] = aliases.get(token["content"], token["content"])
    model, vocab = source["model"], source["model"]["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {aliases.get(piece, piece): number for piece, number in vocab.items()}
    else:  # of a unigram model: pieces with their scores
        model["vocab"] = [[aliases.get(piece, piece), score] for piece, score in vocab]
    if model.get("unk_token") in aliases:
        model["unk_token"] = aliases[model["unk_token"]]
    if "merges" in model:  # text must not become a control token by merging its letters either
        model["merges"] = [pair for pair in model["merges"] if not {*pair, "".join(pair)} & aliases.keys()]
    return source
