"""Report of `make gpu` in Markdown."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LARGEST_LOSS_DIFFERENCE = {"cpu": 1e-3, "cuda": 2e-2}
"""Between loops before any update: float32 on a CPU, bfloat16 on a GPU."""


@dataclass(kw_only=True)
class Results:
    """Results of tests and benchmarks; empty for parts that did not run."""

    device: str
    machine: Sequence[tuple[str, str]]
    tests: Mapping[str, int] = field(default_factory=dict)
    failures: Sequence[str] = ()
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Shape -> loop -> batch -> figures."""
    texts: dict[str, str] = field(default_factory=dict)
    """Title -> output of another benchmark, or why it did not run."""

    @property
    def problems(self) -> list[str]:
        """Failed tests, losses that differ, and benchmarks that failed."""
        return [
            *self.failures,
            *_different_losses(self.steps, LARGEST_LOSS_DIFFERENCE[self.device]),
            *_errors(self.steps),
        ]


def markdown(results: Results) -> str:
    """Returns the report."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Results) -> Iterator[str]:
    yield f"# Report of `make gpu` on {results.device}\n"
    if results.device == "cpu":
        yield "Small sizes on a CPU: this shows that everything runs, and says nothing about a GPU.\n"
    yield from _table(("fact", "value"), results.machine)
    yield "\n## Problems\n"
    yield from (f"- {problem}" for problem in results.problems or ["none"])
    yield "\n## Tests\n"
    yield ", ".join(f"{count} {outcome}" for outcome, count in results.tests.items()) or "not run"
    for shape, loops in results.steps.items():
        yield f"\n## Training steps: {shape}\n"
        yield from _step_table(loops)
    for title, text in results.texts.items():
        yield f"\n## {title}\n\n```\n{text.rstrip()}\n```"
    yield "\n## Raw values of the training steps\n"
    yield f"```json\n{json.dumps(results.steps, indent=1)}\n```"


def _step_table(loops: Mapping[str, Any]) -> Iterator[str]:
    head = (
        "rows",
        "loop",
        "micro-batch",
        "served tokens/s (lowest to highest)",
        "needed tokens/s",
        "MFU",
        "peak GiB",
        "local is faster by",
    )
    rows = []
    for name, batches in loops.items():
        if "error" in batches:
            rows.append(("all", name, "", batches["error"], "", "", "", ""))
            continue
        for batch, figures in batches.items():
            rows.append((batch, name, *_cells(figures), _advantage(loops, name, batch)))
    yield from _table(head, sorted(rows, key=lambda row: list(batches_of(loops)).index(row[0])))


def batches_of(loops: Mapping[str, Any]) -> dict[str, None]:
    """Returns the names of the batches in order."""
    return dict.fromkeys([batch for batches in loops.values() if "error" not in batches for batch in batches] + ["all"])


def _cells(figures: Mapping[str, Any]) -> tuple[str, ...]:
    if "error" in figures:
        return "", figures["error"], "", "", ""
    served = [figures["tokens"] / seconds for seconds in figures["seconds"]]
    median_s = statistics.median(figures["seconds"])
    mfu = figures["flops"] / median_s / figures["peak_flops"] if figures["peak_flops"] else None
    return (
        f"{figures['micro_batch_tokens']:,}",
        f"{statistics.median(served):,.0f} ({min(served):,.0f} to {max(served):,.0f})",
        f"{figures['computed_tokens'] / median_s:,.0f}",
        "unknown peak" if mfu is None else f"{mfu:.1%}",
        f"{figures['peak_bytes'] / 2**30:.1f}",
    )


def _advantage(loops: Mapping[str, Any], name: str, batch: str) -> str:
    """Returns how many times as fast the fastest local loop is as this other loop, on the same batch."""
    if name.startswith("local"):
        return ""
    times_s = [_median_s(batches, batch) for kind, batches in loops.items() if kind.startswith("local")]
    local, other = min((value for value in times_s if value is not None), default=None), _median_s(loops[name], batch)
    return "" if local is None or other is None else f"{other / local:.2f}"


def _median_s(batches: Mapping[str, Any], batch: str) -> float | None:
    seconds = batches.get(batch, {}).get("seconds") if "error" not in batches else None
    return statistics.median(seconds) if seconds else None


def _different_losses(steps: Mapping[str, Any], bound: float) -> Iterator[str]:
    for shape, loops in steps.items():
        for batch in batches_of(loops):
            losses = {
                name: by_batch[batch]["loss"]
                for name, by_batch in loops.items()
                if "loss" in by_batch.get(batch, ()) and "float8" not in name  # which rounds to two digits
            }
            if losses and max(losses.values()) - min(losses.values()) > bound:
                yield f"{shape}, {batch}: the losses of the first step differ: {losses}"


def _errors(steps: Mapping[str, Any]) -> Iterator[str]:
    for shape, loops in steps.items():
        for name, batches in loops.items():
            if str(batches.get("error", "")).startswith("failed"):
                yield f"{shape}, {name}: {batches['error']}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(row)} |"
