"""What a run tells others of itself besides its page: what this process knows of that, from the run's folder.

Nothing is asked and nothing guessed: a run whose folder is not on this machine, or not this user's, is not known.
"""

import asyncio
from dataclasses import dataclass

from astraflow.contract.errors import AstraFlowError
from astraflow.runtime.runs import RunFacts, RunFolder, active_runs
from web.parts import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Exports:
    """What is known of how a run was started."""

    facts: RunFacts | None
    """None where its folder is not known here."""
    folder: str = ""
    problem: str = ""
    """Why its folder could not be read, where it could not."""


async def known_exports(parts: Parts) -> Exports:
    """Of the run that is shown. A failure is part of what is known, never raised."""
    address = parts.settings.dataflow
    followed = next((one.folder for one in parts.followed.all if one.folder and one.settings.dataflow == address), None)
    try:
        return await asyncio.to_thread(_read, followed, address)
    except (AstraFlowError, OSError) as problem:
        return Exports(facts=None, problem=str(problem))


def _read(followed: RunFolder | None, address: str) -> Exports:
    found = followed or next((one for one in active_runs() if address and one.facts.dataflow == address), None)
    return Exports(facts=found.facts, folder=str(found.path)) if found is not None else Exports(facts=None)
