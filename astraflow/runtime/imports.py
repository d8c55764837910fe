"""Packages that only some installations have."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from astraflow.contract.errors import InvalidInput


@contextmanager
def needs_extra(extra: str, *, to: str) -> Iterator[None]:
    """Names the extra of pyproject.toml when a package that the block imports is not installed.

    extra: empty for a package that no extra has. to: what the package is needed for, such as "train adapters".
    Raises: InvalidInput.
    """
    try:
        yield
    except ModuleNotFoundError as problem:
        name = problem.name or ""
        if name.partition(".")[0] in ("astraflow", "maintainer", "web"):
            raise  # a defect in AstraFlow itself
        remedy = f"run pip install 'astraflow[{extra}]'" if extra else "install it"
        raise InvalidInput(
            f"cannot {to}: the package {name!r} is not installed; {remedy}",
            code="package.missing",
        ) from problem


def require_package(module: str, *, extra: str, to: str) -> None:
    """Checks that a package is installed, without importing it. Raises: InvalidInput as `needs_extra`."""
    with needs_extra(extra, to=to):
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
