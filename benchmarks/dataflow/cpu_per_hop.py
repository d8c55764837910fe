"""CPU microseconds of each hop of the data plane per sequence, in one process, without gRPC.

    python -m benchmarks.dataflow.cpu_per_hop [--tokens 512 4096]

Counts only the CPU of the calling thread, without the journal's thread and other processes. The trainer plans each
batch as one rank does: advantages, and packs of at most 16,384 tokens. Its figures are the metrics and the text of the
probe. No step is computed.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import structlog
import torch

from astraflow.algorithms.config import AlgorithmConfig
from astraflow.contract.batches import Batch, StepReport
from astraflow.contract.ids import NodeId, PolicyId, PoolId, Version
from astraflow.contract.nodes import NodeFacts
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode, Trajectory
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.operations.nodes import NodeOperations
from astraflow.dataflow.operations.trainers import TrainerOperations
from astraflow.dataflow.service import build_run
from astraflow.dataflow.storage.journal import Journal
from astraflow.recipe.config import dataflow_config
from astraflow.recipe.loading import Check, load_recipe
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.service import prepare_for_large_messages
from astraflow.trainer.backends.probe import probe_text_from_batch
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.metrics import step_metrics
from astraflow.trainer.step.planner import StepPlanner
from astraflow.trainer.step.runner import StepResult
from astraflow.wire.codecs.data import decode_batch, decode_lease, decode_push, encode_batch, encode_lease, encode_push
from astraflow.wire.pb import data_plane_pb2 as pb

RECIPE = Path(__file__).parent / "recipe.toml"
POLICY = PolicyId("solver")
PROMPT_TOKENS = 64
PUSH_BYTES = 4 * 2**20
ROUNDS = 20
PACK_TOKENS = 16_384
PROBE_SEQUENCES, PROBE_TOKENS = 8, 256
COST = ForwardCost(per_token=3e9, per_pair=4 * 28 * 2048.0, per_target=6e8)
"""Cost of a model with 1.7 billion parameters."""
NO_STEP = StepResult(
    loss=0.0,
    updates=(),
    critic_updates=(),
    critic={},
    token_means={},
    mismatch={},
    seconds={},
    passes=0.0,
    critic_passes=0.0,
)


class Hops:
    """CPU seconds by hop."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def hop(self, name: str) -> Iterator[None]:
        """Counts the CPU time of the block."""
        began = time.thread_time()
        yield
        self.seconds[name] += time.thread_time() - began


