"""Files of recipes: where they are, and the tables of a file and of those that it extends."""

from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config.base import suggest_name
from astraflow.runtime.config.toml import ConfigLayer, merge_layers, read_values

PACKAGED = Path(__file__).resolve().parents[2] / "recipes"
"""Packaged recipes: `reverse` is `reverse/recipe.toml` in this folder, `reverse/sort` is `reverse/sort.toml`."""

EXAMPLES = "examples"
"""Folder of examples to copy: they need their own plugins, so they are no packaged recipes."""


def find_recipe(name_or_path: str) -> Path:
    """Returns the file of a recipe: a path to a file or folder, or the name of a packaged recipe.

    Raises: InvalidInput with the closest known recipe.
    """
    path = Path(name_or_path).expanduser()
    if path.is_dir() and (path / "recipe.toml").is_file():
        return path / "recipe.toml"
    if path.is_file():
        return path
    for packaged in (PACKAGED / name_or_path / "recipe.toml", PACKAGED / f"{name_or_path}.toml"):
        if packaged.is_file():
            return packaged
    if path.suffix in (".toml", ".json"):
        raise InvalidInput(
            f"cannot load recipe {name_or_path!r}: no such file; check the path", code="recipe.file_not_found"
        )
    raise InvalidInput(
        f"cannot load recipe {name_or_path!r}: no packaged recipe has this name; "
        f"{suggest_name(name_or_path, packaged_recipes())} (see: astraflow recipes)",
        code="recipe.unknown",
    )


def packaged_recipes() -> list[str]:
    """Returns the names of the packaged recipes, as `find_recipe` takes them."""
    files = (file.relative_to(PACKAGED) for file in PACKAGED.glob("*/*.toml"))
    names = (file.with_suffix("") for file in files if file.parts[0] != EXAMPLES)
    return sorted(str(name.parent if name.name == "recipe" else name) for name in names)


def summary_of(file: Path) -> str:
    """Returns the summary in a recipe file. Raises: InvalidInput."""
    return str(merge_layers(layers_of(file)).get("summary", ""))


def files_of(file: Path) -> list[Path]:
    """Returns the file and the files that it extends, resolved. Raises: InvalidInput."""
    return [Path(layer.name) for layer in layers_of(file)]


def layers_of(file: Path, extending: tuple[Path, ...] = ()) -> list[ConfigLayer]:
    """Returns the layers of the file and of the files it extends, the most basic first."""
    file = file.resolve()
    if file in extending:
        chain = " extends ".join(str(path) for path in (*extending, file))
        raise InvalidInput(
            f"cannot load recipe {str(file)!r}: recipes extend each other in a circle: {chain}; remove one `extends`",
            code="recipe.circular_extends",
        )
    values = read_values(file)
    base = values.pop("extends", None)
    if extending:
        values.pop("card", None)  # describes one recipe, and is not inherited
    if base is None:
        return [ConfigLayer(str(file), values)]
    if not isinstance(base, str):
        raise InvalidInput(
            f"{file}: extends: must be the name of a recipe or a path relative to this file (got {base!r})",
            code="recipe.invalid_extends",
        )
    sibling = file.parent / base
    try:
        base_file = sibling if sibling.is_file() else find_recipe(base)
    except InvalidInput as problem:
        raise InvalidInput(f"{file}: extends: {problem}", code=problem.code) from None
    return [*layers_of(base_file, (*extending, file)), ConfigLayer(str(file), values)]
