"""Data locations: folders and addresses that an admin declares, below which launched runs may read data and models."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from astraflow.contract.errors import InvalidInput

MAX_ENTRIES = 200_000
"""Largest number of files below one folder that are checked for symbolic links."""

_GLOB = frozenset("*?[")


def check_data_location(location: str) -> None:
    """Validates a declared data location. Raises: InvalidInput."""
    if "://" in location:
        if not _parts_of(location):
            raise InvalidInput(
                f"cannot use {location!r} as a data location: it is not a plain address; use SCHEME://HOST/FOLDER, "
                "without credentials, `..` and `%`",
                code="data_location.invalid",
            )
        return
    folder = Path(location)
    if not folder.is_absolute() or not folder.is_dir():
        raise InvalidInput(
            f"cannot use {location!r} as a data location: there is no such folder; give its absolute path",
            code="data_location.invalid",
        )
    if folder.resolve() == Path(folder.resolve().anchor):
        raise InvalidInput(
            f"cannot use {location!r} as a data location: it contains all files; give the folder with the data",
            code="data_location.invalid",
        )


def location_problem(value: str, locations: Sequence[str]) -> str:
    """Returns the reason for which a value is below no data location, as `cause; what to do`; empty for a valid value.

    Symbolic links are followed: their target counts. An empty value is valid.
    """
    if not value:
        return ""
    declared = ", ".join(locations) or "none"
    remedy = f"use one below a data location ({declared}), or ask an admin to start the page with --data LOCATION"
    if "://" in value or "::" in value:
        return (
            ""
            if any(_is_below(value, location) for location in locations)
            else f"the address is not declared; {remedy}"
        )
    if _is_on_a_declared_hub(value, locations):
        return ""
    if not Path(value).is_absolute() or ".." in Path(value).parts:
        return f"the path is not absolute; {remedy}"
    return _refusal_of_path(value, [Path(location) for location in locations if "://" not in location], remedy)


def _refusal_of_path(value: str, folders: Sequence[Path], remedy: str) -> str:
    path = _without_pattern(Path(value))
    try:
        resolved = path.resolve()
        root = next((root for root in (folder.resolve() for folder in folders) if resolved.is_relative_to(root)), None)
        if root is None:
            return f"the path is outside the declared folders; {remedy}"
        if not resolved.exists():
            return "there is no such file or folder; check the path"
        for link in _links(resolved):
            if not link.resolve().is_relative_to(root):
                return f"the symbolic link {link.name!r} points outside the declared folder;  {remedy}"
    except (OSError, ValueError, RuntimeError) as problem:
        return f"the path cannot be read ({problem}); {remedy}"
    return ""


def _is_on_a_declared_hub(value: str, locations: Sequence[str]) -> bool:
    """Returns whether a value is a Hugging Face name, as `owner/name`, and not an existing path."""
    address = f"hf://datasets/{value}"
    return any(_is_below(address, location) for location in locations) and not os.path.lexists(value)


def _without_pattern(path: Path) -> Path:
    """Returns the folder in which a pattern with `*` is searched; any other path unchanged."""
    for parent in (*reversed(path.parents), path):
        if _GLOB & set(parent.name):
            return parent.parent
    return path


def _links(path: Path) -> Iterator[Path]:
    """Yields the symbolic links below a folder. Raises: ValueError for more than `MAX_ENTRIES` entries."""
    count = 0
    for folder, folders, files in os.walk(path):
        count += len(folders) + len(files)
        if count > MAX_ENTRIES:
            raise ValueError(f"more than {MAX_ENTRIES} entries")
        yield from (link for name in (*folders, *files) if (link := Path(folder, name)).is_symlink())


def _is_below(address: str, location: str) -> bool:
    parts, declared = _parts_of(address), _parts_of(location)
    return bool(declared) and parts[: len(declared)] == declared


def _parts_of(address: str) -> tuple[str, ...]:
    """Returns scheme, host and folders of an address; empty for an ambiguous one."""
    if any(mark in address for mark in ("%", "\\", "::", "?", "#")) or any(ord(mark) <= 32 for mark in address):
        return ()
    try:
        url = urlsplit(address)
    except ValueError:
        return ()
    folders = url.path.strip("/").split("/") if url.path.strip("/") else []
    if not url.scheme or not url.netloc or "@" in url.netloc or {"", ".", ".."} & set(folders):
        return ()
    return (url.scheme, url.netloc.lower(), *folders)
