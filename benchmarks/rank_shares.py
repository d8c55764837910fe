"""CPU and bytes with which a batch reaches a trainer's ranks: forwarded by the first rank, or pulled by each.

    python -m benchmarks.rank_shares [--tokens 256 1024 4096] [--ranks 8] [--repeats 5]

A batch of 32 groups of 8 rows with a prompt of 64 tokens; packs of at most 16,384 tokens. `forwarded` is what the
`fsdp` backend does, over a connection of one host. `pulled` is the alternative in which each rank pulls the whole batch
and plans it, because advantages and balance need all rows. The least of the repeats, CPU time of the calling thread
only: other work on the machine disturbs it less than the time.
"""

import argparse
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch

from astraflow.algorithms.config import AlgorithmConfig
from astraflow.contract.batches import Batch
from astraflow.runtime.service import prepare_for_large_messages
from astraflow.trainer.ranks.channel import Channel, Message
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.planner import StepPlanner
from astraflow.trainer.step.shares import Share
from astraflow.wire.codecs.data import decode_batch, encode_batch
from benchmarks.trainer_step.rows import batch_of

T = TypeVar("T")
GROUPS, MEMBERS, PROMPT = 32, 8, 64
VOCABULARY = 32_000
PACK_TOKENS = 16_384
COST = ForwardCost(per_token=3e9, per_pair=4 * 28 * 2048.0, per_target=6e8)
"""Cost of a model with 1.7 billion parameters."""


class Costs:
    """Least CPU seconds of each part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Runs a part and counts the CPU time of this thread."""
        began = time.thread_time()
        result = work()
        self.seconds[name] = min(self.seconds.get(name, float("inf")), time.thread_time() - began)
        return result


def forwarded(pieces: Sequence[bytes], planner: StepPlanner, costs: Costs) -> int:
    """Plans a batch and sends all shares but the first; returns the bytes of the arrays that are sent."""
    batch = costs.run("forwarded, first rank: decode", lambda: received(pieces))
    plan = costs.run("forwarded, first rank: plan and pack", lambda: planner.plan(batch))
    messages = costs.run(
        "forwarded, first rank: encode shares",
        lambda: [Message(facts=facts, arrays=arrays) for facts, arrays in map(Share.encode, plan.shares[1:])],
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ends = [Channel(socket.create_connection(listener.getsockname())), Channel(listener.accept()[0])]
    reading = threading.Thread(target=read, args=(ends[1], len(messages), costs))
    reading.start()
    costs.run("forwarded, first rank: send shares", lambda: send(ends[0], messages))
    reading.join()
    for end in ends:
        end.close()
    return sum(array.nbytes for message in messages for array in message.arrays.values())


def send(channel: Channel, messages: Sequence[Message]) -> None:
    """Sends the messages to one receiver, whose number does not change the sender's CPU time."""
    for message in messages:
        channel.send(message)


def read(channel: Channel, count: int, costs: Costs) -> None:
    """Receives and decodes shares, as many ranks do at the same time."""
    for _ in range(count):
        message = costs.run("forwarded, other rank: receive share", channel.receive)
        costs.run("forwarded, other rank: decode share", partial(Share.decode, message.facts, message.arrays))


def received(pieces: Sequence[bytes]) -> Batch:
    """Returns the batch of these messages."""
    batch = decode_batch(pieces)
    assert batch is not None
    return batch


def measure(tokens: int, ranks: int, repeats: int) -> tuple[dict[str, float], float, float]:
    """Returns CPU µs per sequence of the batch by part, and bytes per trained token: forwarded and pulled."""
    pieces = list(encode_batch(batch_of([(PROMPT, [tokens - PROMPT] * MEMBERS)] * GROUPS, VOCABULARY)))
    planner = StepPlanner(AlgorithmConfig(), data_ranks=ranks, micro_batch_tokens=PACK_TOKENS, cost=COST)
    batch = received(pieces)
    costs, sent_bytes = Costs(), 0
    for _ in range(repeats):
        sent_bytes = forwarded(pieces, planner, costs)
        costs.run("pulled, dataflow: encode for all ranks", lambda: [list(encode_batch(batch)) for _ in range(ranks)])
    figures = {name: 1e6 * seconds / (GROUPS * MEMBERS) for name, seconds in costs.seconds.items()}
    trained = GROUPS * MEMBERS * (tokens - PROMPT)
    return figures, sent_bytes / trained, ranks * sum(map(len, pieces)) / trained


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    prepare_for_large_messages()
    torch.set_num_threads(1)  # the CPU time of other threads is not counted
    results = [measure(tokens, options.ranks, options.repeats) for tokens in options.tokens]
    lines = [
        f"| CPU µs per sequence, {options.ranks} ranks | " + " | ".join(map(str, options.tokens)) + " |",
        "|---" * (1 + len(results)) + "|",
        *(
            f"| {name} | " + " | ".join(f"{figures[name]:.1f}" for figures, _, _ in results) + " |"
            for name in results[0][0]
        ),
        "| bytes per trained token, forwarded | " + " | ".join(f"{sent:.1f}" for _, sent, _ in results) + " |",
        "| bytes per trained token, pulled | " + " | ".join(f"{pulled:.1f}" for _, _, pulled in results) + " |",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
