"""Prints the requirements of the image, one per line: `requirements.py FOLDER EXTRAS TORCH`.

FOLDER has pyproject.toml. EXTRAS are names of extras, separated by commas. TORCH is the build of torch: see Dockerfile.
Used by the Dockerfile with the standard library only.
"""

import sys
import tomllib
from pathlib import Path

VARIANTS = {"cpu": "torch=={version}+cpu", "cuda": "torch==={version}", "any": "torch=={version}"}
"""Requirement of each build. `===` matches the exact release, never a `+cpu` build."""


def requirements(folder: Path, extras: str, torch: str) -> list[str]:
    """Returns the dependencies of the project and of its extras, with the given build of torch.

    Raises: ValueError when an extra or a build is unknown.
    """
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    names = [name for name in extras.split(",") if name]
    if unknown := [name for name in names if name not in optional]:
        raise ValueError(f"cannot install the extras {unknown}: unknown; use some of {', '.join(sorted(optional))}")
    if torch not in VARIANTS:
        raise ValueError(f"cannot install torch: unknown build {torch!r}; use one of {', '.join(VARIANTS)}")
    wanted = [*project["dependencies"], *(line for name in names for line in _lines(optional, name))]
    return [_chosen(line, VARIANTS[torch]) for line in dict.fromkeys(wanted)]


def _lines(optional: dict[str, list[str]], extra: str) -> list[str]:
    """Returns the requirements of an extra; one line of the form `astraflow[a,b]` stands for other extras."""
    (first, *_) = optional[extra]
    if not first.startswith("astraflow["):
        return optional[extra]
    return [line for name in first[len("astraflow[") : -1].split(",") for line in _lines(optional, name)]


def _chosen(requirement: str, variant: str) -> str:
    name, _, version = requirement.partition("==")
    return variant.format(version=version) if name == "torch" else requirement


if __name__ == "__main__":
    try:
        sys.stdout.write("\n".join(requirements(Path(sys.argv[1]), sys.argv[2], sys.argv[3])) + "\n")
    except ValueError as problem:
        sys.exit(str(problem))
