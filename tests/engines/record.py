"""Records the answers of the real engine servers: `python -m tests.engines.record [sglang] [vllm]`.

Writes `tests/engines/recorded/`, with which the answers of the simulated servers are compared. Needs the environments
of `astraflow engines install`.
"""

import asyncio
import json
import re
import sys
from pathlib import Path

import torch

from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.raas.engines.server.engine import ServerEngine
from tests.engines.answers import PROMPT, file_name, record, record_adapters, recording
from tests.engines.real import KINDS, adapters, delta_to, server, version

QUIET = {"probe_every_s": 600.0, "stall_s": 600.0}
"""Options without probes, whose answers are not to be recorded."""
HEAD_START_S = 0.2
"""Seconds in which a server has generated the first of 300 tokens."""
RECORDED = Path(__file__).parent / "recorded"


def main() -> None:
    """Records each engine in turn."""
    torch.set_num_threads(1)
    for kind in sys.argv[1:] or KINDS:
        with recording() as recorder:
            engine = server(kind, **QUIET)
            asyncio.run(record(engine, recorder, version, delta_to, begun=_begun))
            answers = asyncio.run(record_adapters(server(kind, lora=True, **QUIET), recorder, adapters))
        for route, steps in answers.items():
            path = RECORDED / file_name(kind, route)
            path.write_text(json.dumps({"route": route, "answers": _shortened(steps)}, indent=1) + "\n")


async def _begun(engine: ServerEngine, request_id: str, sampling: Sampling) -> "asyncio.Task[Generation]":
    task = asyncio.create_task(engine.generate(request_id, PROMPT, sampling))
    await asyncio.sleep(HEAD_START_S)
    return task


def _shortened(content: object) -> object:
    """Returns the content without folders of this machine, and with at most four items per list or open mapping."""
    if isinstance(content, dict):
        items = list(content.items())
        if len(items) > 4 and all("." in key for key, _ in items):
            items = items[:4]
        return {key: _shortened(value) for key, value in items}
    if isinstance(content, list):
        return [_shortened(item) for item in content[:4]]
    return re.sub(r"[^\s\"]*astraflow-engine-\w+", "MODEL", content) if isinstance(content, str) else content


if __name__ == "__main__":
    main()
