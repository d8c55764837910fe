"""Checks of this machine: available resources and missing software."""

import asyncio
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
from rich.text import Text

from astraflow.cli.output import Table
from astraflow.cli.ports import free_ports
from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.plugins import CheckResult, Outcome
from astraflow.raas.engines.server.environments import Environment, installed_environments
from astraflow.raas.engines.server.installation.host import Host, default_device, obstacles, this_host
from astraflow.raas.engines.server.installation.installer import missing_software
from astraflow.raas.engines.server.installation.releases import find_release, server_kinds
from astraflow.runtime.folders.run_folders import home
from astraflow.sandbox.local import probe
from astraflow.weights.shared_memory import MEMORY_FOLDER

_MARKS = {
    Outcome.PASSED: Text("ok", style="green"),
    Outcome.FAILED: Text("missing", style="red"),
    Outcome.UNSUPPORTED: Text("absent", style="yellow"),
}
_MIN_MEMORY_BYTES = 2 * 10**9
_MIN_DISK_BYTES = 10**9
_MIN_SHARED_BYTES = 10**9


def run_checks() -> list[CheckResult]:
    checks: tuple[Callable[[], CheckResult], ...] = (
        _python, _cores, _memory, _disk, _shared_memory, _ports, _services, _torch, _codec, _gpu, _chromium, _sandbox,
    )  # fmt: skip
    return [*(check() for check in checks), *engine_results(this_host(), installed_environments())]


def engine_results(host: Host, environments: Sequence[Environment]) -> list[CheckResult]:
    """Returns for each server program the environments that have it, or how to install it, or why it cannot run."""
    results = []
    for kind in server_kinds():
        installed = [environment for environment in environments if environment.kind == kind]
        release = find_release(kind, default_device(host))
        reasons = [*obstacles(release, host), *missing_software(release)]
        if installed:
            message = ", ".join(
                f"{installation.name} ({installation.version}, {installation.device})" for installation in installed
            )
        elif reasons:
            message = f"cannot run on this machine: {'; '.join(reasons)}"
        else:
            size = f"{release.size_bytes / 1e9:.1f} GB"
            message = f"{release.version}, {release.device}, {size}: astraflow engines install {kind}"
        problem = f"; now: {'; '.join(reasons)}" if installed and reasons else ""
        is_ok = bool(installed) and not reasons
        results.append(_result(f"engine {kind}", is_ok, f"{message}{problem}"))
    return results


def table(results: list[CheckResult]) -> Table:
    rows = Table("", "check", "result")
    for result in results:
        rows.add(_MARKS[result.outcome], result.promise, result.detail)
    return rows


def _result(subject: str, is_ok: bool, message: str, *, is_required: bool = False) -> CheckResult:
    """Returns the result of one check. is_required: nothing runs without it; otherwise one feature is absent."""
    absent = Outcome.FAILED if is_required else Outcome.UNSUPPORTED
    return CheckResult(promise=subject, outcome=Outcome.PASSED if is_ok else absent, detail=message)


def _python() -> CheckResult:
    release = ".".join(str(part) for part in sys.version_info[:3])
    is_sufficient = sys.version_info >= (3, 11)
    return _result(
        "Python",
        is_sufficient,
        release if is_sufficient else f"{release}; AstraFlow needs 3.11 or newer",
        is_required=True,
    )


def _cores() -> CheckResult:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return _result("cores", count >= 2, str(count) if count >= 2 else "1; the demo takes about twice as long")


def _memory() -> CheckResult:
    available = psutil.virtual_memory().available
    is_sufficient = available >= _MIN_MEMORY_BYTES
    hint = "" if is_sufficient else "; the demo needs about 2 GB, `recipes/smoke` less"
    return _result("memory", is_sufficient, f"{available / 1e9:.1f} GB free{hint}")


def _disk() -> CheckResult:
    folder = next(path for path in (home(), *home().parents) if path.exists())
    free = shutil.disk_usage(folder).free
    is_writable = os.access(folder, os.W_OK)
    is_sufficient = is_writable and free >= _MIN_DISK_BYTES
    hint = "" if is_sufficient else "; set ASTRAFLOW_HOME to a writable folder with 1 GB of free space"
    return _result("disk", is_sufficient, f"{free / 1e9:.1f} GB free for {home()}{hint}", is_required=True)


