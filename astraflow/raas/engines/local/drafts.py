"""Drafts of next tokens from texts that the engine has seen: prompts, siblings, earlier answers to the same prompt."""

from collections.abc import Sequence as Items

from astraflow.raas.engines.local.sequences import Sequence

ORDERS = (8, 4, 2)
"""Numbers of last tokens that must have occurred before, the longest first."""
_MAX_PROMPTS = 4096


class DraftIndex:
    """Latest occurrence of each context of 8, 4 or 2 tokens, in prompts and in answers that are complete or running.

    A context is known by its hash: an equal hash of other tokens costs a rejected draft, and changes no distribution.
    When the newer half of the memory is full, the older half is forgotten; contexts that occur again stay.
    """

    def __init__(self, max_contexts: int) -> None:
        """max_contexts: about 200 bytes each."""
        self._newer: dict[int, tuple[Items[int], int]] = {}
        self._older: dict[int, tuple[Items[int], int]] = {}
        self._half = max(1, max_contexts // 2)
        self._prompts: set[int] = set()

    def extend(self, sequence: Sequence) -> None:
        """Adds what the sequence has written since the last call, and a prompt once."""
        text = sequence.text
        begin = len(text)
        if not begin:
            text.extend(sequence.prompt.tolist())
            begin = len(text) if self._is_known(sequence) else 0
        text.extend(sequence.tokens[len(text) - len(sequence.prompt) :])
        self.add(text, begin)

    def add(self, text: Items[int], begin: int) -> None:
        """Adds `text[begin:]`; the object is kept, and may grow behind its end."""
        newer = self._newer
        for end in range(max(begin, ORDERS[-1]), len(text)):
            for order in ORDERS:
                if order <= end:
                    newer[hash(tuple(text[end - order : end]))] = (text, end)
        if len(newer) > self._half:
            self._newer, self._older = {}, newer

    def draft(self, text: Items[int], count: int) -> tuple[int, list[int]]:
        """Returns the number of last tokens of `text` that have occurred before, and at most `count` tokens that
        followed them there; 0 and none when not even two have."""
        for order in ORDERS:
            if order > len(text):
                continue
            context = hash(tuple(text[-order:]))
            occurrence = self._newer.get(context) or self._older.get(context)
            if occurrence is not None:
                known, end = occurrence
                return order, list(known[end : end + count])
        return 0, []

    def _is_known(self, sequence: Sequence) -> bool:
        """Returns whether an equal prompt was added before."""
        prompt = hash(sequence.prompt.tobytes())
        if prompt in self._prompts:
            return True
        if len(self._prompts) >= _MAX_PROMPTS:
            self._prompts.clear()
        self._prompts.add(prompt)
        return False
