"""Counters, gauges and error messages that a node reports in its heartbeats."""

from collections import deque
from collections.abc import Mapping

from astraflow.contract.node_metrics import NODE_COUNTERS, NODE_GAUGES

_MAX_ERRORS = 8
_RATE_WINDOW_S = 10.0


class NodeCounters:
    """Cumulative counters, current gauges and the latest error messages, by the names of the contract.

    Dataflow counts each incarnation of a node from 0: after a rejoin, amounts reported before are left out.
    """

    def __init__(self) -> None:
        self._totals = dict.fromkeys(NODE_COUNTERS, 0.0)
        self._reported = dict(self._totals)
        self._baseline = dict(self._totals)
        self._gauges: dict[str, float] = {}
        self._errors: deque[str] = deque(maxlen=_MAX_ERRORS)
        self._tokens: deque[tuple[float, float]] = deque()

    def add(self, counter: str, amount: float = 1.0) -> None:
        """Adds to a counter. Raises: KeyError for a name that is not in the contract."""
        self._totals[counter] += amount

    def set_total(self, counter: str, total: float) -> None:
        """Sets a counter whose total another component maintains."""
        self._totals[counter] = total

    def set_gauge(self, gauge: str, value: float) -> None:
        """Sets a gauge. Raises: KeyError for a name that is not in the contract."""
        if gauge not in NODE_GAUGES:
            raise KeyError(gauge)
        self._gauges[gauge] = value

    def set_gauges(self, values: Mapping[str, float]) -> None:
        """Sets several gauges. Raises: KeyError for a name that is not in the contract."""
        for gauge, value in values.items():
            self.set_gauge(gauge, value)

    def note_error(self, message: str) -> bool:
        """Records a message for the operator; the latest eight distinct messages are retained.

        Returns True if the message is new.
        """
        is_new = message not in self._errors
        if not is_new:
            self._errors.remove(message)
        self._errors.append(message)
        return is_new

    def observe_rate(self, now: float) -> None:
        """Updates the gauge `tokens_per_s` over the last ten seconds. now: seconds of the clock."""
        self._tokens.append((now, self._totals["tokens_generated"]))
        while now - self._tokens[0][0] > _RATE_WINDOW_S:
            self._tokens.popleft()
        (first_at, first), (last_at, last) = self._tokens[0], self._tokens[-1]
        self.set_gauge("tokens_per_s", (last - first) / (last_at - first_at) if last_at > first_at else 0.0)

    def counters(self) -> dict[str, float]:
        """Returns the counters since the node joined."""
        return {name: total - self._baseline[name] for name, total in self._totals.items()}

    def gauges(self) -> dict[str, float]:
        return dict(self._gauges)

    def errors(self) -> tuple[str, ...]:
        """Returns the retained error messages, newest last."""
        return tuple(self._errors)

    def mark_reported(self, counters: dict[str, float]) -> None:
        """Records acknowledged counters. Heartbeats may overlap, so a reported total never decreases."""
        for name, value in counters.items():
            self._reported[name] = max(self._reported[name], self._baseline[name] + value)

    def reset_baseline(self) -> None:
        """Restarts the counters from 0, plus the amounts that dataflow has not acknowledged."""
        self._baseline = dict(self._reported)