def _shared_memory() -> CheckResult:
    if not MEMORY_FOLDER.is_dir():
        return _result("shared memory", False, f"{MEMORY_FOLDER} is missing: no weights")
    free = psutil.disk_usage(str(MEMORY_FOLDER)).free
    is_sufficient = free >= _MIN_SHARED_BYTES
    hint = "" if is_sufficient else "; it holds the weights: in a container, set --shm-size=2g"
    return _result("shared memory", is_sufficient, f"{free / 1e9:.1f} GB free{hint}")


def _ports() -> CheckResult:
    try:
        free_ports(3)
    except (AstraFlowError, OSError) as problem:
        return _result("ports", False, f"cannot listen on loopback: {problem}", is_required=True)
    return _result("ports", True, "can listen on loopback", is_required=True)


def _services() -> CheckResult:
    """Returns whether a run can have its page, its metrics, a fleet service and agents here."""
    packages = ("aiohttp", "fastapi", "httpx2", "prometheus_client", "sqlmodel")
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    message = (
        f"{', '.join(absent)} not installed, so this machine runs single services only: pip install 'astraflow[local]'"
    )
    return _result("services", not absent, message if absent else "all")


def _torch() -> CheckResult:
    absent = [name for name in ("torch", "transformers", "safetensors") if importlib.util.find_spec(name) is None]
    if absent:
        message = f"{', '.join(absent)} not installed, only `recipes/smoke` runs: pip install 'astraflow[train]'"
        return _result("training", False, message)
    import torch

    return _result("training", True, f"torch {torch.__version__}")


def _codec() -> CheckResult:
    is_compiled = importlib.util.find_spec("numba") is not None
    message = (
        "compiled"
        if is_compiled
        else "numpy, sufficient for small models; for the compiled codec: pip install 'astraflow[compiled]'"
    )
    return _result("weight codec", is_compiled, message)


def _gpu() -> CheckResult:
    if importlib.util.find_spec("torch") is None:
        return _result("GPU", False, "not checked: torch is not installed")
    import torch

    if not torch.cuda.is_available():
        return _result("GPU", False, "none; small models train on the CPU")
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return _result("GPU", True, ", ".join(names))


def _chromium() -> CheckResult:
    path = shutil.which("chromium-headless-shell")
    return _result(
        "Chromium",
        path is not None,
        path or "required only by the browser tests: apt-get install chromium-headless-shell",
    )


def _sandbox() -> CheckResult:
    """Returns the isolation that the sandbox `local` has here, and why no stronger one."""
    try:
        level, reasons = asyncio.run(probe())
    except AstraFlowError as problem:
        message = f"no rewards and tools that run generated code: {problem}"
        return _result("sandbox", False, message)
    weaker = "".join(f"; not {stronger.value}: {reason}" for stronger, reason in reasons.items())
    return _result("sandbox", not reasons, f"isolation by {level.value}{weaker}")


def model_results(folder: Path) -> list[CheckResult]:
    """Returns how the model of a folder is trained and served here, and what stands against a faster way.

    Loads the model in float32 on the CPU. Raises: InvalidInput for a folder without a model.
    """
    from astraflow.models import models
    from astraflow.models.precision import device_of
    from astraflow.raas.engines.local.choice import exact_batcher
    from astraflow.raas.engines.local_torch import LocalTorchOptions
    from astraflow.trainer.engines.scoring.choice import choose_demanded
    from astraflow.trainer.engines.scoring.scorer import Scorer

    source = models.build({"kind": "huggingface", "path": str(folder)})
    prepared = source.prepare()
    results = []
    try:
        facts = choose_demanded(Scorer(source.load(prepared), device_of("cpu")), None).facts
        results.append(_passed("training", f"batching {facts.sentence}; off by {facts.largest_difference:.1e} nats"))
    except InvalidInput as problem:
        results.append(_failed("training", problem))
    try:
        served = source.load(prepared).eval().requires_grad_(False)
        batcher = exact_batcher(served, LocalTorchOptions().limits)
        results.append(_passed("engine local_torch", batcher.way))
    except InvalidInput as problem:
        results.append(_failed("engine local_torch", problem))
    return results


def _passed(subject: str, detail: str) -> CheckResult:
    return CheckResult(promise=subject, outcome=Outcome.PASSED, detail=detail)


def _failed(subject: str, problem: InvalidInput) -> CheckResult:
    return CheckResult(promise=subject, outcome=Outcome.FAILED, detail=str(problem))
