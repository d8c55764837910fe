"""What is reckoned over all nodes is reckoned once for each look at them: reports of large fleets share their nodes."""

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from astraflow.contract.reports import Report

T = TypeVar("T")
P = ParamSpec("P")

MOST_RUNS = 8


def per_nodes(
    key: Callable[Concatenate[Report, P], Hashable],
) -> Callable[[Callable[Concatenate[Report, P], T]], Callable[Concatenate[Report, P], T]]:
    """Keep what a function of a report says until its run has other nodes.

    key: everything else that the answer depends on. Only the nodes that were seen last are held, for each run.
    """

    def keeping(read: Callable[Concatenate[Report, P], T]) -> Callable[Concatenate[Report, P], T]:
        kept: dict[str, tuple[object, dict[Hashable, Any]]] = {}

        @wraps(read)
        def known(report: Report, /, *args: P.args, **more: P.kwargs) -> T:
            if report.run not in kept or kept[report.run][0] is not report.nodes:
                kept.pop(report.run, None)
                kept[report.run] = report.nodes, {}
                if len(kept) > MOST_RUNS:
                    del kept[next(iter(kept))]
            answers, name = kept[report.run][1], key(report, *args, **more)
            if name not in answers:
                answers[name] = read(report, *args, **more)
            answer: T = answers[name]
            return answer

        return known

    return keeping
