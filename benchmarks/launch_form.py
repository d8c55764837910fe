"""Time of one check of the launch form: `python -m benchmarks.launch_form [RECIPE]`.

Measures the catalogue of the page with its program, as a user who types a learning rate, a group size, and a text. The
first check of a backend imports torch; it is reported apart.
"""

import asyncio
import sys
from collections.abc import Sequence
from time import perf_counter

from astraflow.runtime.clock import SystemClock
from web.launcher.catalogue import Catalogue

CHECKS = 100
KEYS = ("policies.solver.backend.learning_rate=0.0{}", "flows.train.group_size={}", "stop.steps={}")


async def measure(recipe: str, *, checks: int = CHECKS) -> dict[str, float]:
    """Returns the times of the first form, of the first changed backend, and of further checks. Seconds."""
    catalogue = Catalogue(clock=SystemClock())
    try:
        began_at = perf_counter()
        form = await catalogue.form(recipe)
        times = {"first form": perf_counter() - began_at}
        began_at = perf_counter()
        await catalogue.form(recipe, ["policies.solver.backend.learning_rate=abc"], role="operator")
        times["first change of a backend"] = perf_counter() - began_at
        further = []
        for number in range(2, checks + 2):
            began_at = perf_counter()
            await catalogue.form(recipe, [KEYS[number % len(KEYS)].format(number)], role="operator")
            await catalogue.form(recipe, text=f"{form.text}\n# {number}\n", role="operator")
            further.append((perf_counter() - began_at) / 2)
        return times | {"check, median": _quantile(further, 0.5), "check, p95": _quantile(further, 0.95)}
    finally:
        await catalogue.close()


def _quantile(times: Sequence[float], share: float) -> float:
    return sorted(times)[int(share * (len(times) - 1))]


if __name__ == "__main__":
    for name, seconds in asyncio.run(measure(sys.argv[1] if len(sys.argv) > 1 else "reverse")).items():
        print(f"{name}: {seconds * 1000:,.0f} ms")  # noqa: T201 (the result)
