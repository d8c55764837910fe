"""Resources and rights of containers."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import StringConstraints

_PROCESSES = 512


Capability = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z_]{1,30}$")]
"""Linux capability, without `CAP_`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLimits:
    """Resources and rights of a container."""

    memory_bytes: int
    cpus: float
    disk_bytes: int
    """Size of each file, and of all files where the storage of the engine has quotas."""
    capabilities: tuple[str, ...] = ()
    """Linux capabilities of root in the container, such as `CHOWN`; it has no others."""


def limit_options(limits: ContainerLimits) -> tuple[str, ...]:
    """Returns the options of `docker run` and `podman run` for limits."""
    capabilities = [word for name in limits.capabilities for word in ("--cap-add", name)]
    return (
        # Podman waits ten seconds for the first process to obey its stop signal, which `sleep` does not
        *("--stop-signal", "KILL"),
        *("--memory", f"{limits.memory_bytes}b"),
        *("--cpus", f"{limits.cpus:g}"),
        *("--pids-limit", str(_PROCESSES)),
        *("--ulimit", f"fsize={limits.disk_bytes}"),
        *("--cap-drop", "ALL", *capabilities),
        *("--security-opt", "no-new-privileges"),
    )
