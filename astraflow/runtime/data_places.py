"""Data places: folders and addresses that an admin declares, below which launched runs may read data and models."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from astraflow.contract.errors import InvalidInput

MOST_ENTRIES = 200_000
"""Files below one folder that are looked at for symbolic links."""

_GLOB = frozenset("*?[")


def check_place(place: str) -> None:
    """Refuse a declaration that names no folder and no address. Raises: InvalidInput."""
    if "://" in place:
        if not _parts_of(place):
            raise InvalidInput(
                f"cannot use {place!r} as a data place: it is no plain address; write SCHEME://HOST/FOLDER, without "
                "credentials, `..` and `%`"
            )
        return
    folder = Path(place)
    if not folder.is_absolute() or not folder.is_dir():
        raise InvalidInput(f"cannot use {place!r} as a data place: there is no such folder; write its absolute path")
    if folder.resolve() == Path(folder.resolve().anchor):
        raise InvalidInput(f"cannot use {place!r} as a data place: it holds every file; name the folder with the data")


def refusal(value: str, places: Sequence[str]) -> str:
    """Returns why a value is below no data place, as `cause; what to do`; empty for one that is.

    Symbolic links are followed: where they lead counts. An empty value names nothing and is below every place.
    """
    if not value:
        return ""
    declared = ", ".join(places) or "none"
    advice = f"name one below a data place ({declared}), or ask an admin to start the page with --data PLACE"
    if "://" in value or "::" in value:
        return "" if any(_is_below(value, place) for place in places) else f"the address is not declared; {advice}"
    if _is_on_a_declared_hub(value, places):
        return ""
    if not Path(value).is_absolute() or ".." in Path(value).parts:
        return f"the path is not absolute; {advice}"
    return _refusal_of_path(value, [Path(place) for place in places if "://" not in place], advice)


def _refusal_of_path(value: str, folders: Sequence[Path], advice: str) -> str:
    path = _without_pattern(Path(value))
    try:
        inside = path.resolve()
        root = next((root for root in (folder.resolve() for folder in folders) if inside.is_relative_to(root)), None)
        if root is None:
            return f"the path is outside of the declared folders; {advice}"
        if not inside.exists():
            return "there is no such file or folder; check the path"
        for link in _links(inside):
            if not link.resolve().is_relative_to(root):
                return f"the symbolic link {link.name!r} leads out of the declared folder; {advice}"
    except (OSError, ValueError, RuntimeError) as problem:
        return f"the path cannot be read ({problem}); {advice}"
    return ""


def _is_on_a_declared_hub(value: str, places: Sequence[str]) -> bool:
    """Whether a value is a name on the hub, as `owner/name`, and not a path that exists here."""
    address = f"hf://datasets/{value}"
    return any(_is_below(address, place) for place in places) and not os.path.lexists(value)


def _without_pattern(path: Path) -> Path:
    """The folder that a pattern with `*` is looked for in; any other path as it is."""
    for parent in (*reversed(path.parents), path):
        if _GLOB & set(parent.name):
            return parent.parent
    return path


def _links(path: Path) -> Iterator[Path]:
    """Symbolic links below a folder. Raises: ValueError for more than `MOST_ENTRIES` entries."""
    count = 0
    for folder, folders, files in os.walk(path):
        count += len(folders) + len(files)
        if count > MOST_ENTRIES:
            raise ValueError(f"more than {MOST_ENTRIES} entries")
        yield from (link for name in (*folders, *files) if (link := Path(folder, name)).is_symlink())


def _is_below(address: str, place: str) -> bool:
    parts, declared = _parts_of(address), _parts_of(place)
    return bool(declared) and parts[: len(declared)] == declared


def _parts_of(address: str) -> tuple[str, ...]:
    """Scheme, host and folders of an address; empty for one whose meaning depends on who reads it."""
    if any(mark in address for mark in ("%", "\\", "::", "?", "#")) or any(ord(mark) <= 32 for mark in address):
        return ()
    try:
        found = urlsplit(address)
    except ValueError:
        return ()
    folders = found.path.strip("/").split("/") if found.path.strip("/") else []
    if not found.scheme or not found.netloc or "@" in found.netloc or {"", ".", ".."} & set(folders):
        return ()
    return (found.scheme, found.netloc.lower(), *folders)
