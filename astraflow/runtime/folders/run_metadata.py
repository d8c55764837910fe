"""Metadata of a run, which people edit: title, note, tags, group and star. One file in the folder of the run, so that
every page and the terminal show the same."""

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, field_validator

from astraflow.runtime.config.base import Config
from astraflow.runtime.config.toml import read_json
from astraflow.runtime.folders.private_files import write_private
from astraflow.runtime.locks import waiting_lock

METADATA, METADATA_LOCK = "metadata.json", "metadata.lock"

MAX_TAGS = 20
MAX_TITLE, MAX_NOTE, MAX_TAG = 120, 10_000, 40
"""Maximum lengths in characters."""

LINE = r"^[^\x00-\x1f\x7f]*$"
TEXT = r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*$"
TAG = r"^[^\x00-\x1f\x7f,\s]+$"
"""Patterns of one line, of text of several lines, and of a tag."""

Title = Annotated[str, StringConstraints(strip_whitespace=True, max_length=MAX_TITLE, pattern=LINE)]
Note = Annotated[str, StringConstraints(strip_whitespace=True, max_length=MAX_NOTE, pattern=TEXT)]
Tag = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TAG, pattern=TAG)]


class RunMetadata(Config):
    """Metadata of a run. Every field is empty until a person sets it."""

    title: Title = ""
    """Name that people gave the run; its pages and tables show it beside the name of its folder. One line."""
    note: Note = ""
    """Note of several lines."""
    tags: tuple[Tag, ...] = Field(default=(), max_length=MAX_TAGS)
    """Tags without spaces and commas, in the order of their letters, each once."""
    group: Title = ""
    """Group of runs that belong together, such as the seeds of one experiment. One line."""
    is_starred: bool = False
    """True for a run that is marked as important."""

    @field_validator("tags")
    @classmethod
    def _sorted(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(set(tags), key=lambda tag: (tag.casefold(), tag)))


def tags_from(text: str) -> tuple[str, ...]:
    """Returns the tags in a text, which are separated by commas or spaces.

    >>> tags_from("baseline, lr-sweep  baseline")
    ('baseline', 'lr-sweep', 'baseline')
    """
    return tuple(filter(None, re.split(r"[,\s]+", text)))


def read_metadata(folder: Path) -> RunMetadata:
    """Returns the metadata of the run in this folder; empty without any. Raises: InvalidInput for a damaged file."""
    file = folder / METADATA
    if not file.exists():
        return RunMetadata()
    return RunMetadata.parse(read_json(file), where=str(file))


def change_metadata(folder: Path, **changes: Any) -> RunMetadata:
    """Changes some of the fields and returns the result; writers wait for each other.

    Raises: InvalidInput for an invalid value or a damaged file; OSError.
    """
    with waiting_lock(folder / METADATA_LOCK):
        values = read_metadata(folder).model_dump() | changes
        metadata = RunMetadata.parse(values, where="")
        write_private(folder / METADATA, metadata.model_dump_json(indent=2))
    return metadata
