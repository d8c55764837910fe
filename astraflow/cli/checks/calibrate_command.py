"""`astraflow calibrate`: compares a reward with labelled examples."""

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astraflow.contract.errors import InvalidInput

if TYPE_CHECKING:
    from astraflow.rewards.calibration import CalibrationReport, LabelledExample


def calibrate(
    reward: Annotated[str, typer.Argument(metavar="JSON", help="""Reward, such as '{"kind": "llm_judge", ...}'.""")],
    examples: Annotated[
        Path, typer.Argument(help="JSON lines with completion, label (0 to 1), and the fields of the prompt.")
    ],
    threshold: Annotated[float, typer.Option(help="Score from which an example counts as good.")] = 0.5,
) -> None:
    """Compare a reward, such as a judge, with labelled examples, and print the report as JSON."""
    from astraflow.rewards.calibration import read_examples

    try:
        spec = json.loads(reward)
    except ValueError as problem:
        raise InvalidInput(
            f"cannot read the reward {reward!r}: {problem}; write kind and options as a JSON object",
            code="calibration.invalid_reward",
        ) from problem
    report = asyncio.run(_report(spec, read_examples(examples), threshold))
    sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")


async def _report(spec: dict[str, Any], examples: "list[LabelledExample]", threshold: float) -> "CalibrationReport":
    from astraflow.rewards import rewards
    from astraflow.rewards.calibration import calibrate as calibration
    from astraflow.runtime.plugins import start_managed

    built = rewards.build(spec)
    async with AsyncExitStack() as resources:
        await start_managed((built,), resources)
        return await calibration(built, examples, threshold=threshold)
