"""Upgrade of a run in docker-compose.yml: the image of an earlier commit, then that of this checkout.

    python -m tests.containers --upgrade-from COMMIT

The new image either continues the run, and the documented backup then brings it back to the earlier image; or dataflow
refuses its journal with `journal.schema_mismatch`, and the earlier image continues from the same volumes.
"""

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tests.containers.checks import Checks, backup_commands, require
from tests.containers.engine import SOURCE, CommandFailed, Engine
from tests.containers.image import build_image
from tests.containers.stack import CheckFailed, Stack, until

IMAGE = "astraflow:earlier"
FOLDER = "earlier"
COMPOSE_FILE = f"/state/{FOLDER}/docker-compose.yml"
REFUSAL = "journal.schema_mismatch"
WITH_DATABASES = ("fleet", "web")


@dataclass(kw_only=True)
class UpgradeChecks:
    """One upgrade from `commit`. base: image that both images extend; say: called with each figure."""

    engine: Engine
    base: str
    commit: str
    say: Callable[[str], None]

    def run(self) -> str:
        """Runs the upgrade and the way back. Returns the figures in one line. Raises: CheckFailed, CommandFailed."""
        self._extract()
        build_image(self.engine, self.base, image=IMAGE, compose_file=COMPOSE_FILE)
        build_image(self.engine, self.base)
        self.say("both images are built")
        stack = Stack(engine=self.engine)
        checks = Checks(stack=stack, say=self.say)
        use_earlier(stack)
        self.say(f"the earlier image: {checks.start()}")
        save, restore = backup_commands()
        stack.shell(save)
        checks.until_learning(nodes=stack.nodes)
        saved = checks.steps, checks.issued
        use_present(stack)
        refusal = refused(stack, checks)
        if refusal:
            self.say(f"this image refuses the journal: {refusal}")
            use_earlier(stack)
            stack.up()
        else:
            self.say(f"this image continues: step {checks.steps}, after {saved[0]} with the earlier one")
            use_earlier(stack)
            stack.shell(restore)
            checks.steps = checks.issued = 0
        seconds = checks.until_learning(nodes=stack.nodes)
        self.say(f"the earlier image continues {seconds:.0f} s later: step {checks.steps}")
        checks.remove_all()
        outcome = f"refused with {REFUSAL}" if refusal else "continued"
        way_back = "the same volumes" if refusal else "the backup"
        return f"a run of {self.commit} is {outcome}; that image continues from {way_back}"

    def _extract(self) -> None:
        folder = self.engine.state / FOLDER
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        archive = subprocess.run(["git", "archive", self.commit], cwd=SOURCE, check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "--extract", "--directory", str(folder)], input=archive.stdout, check=True)


def use_earlier(stack: Stack) -> None:
    """Makes the next commands use the image and the docker-compose.yml of the earlier commit."""
    stack.image, stack.compose_file = IMAGE, COMPOSE_FILE


def use_present(stack: Stack) -> None:
    """Makes the next commands use the image and the docker-compose.yml of this checkout."""
    stack.image, stack.compose_file = Stack.image, Stack.compose_file


def refused(stack: Stack, checks: Checks) -> str:
    """Starts the stack; returns dataflow's refusal of the journal, or an empty string once the run learns.

    Raises: CheckFailed when neither happens, or a database is not healthy after the upgrade.
    """
    try:
        stack.up()
    except CommandFailed as problem:
        refusal = refusal_of(stack.logs("dataflow", lines=200))
        if not refusal:
            raise CheckFailed(f"the services do not start after the upgrade, without a reason: {problem}") from problem
        return refusal
    checks.until_learning(nodes=stack.nodes)
    for service in WITH_DATABASES:
        until(partial(_is_healthy, stack, service), f"{service} is healthy after the upgrade")
    codes = {service: stack.only(service).exit_code for service in ("keys", "prepare", "tokens")}
    require(not any(codes.values()), f"services that exit did not exit with 0: {codes}")
    return ""


def _is_healthy(stack: Stack, service: str) -> bool:
    return stack.health(service) == "healthy"


def refusal_of(logs: str) -> str:
    """Returns the last line with the refusal's code, without control characters; empty when there is none."""
    lines = [line for line in logs.splitlines() if REFUSAL in line]
    return re.sub(r"\x1b\[[0-9;]*m", "", lines[-1]).strip() if lines else ""
