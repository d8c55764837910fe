"""Promises of an interface: how a check reports that one is broken, and its result."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter

from astraflow.contract.plugins import CheckResult, Outcome
from astraflow.runtime.plugins import plugin_cause


class Broken(Exception):
    """The subject does not keep the promise; the message says what happened instead."""


class Unsupported(Exception):
    """The promise cannot be checked on this subject; the message says why."""


def require(holds: object, problem: str) -> None:
    """Raises: Broken, unless the condition holds."""
    if not holds:
        raise Broken(problem)


async def result_of(
    promise: str, check: Callable[[], Awaitable[str | None]], *, limit_s: float | None = None
) -> CheckResult:
    """Runs a check, which returns a measured value if there is one; whatever it raises breaks the promise.

    limit_s: time limit. Seconds; None for none.
    """
    began_at = perf_counter()
    outcome, detail = Outcome.FAILED, ""
    try:
        async with asyncio.timeout(limit_s):
            outcome, detail = Outcome.PASSED, await check() or ""
    except Unsupported as reason:
        outcome, detail = Outcome.UNSUPPORTED, str(reason)
    except Broken as broken:
        detail = str(broken)
    except TimeoutError:
        detail = "a step took too long" if limit_s is None else f"no end after {limit_s:g} s"
    except Exception as problem:  # a plugin may raise anything; the table shows it
        detail = plugin_cause(problem)
    return CheckResult(promise=promise, outcome=outcome, detail=detail, seconds=perf_counter() - began_at)


def result_from(promise: str, problems: Sequence[str], *, shown: int = 5) -> CheckResult:
    """Returns the result of a check that collected the ways in which a promise is broken. shown: problems, at most."""
    distinct = list(dict.fromkeys(problems))
    further = [f"and {len(distinct) - shown} more"] if len(distinct) > shown else []
    outcome = Outcome.FAILED if problems else Outcome.PASSED
    return CheckResult(promise=promise, outcome=outcome, detail="; ".join([*distinct[:shown], *further]))