async def measure(tokens: int, folder: Path) -> tuple[Hops, int]:
    """Leases, pushes and trains `ROUNDS` pushes; returns CPU by hop, and the number of sequences."""
    config = dataflow_config(load_recipe(str(RECIPE), check=Check.NONE), run="hops")
    journal = Journal(folder / "journal.sqlite")
    archive = Archive(folder / "history.sqlite", clock=SystemClock())
    run = build_run(config, journal=journal, archive=archive, clock=SystemClock())
    run.restore(grace_s=1)
    committing = asyncio.create_task(journal.run())
    nodes, trainers, hops = NodeOperations(run), TrainerOperations(run), Hops()
    planner = StepPlanner(AlgorithmConfig(), data_ranks=1, micro_batch_tokens=PACK_TOKENS, cost=COST)
    node = nodes.membership.join(_facts()).id
    trainers.attach(POLICY, Version(0), backend="none", is_simulated=True)
    per_push = max(8, PUSH_BYTES // (8 * tokens) // 8 * 8)
    sequences = 0
    for _ in range(ROUNDS):
        sequences += await _produced(nodes, node, hops, tokens, per_push)
        await _trained(trainers, planner, run.streams[POLICY].version, hops)
    committing.cancel()
    await asyncio.gather(committing, return_exceptions=True)
    archive.close()
    return hops, sequences


async def _produced(nodes: NodeOperations, node: NodeId, hops: Hops, tokens: int, count: int) -> int:
    """Leases up to `count` tasks, as many as pacing allows, and pushes their episodes; returns their number."""
    with hops.hop("dataflow: lease"):
        lease = await nodes.leasing.lease(node, count, versions={POLICY: Version(0)}, wait_s=0)
    with hops.hop("dataflow: encode lease"):
        message = encode_lease(lease).SerializeToString()
    with hops.hop("node: decode lease"):
        lease = decode_lease(pb.LeaseReply.FromString(message))
    episodes = [_episode(task, node, tokens) for task in lease.tasks]
    with hops.hop("node: encode push"):
        raw = encode_push(node, episodes)
    with hops.hop("dataflow: decode push"):
        sender, received = decode_push(raw, is_checked=True)
    with hops.hop("dataflow: take, admit, buffer"):
        await nodes.results.push(sender, received, raw=raw)
    return len(episodes)


async def _trained(trainers: TrainerOperations, planner: StepPlanner, version: Version, hops: Hops) -> None:
    while True:
        with hops.hop("dataflow: pull"):
            batch = await trainers.pull(POLICY, version, wait_s=0)
        if batch is None:
            return
        with hops.hop("dataflow: encode batch"):
            pieces = list(encode_batch(batch))
        with hops.hop("trainer: decode batch"):
            received = decode_batch(pieces)
        assert received is not None
        _planned(planner, received, hops)
        version = Version(version + 1)
        with hops.hop("dataflow: report step"):
            await trainers.report_step(
                StepReport(batch=batch.id, policy=POLICY, version=version, wait_s=0, compute_s=1, publish_s=0)
            )


def _planned(planner: StepPlanner, batch: Batch, hops: Hops) -> None:
    with hops.hop("trainer: plan and pack"):
        plan = planner.plan(batch)
    with hops.hop("trainer: figures"):
        step_metrics(batch, plan, NO_STEP, duration_s=1.0, peak_flops=None)
        probe_text_from_batch(batch, sequences=PROBE_SEQUENCES, tokens=PROBE_TOKENS)


def _episode(task: Task, node: NodeId, tokens: int) -> Episode:
    written = tokens - PROMPT_TOKENS
    trajectory = Trajectory(
        policy=POLICY,
        tokens=np.arange(tokens, dtype=np.int32),
        logprobs=np.full(written, -0.5, dtype=np.float32),
        spans=(
            Span(author=Author.CONTEXT, length=PROMPT_TOKENS),
            Span(author=Author.MODEL, length=written, version=Version(0)),
        ),
        reward=task.member / 8,
    )
    return Episode(task=task.id, node=node, trajectories=(trajectory,))


def _facts() -> NodeFacts:
    return NodeFacts(
        name="hops",
        pool=PoolId("load"),
        region="",
        engine="load",
        is_simulated=True,
        hardware="",
        capacity=1,
        price_per_hour=0.0,
        software="",
    )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 4096])
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    prepare_for_large_messages()
    torch.set_num_threads(1)  # the CPU time of other threads is not counted
    cpu_us: dict[int, dict[str, float]] = {}
    for tokens in options.tokens:
        with tempfile.TemporaryDirectory(prefix="astraflow-hops-") as folder:
            hops, sequences = asyncio.run(measure(tokens, Path(folder)))
        cpu_us[tokens] = {name: 1e6 * seconds / sequences for name, seconds in hops.seconds.items()}
    sys.stdout.write("| CPU µs for a sequence of | " + " | ".join(map(str, cpu_us)) + " |\n")
    sys.stdout.write("|---" * (1 + len(cpu_us)) + "|\n")
    for name in next(iter(cpu_us.values())):
        sys.stdout.write(
            f"| {name} | " + " | ".join(f"{figures_row[name]:.1f}" for figures_row in cpu_us.values()) + " |\n"
        )


if __name__ == "__main__":
    main()
