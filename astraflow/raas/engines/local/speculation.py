"""Speculation without a draft model: how many tokens to draft, by measured acceptance and measured cost."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from astraflow.raas.engines.local.drafts import ORDERS, DraftIndex
from astraflow.raas.engines.local.sequences import Sequence

MAX_DRAFT = 8
"""Largest number of tokens that are drafted for a sequence at once."""
_MAX_CONTEXTS = 200_000
_MEASURED_STEPS = 8
"""Steps that verify one token of each sequence, whatever it costs, so that the cost is known."""
_PLAIN_EVERY, _RESTING_EVERY = 16, 4
"""Steps after which one is computed without drafts while drafting, and after which one is measured while resting."""
_MOST_LENT, _LEAST_LENT = 0.01, 0.001
"""Share of the time that drafting may lose: the budget that trials are paid from. Each trial in vain halves it."""
_BEGIN_STEPS, _MOST_STEPS = 4, 64
"""Budget, in steps, with which a trial begins, and the largest, so that old gains do not pay for later losses."""
_KEPT = 0.98
"""Weight that measurements keep after each further one."""


@dataclass(slots=True)
class DraftCounts:
    """Counts of drafts, and of their drafted and accepted tokens."""

    drafts: int = 0
    drafted: int = 0
    """Tokens of the drafts. Count."""
    accepted: int = 0
    """Accepted tokens. Count."""
    accepted_at: list[int] = field(default_factory=lambda: [0] * MAX_DRAFT)
    """Drafts whose first 1, 2, ... tokens were accepted."""

    def add(self, drafted: int, accepted: int) -> None:
        """Adds a draft."""
        self.drafts += 1
        self.drafted += drafted
        self.accepted += accepted
        for position in range(accepted):
            self.accepted_at[position] += 1


class Line:
    """Line through measurements, of which later ones count more: least squares without negative coefficients."""

    def __init__(self) -> None:
        self._sums = np.zeros(5)
        self._fixed = self._slope = 0.0

    def observe(self, x: float, y: float) -> None:
        """Adds a measurement; one far above the line, as of a delayed thread, counts as four times the line."""
        if self._sums[0] > _MEASURED_STEPS:
            y = min(y, 4 * self.at(x))
        self._sums = _KEPT * self._sums + np.array([1.0, x, y, x * x, x * y])
        weight, sum_x, sum_y, sum_xx, sum_xy = self._sums.tolist()
        variance, through_origin = sum_xx - sum_x * sum_x / weight, max(sum_y, 0.0) / max(sum_x, 1e-12)
        slope = (sum_xy - sum_x * sum_y / weight) / variance if variance > 1e-4 * sum_xx else through_origin / 2
        self._slope = min(max(slope, 0.0), through_origin)
        self._fixed = max(sum_y - self._slope * sum_x, 0.0) / weight

    def at(self, x: float) -> float:
        """Returns the value at `x`; 0 before the first measurement."""
        return self._fixed + self._slope * x


class StepCost:
    """Seconds of a step without drafts, by its sequences, and those that drafted tokens add, by their number.

    Two lines, so that many steps with drafts do not blur the cost of the few without, to which they are compared.
    """

    def __init__(self) -> None:
        self._plain = Line()
        self._added = Line()

    def observe(self, sequences: int, columns: int, seconds: float) -> None:
        """Adds a step that computed `columns` tokens of each sequence behind its last one, padding included."""
        if columns:
            self._added.observe(sequences * columns, seconds - self.plain(sequences))
        else:
            self._plain.observe(sequences, seconds)

    def plain(self, sequences: int) -> float:
        """Returns the seconds of a step without drafts."""
        return self._plain.at(sequences)

    def seconds(self, sequences: int) -> npt.NDArray[np.float64]:
        """Returns the seconds of steps with 0 to `MAX_DRAFT` columns: float64 `[MAX_DRAFT + 1]`."""
        added = [self._added.at(sequences * columns) for columns in range(1, MAX_DRAFT + 1)]
        return np.array([0.0, *added]) + self.plain(sequences) + 1e-12


class Speculation:
    """Drafts of a batch, their acceptance, and whether they pay.

    The sampler draws a token at each drafted position from the distribution there. While it draws the drafted tokens,
    their successors count; so every token has exactly the distribution that it has without drafts, and with a seed it
    is the same token. Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", ICML 2023,
    for drafts that are certain.

    Time is the budget: 1 % of all steps is lent, and less after trials in vain; savings are added, losses (also of the
    search) are subtracted. Without a budget nothing is drafted, so that no load becomes slower by more than that.

        resting ──budget of 4 steps──► drafting ──budget used up──► resting
    """

    def __init__(self, max_draft: int, *, clock: Callable[[], float] = time.perf_counter) -> None:
        """max_draft: largest number of tokens drafted for a sequence, at most `MAX_DRAFT`. clock: seconds."""
        self.counts = DraftCounts()
        self.is_drafting = False
        self._max_draft = max_draft
        self._clock = clock
        self._index = DraftIndex(_MAX_CONTEXTS)
        self._rates = dict.fromkeys((0, *ORDERS), 0.5)
        """Acceptance of a token drafted after a context of each length, recently."""
        self._cost = StepCost()
        self._steps = self._measured = 0
        self._orders: list[int] = []
        self._began_at = self._searched_at = 0.0
        self._lent, self._budget_s = _MOST_LENT, 0.0
        self.gain = 1.0
        """Tokens per second of recent steps against the same steps without drafts; 1 while resting."""

    def drafts(self, running: list[Sequence]) -> list[list[int]]:
        """Returns the tokens to verify behind the last token of each sequence, at the beginning of a step."""
        self._steps += 1
        self._began_at = self._searched_at = self._clock()
        if not self.is_drafting:
            return [[] for _ in running]
        searched = [self._search(sequence) for sequence in running]
        self._orders = [order for order, _ in searched]
        self._searched_at = self._clock()
        count = self._count(np.array([len(draft) for _, draft in searched]))
        return [draft[:count] for _, draft in searched]

    def note(self, sequences: list[Sequence], drafts: list[list[int]], accepted: list[int]) -> None:
        """Counts what was accepted of each draft, at the end of a step."""
        is_drafting, columns = self.is_drafting, max(map(len, drafts))
        if not is_drafting and self._steps % _RESTING_EVERY:
            return
        ended_at = self._clock()
        self._cost.observe(len(sequences), columns, ended_at - self._searched_at)
        plain_s = self._cost.plain(len(sequences))
        if not is_drafting:
            self._budget_s += self._lent * _RESTING_EVERY * plain_s
            self.is_drafting = self._budget_s > _BEGIN_STEPS * plain_s
            return
        self._measured += columns > 0
        self._note_accepted(sequences, drafts, accepted)
        replaced_s = (1 + sum(accepted) / len(sequences)) * plain_s
        spent_s = ended_at - self._began_at
        self.gain = _KEPT * self.gain + (1 - _KEPT) * replaced_s / max(spent_s, 1e-9)
        self._budget_s = min(self._budget_s + (1 + self._lent) * replaced_s - spent_s, _MOST_STEPS * plain_s)
        if self._budget_s <= 0:
            self.is_drafting, self.gain = False, 1.0
            self._lent = max(_LEAST_LENT, self._lent / 2)
        elif self._budget_s > 2 * _BEGIN_STEPS * plain_s:  # it has saved more than it had
            self._lent = _MOST_LENT

    def ended(self, sequence: Sequence) -> None:
        """Keeps the end of a finished sequence for its siblings."""
        if self.is_drafting and sequence.forced is None:
            self._index.extend(sequence)

    def _search(self, sequence: Sequence) -> tuple[int, list[int]]:
        remaining = sequence.sampling.max_new_tokens - len(sequence.tokens) - 1
        if sequence.forced is not None or sequence.grammar is not None or remaining <= 0:
            return 0, []  # a grammar knows the tokens that it allows next, not those behind a draft
        self._index.extend(sequence)
        return self._index.draft(sequence.text, min(remaining, self._max_draft))

    def _count(self, lengths: npt.NDArray[np.int64]) -> int:
        """Returns the length at which drafts are cut: that with the most expected tokens per second."""
        if self._steps % _PLAIN_EVERY == 0:
            return 0
        if self._measured < _MEASURED_STEPS:
            return 1
        rates = np.array([self._rates[order] for order in self._orders])
        columns = np.arange(1, MAX_DRAFT + 1)
        expected = (rates[:, None] ** columns * (columns <= lengths[:, None])).sum(0).cumsum()
        sequences = len(lengths)
        tokens = sequences + np.concatenate([[0.0], expected])
        return int(np.argmax(tokens / self._cost.seconds(sequences)))

    def _note_accepted(self, sequences: list[Sequence], drafts: list[list[int]], accepted: list[int]) -> None:
        for sequence, order, draft, count in zip(sequences, self._orders, drafts, accepted, strict=True):
            if not draft:
                continue
            self.counts.add(len(draft), count)
            sequence.drafted += len(draft)
            sequence.accepted += count
            tried = min(len(draft), count + 1)
            self._rates[order] += (1 - _KEPT) * (count - tried * self._rates[order])
