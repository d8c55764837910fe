"""Cache of results over all nodes. Reports of large fleets share their nodes, so results are reused."""

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from astraflow.contract.reports.report import Report

T = TypeVar("T")
P = ParamSpec("P")

MAX_CACHED_RUNS = 8


def node_cache(
    key: Callable[Concatenate[Report, P], Hashable],
) -> Callable[[Callable[Concatenate[Report, P], T]], Callable[Concatenate[Report, P], T]]:
    """Caches a function of a report until the nodes of its run change.

    key: returns everything else that the result depends on. Per run, only results for the latest nodes are retained.
    """

    def decorate(read: Callable[Concatenate[Report, P], T]) -> Callable[Concatenate[Report, P], T]:
        cache: dict[str, tuple[object, dict[Hashable, Any]]] = {}

        @wraps(read)
        def cached(report: Report, /, *args: P.args, **more: P.kwargs) -> T:
            if report.run not in cache or cache[report.run][0] is not report.nodes:
                cache.pop(report.run, None)
                cache[report.run] = report.nodes, {}
                if len(cache) > MAX_CACHED_RUNS:
                    del cache[next(iter(cache))]
            answers, name = cache[report.run][1], key(report, *args, **more)
            if name not in answers:
                answers[name] = read(report, *args, **more)
            answer: T = answers[name]
            return answer

        return cached

    return decorate
