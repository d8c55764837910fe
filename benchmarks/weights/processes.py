"""Upper bound of the codec's speed in processes, each with its share of the elements, without collecting results."""

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.synchronize import Barrier
from typing import TYPE_CHECKING

from astraflow.weights.codec.delta import BLOCK_ELEMENTS
from benchmarks.weights.codecs import Codec
from benchmarks.weights.updates import Pair, pair_of

if TYPE_CHECKING:
    from multiprocessing.queues import Queue


def shares(pair: Pair, processes: int) -> list[Pair]:
    """Returns this many pairs, of whole blocks except for the last."""
    old, new = pair.bits
    blocks = -(-len(old) // BLOCK_ELEMENTS)
    size = -(-blocks // processes) * BLOCK_ELEMENTS
    return [pair_of(old[start : start + size], new[start : start + size]) for start in range(0, len(old), size)]


def measured(pair: Pair, codecs: Mapping[str, Codec], *, processes: int, repeat: int) -> dict[str, tuple[float, float]]:
    """Returns seconds until the last process has encoded, and applied, its share: the best of some rounds, by codec."""
    context = multiprocessing.get_context("fork")
    parts = shares(pair, processes)
    barrier, results = context.Barrier(len(parts)), context.Queue()
    workers = [
        context.Process(target=_work, args=(index == 0, part, codecs, repeat, barrier, results))
        for index, part in enumerate(parts)
    ]
    for worker in workers:
        worker.start()
    times_s: dict[str, tuple[float, float]] = results.get(timeout=600)
    for worker in workers:
        worker.join()
    return times_s


def _work(
    tells: bool,
    part: Pair,
    codecs: Mapping[str, Codec],
    repeat: int,
    barrier: Barrier,
    results: "Queue[dict[str, tuple[float, float]]]",
) -> None:
    times_s: dict[str, tuple[float, float]] = {}
    for name, codec in codecs.items():
        data = codec.encode(part)
        buffer = part.old.copy()
        rounds = []
        for _ in range(repeat):
            encode_s = _together(partial(codec.encode, part), barrier)
            buffer[:] = part.old
            rounds.append((encode_s, _together(partial(codec.apply, data, part, buffer), barrier)))
        times_s[name] = _best(rounds)
    if tells:
        results.put(times_s)


def _together(work: Callable[[], object], barrier: Barrier) -> float:
    barrier.wait()
    began = time.perf_counter()
    work()
    barrier.wait()
    return time.perf_counter() - began


def _best(rounds: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return min(encode_s for encode_s, _ in rounds), min(apply_s for _, apply_s in rounds)
