"""Metadata and configuration of one run: what people edit, and what the run was launched with."""

import asyncio
import shlex
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session

from astraflow.client.local_runs import LocalRun
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.folders.run_metadata import RunMetadata, change_metadata
from web.components import formats
from web.database.db import Database
from web.database.tables import RunRecord
from web.launcher.options import LaunchOptions
from web.requests.commands import Commands
from web.requests.recipe_settings import SettingChange, changes_of, read_settings, settings_toml
from web.requests.run_lookup import ShownRun
from web.security.audit_log import AuditedCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """View model of the configuration of a run."""

    facts: tuple[tuple[str, str], ...]
    changes: tuple[SettingChange, ...] | None
    """Settings that differ from the recipe; None when the recipe is not known."""
    toml: str
    """Resolved recipe; empty when it cannot be read."""
    command: str
    """Command that repeats the run; empty when it is not known."""


def record_metadata(record: RunRecord | None, run: LocalRun | None) -> RunMetadata:
    """Returns the metadata in the folder of a run, or in the record of a run elsewhere."""
    if run is not None:
        return run.metadata
    try:
        text = record.metadata_json if record is not None else ""
        return RunMetadata.model_validate_json(text) if text else RunMetadata()
    except ValueError:
        return RunMetadata()  # of another release


async def annotate(shown: ShownRun, commands: Commands, changes: dict[str, Any]) -> RunMetadata:
    """Changes some fields of the metadata of a run; audited.

    Raises: HTTPException for an unknown run; InvalidInput for an invalid value or an unwritable folder.
    """
    record = await shown.record()
    run = await shown.local(record)
    after = {
        name: ", ".join(value) if isinstance(value, list | tuple) else str(value) for name, value in changes.items()
    }
    command = AuditedCommand(action="run.annotate", target=record.name, after=after)

    async def save() -> RunMetadata:
        return await _save_metadata(shown.database, record, run, **changes)

    return await commands.audit_log.record(commands.viewer.author, command, save)


async def _save_metadata(database: Database, record: RunRecord, run: LocalRun | None, **changes: Any) -> RunMetadata:
    if run is not None:
        try:
            return await asyncio.to_thread(lambda: change_metadata(run.folder.path, **changes))
        except OSError as problem:
            raise InvalidInput(
                f"cannot save the metadata of {run.name!r}: {problem.strerror}; check the folder of the run",
                code="run.metadata_not_saved",
            ) from None
    metadata = RunMetadata.parse(record_metadata(record, None).model_dump() | changes, where="")

    def write(session: Session) -> None:
        session.get_one(RunRecord, record.id).metadata_json = metadata.model_dump_json()

    await database.write(write)
    return metadata


def configuration(run: LocalRun) -> Configuration:
    """Returns the configuration of a run of this machine. Blocks: call it in a thread."""
    changes, settings = changes_of(run.folder), read_settings(run.folder.recipe_file)
    return Configuration(
        facts=tuple(_facts(run)),
        changes=None if changes is None else tuple(changes),
        toml=settings_toml(settings) if settings else "",
        command=_command(run),
    )


def _facts(run: LocalRun) -> list[tuple[str, str]]:
    facts = [("Recipe", run.recipe or formats.MISSING)]
    if run.facts is not None:
        facts += [
            ("Seed", str(run.facts.seed)),
            ("Release", run.facts.release),
            ("Commit", run.facts.commit or "installed release"),
            ("Python", run.facts.python),
            ("Machine", run.facts.machine or formats.MISSING),
        ]
    return [*facts, ("Folder", str(run.folder.path))]


def _command(run: LocalRun) -> str:
    """Returns the command of the launch; of a run without known facts of its launch, that of its snapshot."""
    known = run.launch.recipe
    options = LaunchOptions.of_launch(run.launch).arguments()
    sets = [part for override in run.launch.overrides for part in ("--set", override)]
    return shlex.join(["astraflow", "run", known or str(run.folder.recipe_file), *options, *(sets if known else [])])
