"""docker-compose.yml in a real Docker Engine, with kills, an engine restart and a power loss; and terminal tasks and
agents in its containers and in those of Podman.

    python -m tests.containers [--keep] [--only compose|tasks|podman] [--tasks-after FILE]
    python -m tests.containers [--keep] --upgrade-from COMMIT

Starts an engine of its own, builds the image, and checks what docs/how-to/deploy.md promises. The last line is the
verdict: `containers: passed`, `containers: failed` (exit code 1), or `containers: not started` (exit code 69) where no
engine can be started; it is in build/containers.txt as well. File systems and image layers are kept in the folder
ASTRAFLOW_CONTAINERS_CACHE (~/.cache/astraflow/containers by default) for the next run.

The part `compose` imports only the standard library, so that `.ci/run` starts it while packages are installed.
"""

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import invalidate_caches
from pathlib import Path

from astraflow.contract.errors import AstraFlowError
from tests.containers.checks import Checks
from tests.containers.engine import SOURCE, CommandFailed, Engine
from tests.containers.host import NotStarted, check_host
from tests.containers.image import build_base, build_image, engine_root, load_base
from tests.containers.stack import CheckFailed, Stack
from tests.containers.upgrade import UpgradeChecks

VERDICT = SOURCE / "build" / "containers.txt"

PASSED, FAILED, NOT_STARTED = 0, 1, 69

CACHE = "ASTRAFLOW_CONTAINERS_CACHE"


def main() -> int:
    """Runs the check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--keep", action="store_true", help="keep the folder with the engine's logs and say where it is"
    )
    parser.add_argument("--only", choices=("compose", "tasks", "podman"), help="run a part of the checks")
    parser.add_argument(
        "--tasks-after", type=Path, metavar="FILE", help="wait for FILE before tasks and agents: installed packages"
    )
    parser.add_argument("--upgrade-from", metavar="COMMIT", help="only upgrade a run that this commit's image began")
    options = parser.parse_args()
    is_kept = options.keep
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    VERDICT.unlink(missing_ok=True)  # an interrupted check leaves no verdict file
    state = Path(tempfile.mkdtemp(prefix="astraflow-containers-"))
    try:
        code, line = judged(partial(_checked, state, options))
    finally:
        if is_kept:
            _say(f"logs are in {state}")
        else:
            shutil.rmtree(state)
    VERDICT.parent.mkdir(exist_ok=True)
    VERDICT.write_text(f"{line}\n")
    _say(line)
    return code


def judged(check: Callable[[], str]) -> tuple[int, str]:
    """Runs `check`, which returns figures or raises; returns the exit code and the verdict line."""
    try:
        code, name, message = PASSED, "passed", check()
    except NotStarted as problem:
        code, name, message = NOT_STARTED, "not started", str(problem)
    except (AstraFlowError, CheckFailed, CommandFailed, subprocess.SubprocessError) as problem:
        code, name, message = FAILED, "failed", str(problem)
    return code, f"containers: {name}: {' '.join(message.split())}"


def _checked(state: Path, options: argparse.Namespace) -> str:
    began = time.monotonic()

    def say(what: str) -> None:
        _say(f"{time.monotonic() - began:7.1f} s  {what}")

    check_host()
    cache = Path(os.environ.get(CACHE) or Path.home() / ".cache" / "astraflow" / "containers")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one engine at a time uses the folder
        engine = Engine(root=engine_root(cache), state=state)
        try:
            engine.start()
            say("the engine runs")
            _cleared(engine)
            base = build_base(engine)
            if options.upgrade_from:
                return UpgradeChecks(engine=engine, base=base, commit=options.upgrade_from, say=say).run()
            only = options.only
            figures = []
            if only in (None, "compose"):
                size_bytes = build_image(engine, base)
                say(f"the image is built: {size_bytes / 1e9:.2f} GB")
                figures.append(_tried(engine, say))
            if only in (None, "tasks"):
                figures.append(_task_checks(engine, "docker", base, say, options.tasks_after))
            if only in (None, "podman"):
                load_base(engine, base)
                figures.append(_task_checks(engine, "podman", base, say, options.tasks_after))
            return "; ".join(figures)
        finally:
            engine.cut()


def _tried(engine: Engine, say: Callable[[str], None]) -> str:
    stack = Stack(engine=engine)
    try:
        return Checks(stack=stack, say=say).run()
    except (CheckFailed, CommandFailed):
        for service in ("dataflow", "weights", "trainer", "node"):
            say(f"the last lines of {service}:\n{stack.logs(service)}")
        raise


def _task_checks(engine: Engine, program: str, base: str, say: Callable[[str], None], packages: Path | None) -> str:
    while packages is not None and not packages.exists():
        time.sleep(1)
    invalidate_caches()  # packages may be newer than this process
    from tests.containers.tasks import TaskChecks

    return TaskChecks(engine=engine, program=program, base=base, say=say).run()


def _cleared(engine: Engine) -> None:
    """Removes leftovers of an interrupted check from the engine's folder."""
    engine.run("podman", "rm", "--all", "--force", "--time", "0")
    containers = engine.output("docker", "ps", "--all", "--quiet").split()
    if containers:
        engine.run("docker", "rm", "--force", "--volumes", *containers)
    engine.run("docker", "volume", "prune", "--all", "--force")
    engine.run("docker", "network", "prune", "--force")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
