"""Declared recipes: recipe files in the folders that the page is started with, besides the packaged recipes.

The folders are read again on each request. Symbolic links and `extends` that lead out of the folders are not followed,
except `extends` of a packaged recipe.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.recipe.files import PACKAGED, files_of, packaged_recipes

MAX_BYTES = 256 * 1024
MAX_RECIPES = 500
"""Maximum recipes of one folder; more indicate a wrong folder."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}(/[A-Za-z0-9][A-Za-z0-9._-]{0,60})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredRecipe:
    """Recipe file in a declared folder, usable or not."""

    name: str
    """`evening` for `evening.toml` and `evening/recipe.toml`, `evening/long` for `evening/long.toml`."""
    file: Path
    problem: str
    """Reason why the file is not used; empty for a usable file, whose content is not checked here."""


def declared_recipes(folders: Sequence[Path]) -> list[DeclaredRecipe]:
    """Returns the recipe files of the folders by name. Raises: InvalidInput for an unreadable folder."""
    known_names = dict.fromkeys(packaged_recipes(), "a packaged recipe")
    declared = []
    for folder in folders:
        for file in _files(folder):
            name = _name(folder, file)
            problem = (
                f"{known_names[name]} has the same name; rename the file"
                if name in known_names
                else _problem(folder, file, name)
            )
            known_names.setdefault(name, str(file))
            declared.append(DeclaredRecipe(name=name, file=file, problem=problem))
    return sorted(declared, key=lambda recipe: recipe.name)


def check_declared_recipe(file: Path, folders: Sequence[Path]) -> None:
    """Checks that a recipe and the recipes that it extends are in the folders or packaged. Raises: InvalidInput."""
    roots = [folder.resolve() for folder in folders]
    for folder in roots:
        if file.is_relative_to(folder) and (problem := _problem(folder, file, _name(folder, file))):
            raise InvalidInput(f"cannot use the recipe {str(file)!r}: {problem}", code="recipe.not_usable")
    for extended_file in files_of(file):
        if not any(extended_file.is_relative_to(root) for root in (*roots, PACKAGED)):
            raise InvalidInput(
                f"cannot use the recipe {str(file)!r}: it extends {str(extended_file)!r}, which is outside of the "
                "declared folders; extend a recipe of these folders or a packaged one",
                code="recipe.extends_outside",
            )


def _files(folder: Path) -> list[Path]:
    """Returns the files and links of a folder and of its subfolders. Raises: InvalidInput."""
    try:
        root = folder.resolve(strict=True)
        files = list(_entries(root, depth=2))
    except OSError as problem:
        raise InvalidInput(
            f"cannot read the recipes in {str(folder)!r}: {problem.strerror}; name a readable folder",
            code="recipe.unreadable_folder",
        ) from None
    if len(files) > MAX_RECIPES:
        raise InvalidInput(
            f"cannot read the recipes in {str(folder)!r}: it has {len(files)} files, more than {MAX_RECIPES}; name a "
            "folder with fewer recipes",
            code="recipe.too_many",
        )
    return sorted(files)


def _entries(folder: Path, *, depth: int) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.name.startswith("."):
            continue
        if entry.suffix == ".toml":
            yield entry
        elif depth > 1 and entry.is_dir() and not entry.is_symlink():
            yield from _entries(entry, depth=depth - 1)


def _name(folder: Path, file: Path) -> str:
    relative_path = file.relative_to(folder.resolve()).with_suffix("")
    if relative_path.name != "recipe":
        return str(relative_path)
    return str(relative_path.parent) if relative_path.parent != Path() else folder.resolve().name


def _problem(folder: Path, file: Path, name: str) -> str:
    root = folder.resolve()
    if any(part.is_symlink() for part in (file, *file.parents) if part.is_relative_to(root) and part != root):
        return "it is a symbolic link; put the file itself into the folder"
    if not file.resolve().is_relative_to(root):
        return "it is outside of its folder; move it into the folder"
    if not file.is_file():
        return "it is not a file; name a TOML file"
    if file.stat().st_size > MAX_BYTES:
        return f"it is larger than {MAX_BYTES // 1024} KiB; shorten it"
    if not _NAME.fullmatch(name):
        return "its name has other characters than letters, digits, dots, dashes and underscores; rename the file"
    return ""
