"""Science experiments in ScienceWorld (arXiv:2203.07540), played by its own engine (package `scienceworld`), which
needs a Java runtime.

Each game that is played at the same time has a Java virtual machine, and calls to it block: run the environment in
worker processes, with `{kind = "process", of = {kind = "scienceworld"}}`.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.datasets.worlds.scienceworld import SIMPLIFICATIONS, VARIATIONS
from astraflow.environments import environments
from astraflow.environments.base import Environment, EnvironmentLimits, Observation
from astraflow.runtime.config.base import Config
from astraflow.runtime.imports import needs_extra

_JAVA_OPTIONS = "-XX:+UnlockExperimentalVMOptions -XX:hashCode=2"
"""Gives all objects the same identity hash. The engine keeps objects in hash tables, so that the order of lists, and
what animals do, would differ between runs otherwise."""

_READABLE = re.compile(r"[\w ,.'/()-]{1,300}")
_UNKNOWN_ACTION = "No known action matches that input."
_RESET = "reset"
"""First word of an action that begins the task again; refused, because it would undo the score."""


class ScienceWorldOptions(Config):
    """No settings: each prompt names its task, its variation and its simplifications."""


@environments.register("scienceworld", options=ScienceWorldOptions)
class ScienceWorldFactory:
    """Plays the tasks of the dataset `scienceworld`. The observation at the begin lists the forms of actions, such as
    `open OBJ` or `move OBJ to OBJ`. The rewards sum to the score of the task, in 0 to 1; a fatal error ends it with
    0."""

    def __init__(self, options: ScienceWorldOptions) -> None:
        del options
        self.limits = EnvironmentLimits(begin_s=120.0, act_s=60.0)
        self._engines: list[Any] = []

    async def start(self) -> None:
        """Starts a virtual machine. Raises: InvalidInput without the package or a Java runtime."""
        self._engines.append(_start_engine())

    async def close(self) -> None:
        """Stops the virtual machines of ended games."""
        while self._engines:
            _stop(self._engines.pop())

    def make(self) -> Environment:
        """Returns a new game."""
        return ScienceWorldGame(self._engines)

    async def check(self) -> None:
        """Checks for the package and a Java runtime. Raises: InvalidInput."""
        _check_installed()


class ScienceWorldGame:
    """One game."""

    def __init__(self, free_engines: list[Any]) -> None:
        self._free_engines = free_engines
        self._engine: Any = None
        self._score = 0.0
        self._is_over = False

    async def begin(self, prompt: Prompt, seed: int) -> Observation:
        """Loads the variation of the prompt. Raises: InvalidInput for a prompt without one."""
        task, variation, simplification = _variation(prompt)
        with self._failures():
            self._engine = self._free_engines.pop() if self._free_engines else _start_engine()
            getattr(getattr(self._engine._gateway.jvm.scala.util, "Random$"), "MODULE$").setSeed(seed)
            self._engine.load(task, variation, simplification)
            look = self._engine.server.freeActionLook()
            forms = ", ".join(form for form in self._engine.get_possible_actions() if not form.startswith(_RESET))
            text = f"{self._engine.get_task_description().strip()}\n\n{look.strip()}\n\nActions: {forms}"
        return Observation(text=text, state=look)

    async def act(self, action: str) -> Observation:
        """Performs an action."""
        if self._engine is None:
            raise InvalidInput("cannot act: the game has not begun; call begin first", code="environment.not_begun")
        if self._is_over:
            return Observation(text="The task is over.", ending=Ending.WON if self._score >= 1 else Ending.LOST)
        command = " ".join(action.lower().split())
        if not _READABLE.fullmatch(command) or command.startswith(_RESET):
            return Observation(text=_UNKNOWN_ACTION, is_malformed=True)
        with self._failures():
            return self._performed(command)

    def _performed(self, command: str) -> Observation:
        server = self._engine.server
        text = str(server.step(command)).strip()
        score, is_over = float(server.getScore()), bool(server.getCompleted())
        self._is_over = is_over or score < 0 or score >= 1
        before, self._score = self._score, min(max(score, 0.0), 1.0)
        ending = (Ending.WON if self._score >= 1 else Ending.LOST) if self._is_over else None
        return Observation(
            text=text,
            reward=self._score - before,
            ending=ending,
            is_malformed=text == _UNKNOWN_ACTION,
            state=str(server.freeActionInventory()),
            metrics={"score": self._score},
        )

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Reports errors of the virtual machine as failures of the environment, and uses it no more."""
        try:
            yield
        except AstraFlowError:
            raise
        except Exception as problem:  # the library passes on any error of its Java process
            self._engine, engine = None, self._engine
            _stop(engine)
            raise RolloutFailed(
                f"cannot continue the game of ScienceWorld: {type(problem).__name__}: {problem}; check the Java "
                "runtime",
                boundary=Boundary.ENVIRONMENT,
                code="environment.crashed",
            ) from problem

    async def close(self) -> None:
        """Keeps the virtual machine for another game."""
        if self._engine is not None:
            self._free_engines.append(self._engine)
        self._engine = None


def _variation(prompt: Prompt) -> tuple[str, int, str]:
    fields = prompt.fields
    task, variation, simplification = (fields.get(name) for name in ("task", "variation", "simplification"))
    match (task, variation, simplification):
        case (str(), int(), str()) if variation in range(VARIATIONS.get(task, 0)) and {*simplification.split(",")} <= {
            "",
            *SIMPLIFICATIONS,
        }:
            return task, variation, simplification
    raise InvalidInput(
        f"cannot begin a game of ScienceWorld: prompt {str(prompt.id)!r} has task {task!r}, variation {variation!r} "
        f"and simplification {simplification!r}; use the dataset kind 'scienceworld'",
        code="environment.wrong_prompt",
    )


def _check_installed() -> Any:
    """Returns the package. Raises: InvalidInput without it or a Java runtime."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").is_file()):
        raise InvalidInput(
            "cannot play ScienceWorld: no Java runtime; install one (apt install default-jre-headless), or set "
            "JAVA_HOME",
            code="environment.no_java",
        )
    with needs_extra("environments", to="play ScienceWorld"):
        return import_module("scienceworld")


def _start_engine() -> Any:
    package = _check_installed()
    before = os.environ.get("JDK_JAVA_OPTIONS")
    os.environ["JDK_JAVA_OPTIONS"] = f"{before or ''} {_JAVA_OPTIONS}".strip()
    try:
        return package.ScienceWorldEnv("")
    finally:
        if before is None:
            del os.environ["JDK_JAVA_OPTIONS"]
        else:
            os.environ["JDK_JAVA_OPTIONS"] = before


def _stop(engine: Any) -> None:
    """Stops a virtual machine, even if it no longer answers. None has no effect."""
    if engine is not None:
        engine._gateway.shutdown(raise_exception=False)
        engine._gateway.java_process.kill()
        engine._gateway.java_process.wait()
        engine._obj_tree_tempdir.cleanup()
