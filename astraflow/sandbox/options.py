"""Options of the sandbox `local`."""

from typing import Annotated, Literal

from pydantic import Field

from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

COMMON_MODULES = (
    "array", "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "fractions", "functools", "heapq",
    "io", "itertools", "json", "math", "operator", "queue", "random", "re", "statistics", "string", "subprocess",
    "tempfile", "textwrap", "threading", "time", "traceback", "typing",
)  # fmt: skip


class LocalSandboxOptions(Config):
    """Pool of warm interpreters on this machine."""

    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    """Jobs that run at once; 0: one per core."""
    python: Annotated[str, SettableBy.RECIPE] = ""
    """Interpreter of jobs, 3.11 or newer; empty: that of AstraFlow, or /usr/bin/python3 where jobs cannot read it."""
    import_paths: Annotated[tuple[str, ...], SettableBy.RECIPE] = ()
    """Folders with packages for jobs, such as a `site-packages`; jobs can read them."""
    readable_paths: Annotated[tuple[str, ...], SettableBy.RECIPE] = ()
    """Further folders and files that jobs can read, such as a virtual environment or the source of an agent."""
    modules: Annotated[tuple[str, ...], SettableBy.RECIPE] = COMMON_MODULES
    """Modules that are loaded before jobs start. Others are imported by each job that needs them."""
    jobs_per_worker: Annotated[int, Field(ge=1)] = 1000
    """Jobs after which an interpreter is replaced."""
    disk_bytes: Annotated[int, Field(ge=2**16)] = 64 * 2**20
    """Size limit of a job's or session's working directory. With namespaces it is held in memory."""
    start_s: Annotated[float, Field(gt=0, le=600)] = 60.0
    """Timeout for an interpreter to start."""
    level: Annotated[Literal["namespaces", "restricted", "none"], SettableBy.RECIPE] = "namespaces"
    """Strongest isolation to try. A weaker one is used where this machine lacks it."""
    allow_weak: Annotated[bool, SettableBy.RECIPE] = False
    """Runs jobs with resource limits only where nothing better is available. Generated code can then read and write
    whatever the node's user can."""
