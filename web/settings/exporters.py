"""Exporters of a run (metrics, traces, autoscaler), read from the run's folder.

Nothing is requested or guessed: the exporters of a run whose folder is not readable on this machine are unknown.
"""

import asyncio
from dataclasses import dataclass

from astraflow.contract.errors import AstraFlowError
from astraflow.runtime.run_folders import RunFacts, RunFolder, active_runs
from web.requests.context import RequestContext


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterFacts:
    """Known start facts of a run."""

    facts: RunFacts | None
    """None where its folder is unknown."""
    folder: str = ""
    problem: str = ""
    """Cause why its folder could not be read; empty otherwise."""


async def exporter_facts(context: RequestContext) -> ExporterFacts:
    """Returns the facts of the shown run. A failure becomes part of the result and is never raised."""
    address = context.settings.dataflow
    followed = next(
        (run.folder for run in context.followed.all if run.folder and run.settings.dataflow == address), None
    )
    try:
        return await asyncio.to_thread(_read, followed, address)
    except (AstraFlowError, OSError) as error:
        return ExporterFacts(facts=None, problem=str(error))


def _read(followed: RunFolder | None, address: str) -> ExporterFacts:
    folder = followed or next((run for run in active_runs() if address and run.facts.dataflow == address), None)
    return (
        ExporterFacts(facts=folder.facts, folder=str(folder.path)) if folder is not None else ExporterFacts(facts=None)
    )
