"""Cost of the weight store: bytes and seconds of catching up, uploading versions, and serving bytes.

    python -m benchmarks.weight_store [--elements 33554432] [--learning-rate 1e-6]

A bf16 model moved by Adam (`walk`), one thread for the codec. Catching up compares the chain of deltas with one
direct delta, for which the store rebuilds the old bits from the nearest full snapshot. Uploading compares the formats
of a publisher on the same host. Serving compares replies that are assembled by hand with those that protobuf makes.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from astraflow.runtime.logs import configure
from astraflow.runtime.service import prepare_for_large_messages
from benchmarks.weight_store import catch_up, serving, uploads

DISTANCES = (1, 2, 3, 4, 8, 16, 24, 32)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=2**25)
    parser.add_argument("--learning-rate", type=float, default=1e-6)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each case of serving")
    options = parser.parse_args()
    configure(level="ERROR")
    prepare_for_large_messages()
    console = Console(width=120)
    model = {"elements": options.elements, "learning_rate": options.learning_rate}
    with tempfile.TemporaryDirectory() as directory:
        console.print(_catching_up(catch_up.measure(Path(directory), distances=DISTANCES, **model)))
    with tempfile.TemporaryDirectory() as directory:
        console.print(_taking_in(uploads.measure(Path(directory), count=4, **model)))
    cases = [(replies, streams) for streams in (1, 4) for replies in ("message", "raw")]
    console.print(_serving([asyncio.run(_served(*case, options)) for case in cases]))


async def _served(replies: str, streams: int, options: argparse.Namespace) -> serving.Serving:
    return await serving.measure(replies, elements=options.elements, streams=streams, seconds=options.seconds)


def _catching_up(rows: list[catch_up.CatchUp]) -> Table:
    table = Table("behind", "chain, B/param", "direct", "direct/chain", "floor", "rebuild s", "encode s")
    for row in rows:
        share = row.max_direct_delta_bytes / row.chain_bytes
        sizes = f"{row.chain_bytes:.4f}", f"{row.max_direct_delta_bytes:.4f}", f"{share:.2f}", f"{row.floor_bytes:.4f}"
        table.add_row(str(row.behind), *sizes, f"{row.rebuild_s:.2f}", f"{row.encode_s:.2f}")
    return table


def _taking_in(rows: list[uploads.Upload]) -> Table:
    table = Table("sent", "publisher encodes, s", "store takes in, s", "both, s")
    for row in rows:
        seconds = row.publisher_s, row.store_s, row.publisher_s + row.store_s
        table.add_row(row.sent, *(f"{value:.3f}" for value in seconds))
    return table


def _serving(rows: list[serving.Serving]) -> Table:
    table = Table("replies", "streams", "GB/s", "store's CPU s/GB")
    for row in rows:
        table.add_row(row.replies, str(row.streams), f"{row.gb_per_s:.2f}", f"{row.server_s_per_gb:.2f}")
    return table


if __name__ == "__main__":
    main()
