"""Throughput of a whole run: `astraflow run` with real nodes, whose engine answers at once, and a trainer that sleeps.

    python -m benchmarks.dataflow.whole_run [--tokens 512 4096] [--nodes 1 2 8] [--seconds 8]

All parts of a run take part: node processes with workflow, reward and scripted engine, the weight store with
a version for each step, trainer, supervisor. On few cores this measures the nodes rather than dataflow: a node makes
every token array, and here all processes share the cores.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from astraflow.contract.reports.report import Report
from tests.system.processes import running

RECIPE = Path(__file__).parent / "recipe.toml"


async def measure(tokens: int, nodes: int, seconds: float) -> tuple[float, Report]:
    """Returns trained sequences a second over that time, after the first steps."""
    sets = (
        f"nodes.count={nodes}",
        "nodes.capacity=512",
        "policies.solver.max_staleness=8",
        "policies.solver.backend.step_s=0",
        f"flows.train.workflow.max_new_tokens={tokens}",
        f'nodes.engine.tokens={{kind="constant", mean={tokens - 64}}}',
        "nodes.engine.first_token_s={mean=0}",
        "nodes.engine.tokens_per_s=0",
        "nodes.text_share=0",
        "stop.steps=1000000",
    )
    options = [part for setting in sets for part in ("--set", setting)]
    with tempfile.TemporaryDirectory(prefix="astraflow-whole-") as folder:
        async with running(str(RECIPE), Path(folder) / "run", "--no-web", *options) as run:
            before = await run.steps_more(10)
            await asyncio.sleep(seconds)
            after = await run.report()
    trained = after.streams[0].groups.trained - before.streams[0].groups.trained
    return 8 * trained / (after.at - before.at), after


async def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 4096])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    sys.stdout.write("| tokens | nodes | trained sequences/s | trainer waits | stale |\n|---|---|---|---|---|\n")
    for tokens in options.tokens:
        for nodes in options.nodes:
            rate, report = await measure(tokens, nodes, options.seconds)
            stream = report.streams[0]
            stale = stream.groups.dropped.get("stale", 0) / max(1, stream.groups.admitted)
            sys.stdout.write(
                f"| {tokens} | {nodes} | {rate:,.0f} | {stream.training.wait_fraction:.0%} | {stale:.1%} |\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
