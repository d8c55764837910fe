"""What a node counts for its beats."""

from collections import deque

from astraflow.contract.nodes import NODE_COUNTERS, NODE_GAUGES

_ERRORS = 8
_RATE_WINDOW_S = 10.0


class NodeCounters:
    """Cumulative counters, current gauges and the latest messages for an operator, by the names of the contract.

    Dataflow counts each incarnation of a node from 0: after joining again, what was reported before is left out.
    """

    def __init__(self) -> None:
        self._totals = dict.fromkeys(NODE_COUNTERS, 0.0)
        self._reported = dict(self._totals)
        self._baseline = dict(self._totals)
        self._gauges: dict[str, float] = {}
        self._errors: deque[str] = deque(maxlen=_ERRORS)
        self._tokens: deque[tuple[float, float]] = deque()

    def add(self, counter: str, amount: float = 1.0) -> None:
        """Count. Raises: KeyError for a name that is not in the contract."""
        self._totals[counter] += amount

    def set_total(self, counter: str, total: float) -> None:
        """Take over what somebody else adds up."""
        self._totals[counter] = total

    def set_gauge(self, gauge: str, value: float) -> None:
        """The value now. Raises: KeyError for a name that is not in the contract."""
        if gauge not in NODE_GAUGES:
            raise KeyError(gauge)
        self._gauges[gauge] = value

    def note_error(self, message: str) -> bool:
        """Something an operator may want to look at; the latest eight are kept, repeated ones once.

        Returns whether it is not among them yet.
        """
        is_new = message not in self._errors
        if not is_new:
            self._errors.remove(message)
        self._errors.append(message)
        return is_new

    def observe_rate(self, now: float) -> None:
        """Bring the gauge `tokens_per_s` up to date, over the last ten seconds."""
        self._tokens.append((now, self._totals["tokens_generated"]))
        while now - self._tokens[0][0] > _RATE_WINDOW_S:
            self._tokens.popleft()
        (first_at, first), (last_at, last) = self._tokens[0], self._tokens[-1]
        self.set_gauge("tokens_per_s", (last - first) / (last_at - first_at) if last_at > first_at else 0.0)

    def counters(self) -> dict[str, float]:
        """Since the node joined."""
        return {name: total - self._baseline[name] for name, total in self._totals.items()}

    def gauges(self) -> dict[str, float]:
        """Those that were set."""
        return dict(self._gauges)

    def errors(self) -> tuple[str, ...]:
        """Newest last."""
        return tuple(self._errors)

    def was_reported(self, counters: dict[str, float]) -> None:
        """Dataflow has seen these counters. Beats may overlap: what it saw never shrinks."""
        for name, value in counters.items():
            self._reported[name] = max(self._reported[name], self._baseline[name] + value)

    def joined_again(self) -> None:
        """Count from 0, but for what dataflow has not seen yet."""
        self._baseline = dict(self._reported)
