"""Size of deltas and speed of making and applying them, against other formats and a copy in memory.

    python -m benchmarks.weights [--megabytes 64] [--densities 0.2 0.5 1 2 5] [--repeat 5] [--svg FILE]
    python -m benchmarks.weights --recorded RUN/weights/POLICY [--behind 1 8 32]

The first works on bfloat16 weights under a real Adam with synthetic gradients (`updates.Training`), at learning rates
that make the asked-for shares of the elements change. GB/s are of model bytes for a second of one core's time, the best
of several rounds in which all codecs take turns; decoding always writes into the weights in place, so that `apply`
is all of it. Every result is compared with the target, bit for bit. `--threads` measures wall time for both
levels on that many threads, and in as many independent processes: it needs an otherwise idle machine.
`--recorded` uses versions from the store of a real run (lower bound: `entropy.floor_bytes`):

    astraflow run reverse/small_steps --headless --no-web --run-dir RUN
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from astraflow.runtime.plot import Curve, line_plot
from astraflow.runtime.service import prepare_for_large_messages
from astraflow.weights.tensors import tensor_hashes
from benchmarks.weights.codecs import CODECS, Codec, levels
from benchmarks.weights.entropy import floor_bytes
from benchmarks.weights.processes import measured
from benchmarks.weights.updates import Pair, Training, recorded, spans

Result = TypeVar("Result")

_DISTINCT = {name: codec for name, codec in CODECS.items() if "numpy" not in name}
"""Codecs without duplicates that produce the same bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One codec on one pair."""

    codec: str
    density: float
    """Share of the elements that changed."""
    size_bytes: int
    bytes_per_changed: float
    encode_gb_per_s: float
    apply_gb_per_s: float


def measure(
    pair: Pair, codecs: Mapping[str, Codec], *, repeat: int, clock: Callable[[], float] = time.thread_time
) -> list[Measured]:
    """Measures all codecs on one pair, in turn; the best time of each. Raises: ValueError when a result is wrong."""
    changed = pair.changed
    encode_s = dict.fromkeys(codecs, float("inf"))
    apply_s = dict(encode_s)
    sizes: dict[str, int] = {}
    for _ in range(repeat):
        for name, codec in codecs.items():
            data, seconds = _timed(partial(codec.encode, pair), clock)
            encode_s[name] = min(encode_s[name], seconds)
            buffer = pair.old.copy()
            _, seconds = _timed(partial(codec.apply, data, pair, buffer), clock)
            apply_s[name] = min(apply_s[name], seconds)
            sizes[name] = len(data)
            if not np.array_equal(buffer, pair.new):
                raise ValueError(f"{name} did not lead to the target")
    return [
        Measured(
            codec=name,
            density=changed / pair.elements,
            size_bytes=sizes[name],
            bytes_per_changed=sizes[name] / changed,
            encode_gb_per_s=pair.new.nbytes / encode_s[name] / 1e9,
            apply_gb_per_s=pair.new.nbytes / apply_s[name] / 1e9,
        )
        for name in codecs
    ]


def in_processes(pair: Pair, processes: int, *, repeat: int, like: Sequence[Measured]) -> list[Measured]:
    """Measures the same work in processes. like: rows of the same codecs in one process, which have the sizes."""
    times_by_level = measured(pair, levels(workers=1), processes=processes, repeat=repeat) if processes > 1 else {}
    rows = {row.codec: row for row in like}
    return [
        replace(
            rows[name],
            codec=name.replace("threads: 1", f"processes: {processes}"),
            encode_gb_per_s=pair.new.nbytes / encode_s / 1e9,
            apply_gb_per_s=pair.new.nbytes / apply_s / 1e9,
        )
        for name, (encode_s, apply_s) in times_by_level.items()
    ]


def floors(pair: Pair, *, repeat: int) -> dict[str, float]:
    """Returns GB/s of model bytes of the unavoidable operations: reading, copying, verifying."""
    old, new = pair.bits
    mask, copy = np.empty(2**20, dtype=np.bool_), np.empty_like(old)

    def compare() -> None:
        for start in range(0, len(old), len(mask)):
            part = slice(start, start + len(mask))
            np.not_equal(old[part], new[part], out=mask[: len(old[part])])

    work: dict[str, Callable[[], object]] = {
        "memcpy": lambda: np.copyto(copy, new),
        "old != new": compare,
        "BLAKE3": lambda: tensor_hashes(pair.target.tensors, pair.new),
    }
    return {
        name: pair.new.nbytes / min(_timed(job, time.thread_time)[1] for _ in range(repeat)) / 1e9
        for name, job in work.items()
    }


def table(rows: Sequence[Measured]) -> str:
    """Formats as Markdown: a line per codec, for each density bytes per changed element and GB/s."""
    densities = sorted({row.density for row in rows})
    head = "| | " + " | ".join(f"{density:.2%}: B · encode · apply" for density in densities) + " |"
    lines = [head, "|---|" + "---|" * len(densities)]
    for codec in dict.fromkeys(row.codec for row in rows):
        cells = [
            f"{row.bytes_per_changed:.2f} · {row.encode_gb_per_s:.2f} · {row.apply_gb_per_s:.2f}"
            for row in sorted((row for row in rows if row.codec == codec), key=lambda row: row.density)
        ]
        lines.append(f"| {codec} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(rows: Sequence[Measured]) -> str:
    """Draws bytes per changed element over density."""
    curves = [
        Curve(
            name=codec,
            points=tuple(
                sorted((100 * row.density, row.bytes_per_changed) for row in rows if row.codec == codec),
            ),
        )
        for codec in _DISTINCT
        if codec != "index64 + value"  # ten bytes everywhere: would compress the scale of the others
    ]
    return line_plot(curves, x_label="% of the elements changed", y_label="bytes per changed element")


def recorded_table(folder: Path, behind: Sequence[int]) -> str:
    """Formats sizes on recorded versions: all pairs at this distance together."""
    versions = recorded(folder)
    lines = [
        "| versions behind | deltas | elements changed | "
        + " | ".join(_DISTINCT)
        + " | fast, dense, floor, floor by tensor: B per parameter |",
        "|---|" + "---|" * (len(_DISTINCT) + 3),
    ]
    for distance in behind:
        pairs = list(spans(versions, distance))
        if not pairs:
            continue
        changed, elements = sum(pair.changed for pair in pairs), sum(pair.elements for pair in pairs)
        sizes = {name: sum(len(codec.encode(pair)) for pair in pairs) for name, codec in _DISTINCT.items()}
        cells = [f"{size / changed:.2f} B" for size in sizes.values()]
        floors_ = [sum(floor_bytes(pair, by_tensor=by_tensor) for pair in pairs) for by_tensor in (False, True)]
        each = ", ".join(f"{size / elements:.4f}" for size in (sizes["fast"], sizes["dense"], *floors_))
        lines.append(f"| {distance} | {len(pairs)} | {changed / elements:.2%} | {' | '.join(cells)} | {each} |")
    return "\n".join(lines)


def main() -> None:
    """Measures, prints the tables, draws the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64, help="of weights")
    parser.add_argument("--densities", type=float, nargs="+", default=[0.2, 0.5, 1, 2, 5], help="percent")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", help="measure by the clock, on so many threads")
    parser.add_argument("--recorded", type=Path, help="folder of a policy in a store's directory")
    parser.add_argument("--behind", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    arguments = parser.parse_args()
    prepare_for_large_messages()  # as the services do
    if arguments.recorded:
        print(recorded_table(arguments.recorded, arguments.behind))  # noqa: T201
        return
    training = Training(size_bytes=arguments.megabytes * 10**6)
    rows: list[Measured] = []
    if arguments.threads:
        pair = training.pair(arguments.densities[0] / 100)
        for threads in arguments.threads:
            rows += measure(pair, levels(workers=threads), repeat=arguments.repeat, clock=time.perf_counter)
            rows += in_processes(pair, threads, repeat=arguments.repeat, like=rows)
        print(table(rows))  # noqa: T201
        return
    for density in arguments.densities:
        pair = training.pair(density / 100)
        rates = {name: f"{rate:.1f} GB/s" for name, rate in floors(pair, repeat=arguments.repeat).items()}
        print(f"{density} %: {rates}", file=sys.stderr)  # noqa: T201
        rows += measure(pair, CODECS, repeat=arguments.repeat)
    print(table(rows))  # noqa: T201
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    if arguments.svg:
        arguments.svg.write_text(plot(rows))


def _timed(work: Callable[[], Result], clock: Callable[[], float]) -> tuple[Result, float]:
    began = clock()
    result = work()
    return result, clock() - began


if __name__ == "__main__":
    main()
