"""Releases of the packages whose environments run here by name."""

from dataclasses import dataclass
from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config.base import suggest_name

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRelease:
    """Release of a package that brings environments."""

    kind: str
    """Name in recipes."""
    distribution: str
    """Name of the package in an index."""
    version: str
    """Release that was tested, with the pins of `requirements`."""
    python: tuple[int, int]
    """Python release for which the requirement file was written."""
    licence: str
    size_bytes: int
    """Size of the installed environment."""

    @property
    def requirements(self) -> Path:
        """Requirement file that pins all packages."""
        return _HERE / "requirements" / f"{self.kind}.txt"

    @property
    def bridge(self) -> Path:
        """Program that runs in the environment."""
        return _HERE / "bridges" / f"{self.kind}_bridge.py"


RELEASES = (
    EnvironmentRelease(
        kind="verifiers",
        distribution="verifiers",
        version="0.4.0",
        python=(3, 11),
        licence="MIT",
        size_bytes=620_000_000,
    ),
    EnvironmentRelease(
        kind="openenv",
        distribution="openenv",
        version="0.10.0",
        python=(3, 11),
        licence="BSD-3-Clause",
        size_bytes=420_000_000,
    ),
)


def release_of(kind: str) -> EnvironmentRelease:
    """Returns the release of a kind. Raises: InvalidInput."""
    for release in RELEASES:
        if release.kind == kind:
            return release
    known = [release.kind for release in RELEASES]
    raise InvalidInput(
        f"cannot install the environments {kind!r}: unknown kind; {suggest_name(kind, known)}",
        code="environment.unknown_package",
    )
