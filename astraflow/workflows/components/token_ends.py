"""Positions in a text at which its tokens end, for the token view of a trajectory."""

from collections.abc import Iterator, Sequence

import numpy as np

from astraflow.contract.rollouts.trajectories import BoolArray, Int32Array
from astraflow.models.tokenizers import ChatTokenizer

MAX_TOKENS = 2**16
"""Maximum number of tokens; the ends in longer texts are not computed."""

_MAX_PENDING = 256
"""Maximum number of tokens that are decoded together because none of them completes a character."""

_INCOMPLETE = "\ufffd"


def token_ends(
    tokens: Int32Array, text: str, is_wanted: BoolArray, *, begin: int, tokenizer: ChatTokenizer
) -> tuple[int, ...]:
    """Returns the end of each wanted token, in characters. A character belongs to the token that completes it, so a
    token with only a part of a character has the end of its predecessor.

    tokens, is_wanted: int32 and bool `[n]`. text: the decoded tokens. begin: added to every end: the number of
    characters before the text. Returns no ends if there are too many tokens, or if the texts of the tokens do not join
    to `text`, as with a decoder that changes earlier text.
    """
    if len(tokens) > MAX_TOKENS:
        return ()
    ends = list(_ends(tokens.tolist(), text, tokenizer))
    if ends and ends[-1] != len(text):
        return ()
    return tuple(begin + end for end, wanted in zip(ends, is_wanted.tolist(), strict=True) if wanted)


def _ends(tokens: Sequence[int], whole: str, tokenizer: ChatTokenizer) -> Iterator[int]:
    """Yields the end of each token. A token is decoded alone, or together with its predecessors if they do not end with
    a complete character."""
    decoded_alone: dict[int, str] = {}
    clean, begin, end = 0, 0, 0
    """First token after the last complete character, the end of that character, and the end of the last token."""
    for index, token in enumerate(tokens):
        if clean < index:
            text = _decode(tokens[clean : index + 1], tokenizer)
        elif token in decoded_alone:
            text = decoded_alone[token]
        else:
            text = decoded_alone[token] = _decode([token], tokenizer)
        if not text and index and whole[begin : begin + 1] == " ":
            text = _decode(tokens[index - 1 : index + 1], tokenizer)[len(_decode([tokens[index - 1]], tokenizer)) :]
        reached, is_complete = _match(text, whole, begin)
        end = max(end, reached)
        if is_complete or index - clean >= _MAX_PENDING:
            clean, begin = index + 1, end
        yield end


def _match(text: str, whole: str, begin: int) -> tuple[int, bool]:
    """Returns the position in `whole` up to which `text` agrees with it from `begin` on, and whether all of `text`
    agrees and no later token can change it. Decoders may omit the space before a token that is decoded alone."""
    if whole.startswith(text, begin):
        return begin + len(text), not text.endswith(_INCOMPLETE)
    if whole[begin : begin + 1] == " " and whole.startswith(text, begin + 1):
        return begin + 1 + len(text), not text.endswith(_INCOMPLETE)
    pairs = zip(text, whole[begin : begin + len(text)], strict=False)
    equal = next(
        (index for index, (character, expected) in enumerate(pairs) if character != expected),
        min(len(text), len(whole) - begin),
    )
    return begin + equal, False


def _decode(tokens: Sequence[int], tokenizer: ChatTokenizer) -> str:
    return tokenizer.decode(np.array(tokens, dtype=np.int32))
