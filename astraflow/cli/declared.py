"""Recipes that whoever starts a page declares besides those that come with AstraFlow: files in folders of theirs.

They are looked for anew each time, and read. What leads out of the folders is not followed: neither a symbolic link nor
`extends`, except to a packaged recipe.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.recipe import PACKAGED, files_of, packaged_recipes

MAX_BYTES = 256 * 1024
MAX_RECIPES = 500
"""In one folder: more are a mistake about which folder it is."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}(/[A-Za-z0-9][A-Za-z0-9._-]{0,60})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One file that may be a recipe."""

    name: str
    """`evening` for `evening.toml` and `evening/recipe.toml`, `evening/long` for `evening/long.toml`."""
    file: Path
    problem: str
    """Why it is none; empty when nothing but its text can be wrong."""


def declared(folders: Sequence[Path]) -> list[Declared]:
    """What stands in the folders, by name. Raises: InvalidInput for a folder that cannot be read."""
    taken = dict.fromkeys(packaged_recipes(), "a recipe that comes with AstraFlow")
    found = []
    for folder in folders:
        for file in _files(folder):
            name = _name(folder, file)
            problem = f"{taken[name]} has this name: rename the file" if name in taken else _problem(folder, file, name)
            taken.setdefault(name, str(file))
            found.append(Declared(name=name, file=file, problem=problem))
    return sorted(found, key=lambda one: one.name)


def check_declared(file: Path, folders: Sequence[Path]) -> None:
    """Refuse a file that is not wholly what the folders declare. Raises: InvalidInput."""
    roots = [folder.resolve() for folder in folders]
    for folder in roots:
        if file.is_relative_to(folder) and (problem := _problem(folder, file, _name(folder, file))):
            raise InvalidInput(f"{file}: {problem}")
    for used in files_of(file):
        if not any(used.is_relative_to(root) for root in (*roots, PACKAGED)):
            raise InvalidInput(
                f"{file}: extends {used}, which is in no folder that was declared: only recipes of those folders, and "
                "those that come with AstraFlow, are read"
            )


def _files(folder: Path) -> list[Path]:
    """Files and links of a folder and of the folders in it. Raises: InvalidInput."""
    try:
        root = folder.resolve(strict=True)
        inside = list(_entries(root, depth=2))
    except OSError as problem:
        raise InvalidInput(f"the recipes in {folder} cannot be read: {problem.strerror}") from None
    if len(inside) > MAX_RECIPES:
        raise InvalidInput(f"{folder} has {len(inside)} recipes, more than {MAX_RECIPES}: is it the right folder?")
    return sorted(inside)


def _entries(folder: Path, *, depth: int) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.name.startswith("."):
            continue
        if entry.suffix == ".toml":
            yield entry
        elif depth > 1 and entry.is_dir() and not entry.is_symlink():
            yield from _entries(entry, depth=depth - 1)


def _name(folder: Path, file: Path) -> str:
    inside = file.relative_to(folder.resolve()).with_suffix("")
    if inside.name != "recipe":
        return str(inside)
    return str(inside.parent) if inside.parent != Path() else folder.resolve().name


def _problem(folder: Path, file: Path, name: str) -> str:
    root = folder.resolve()
    if any(part.is_symlink() for part in (file, *file.parents) if part.is_relative_to(root) and part != root):
        return "a symbolic link may lead anywhere: put the file itself into the folder"
    if not file.resolve().is_relative_to(root):
        return "it leads out of its folder"
    if not file.is_file():
        return "is no file"
    if file.stat().st_size > MAX_BYTES:
        return f"is larger than {MAX_BYTES // 1024} KiB, which no recipe is"
    if not _NAME.fullmatch(name):
        return "a recipe's name has letters, digits, dots, dashes and underscores: rename the file"
    return ""
