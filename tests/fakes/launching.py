"""Launching with fewer processes: outputs of the command line that tests share, a recipe with a known form, and runs
that end as soon as they begin.

For tests with hundreds of launches; `tests/web/launches/test_launching.py` tests the real launcher.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from astraflow.cli.recipes import answers
from astraflow.client.local_runs import LAUNCH_LOG, SUMMARY
from astraflow.contract.errors import InvalidInput
from astraflow.contract.launching import FormField, FormProblem, RecipeCard, RecipeForm
from astraflow.runtime.folders.run_folders import RunFolder
from tests.fakes.forking import ForkingProgram
from web.launcher.catalogue import Catalogue, cli_output
from web.launcher.launcher import Launcher

STEPS = "stop.steps"


TEST_FOLDER = "/folder-of-the-test"
"""Stands for the folder of a test in stored commands and outputs."""


class CliOutputs:
    """Outputs of real commands: a command that was run before, with the same files, is not run again.

    Two tests share an output if their commands are equal except for the folder of the test, and the files that the
    commands name have the same content.
    """

    def __init__(self, cli: ForkingProgram) -> None:
        self._cli = cli
        self._outputs: dict[tuple[str, ...], str] = {}

    async def output(self, arguments: Sequence[str], *, timeout_s: float, folder: Path) -> str:
        """Returns the output of a command. folder: folder of the test. Raises: as `cli_output`; stores no failure."""
        command = [argument.replace(str(folder), TEST_FOLDER) for argument in arguments]
        key = (*command, _digest(arguments, folder))
        if key not in self._outputs:
            output = await cli_output(arguments, timeout_s=timeout_s, command=self._cli.command)
            self._outputs[key] = output.replace(str(folder), TEST_FOLDER)
        return self._outputs[key].replace(TEST_FOLDER, str(folder))

    async def answer(self, request: Mapping[str, Any], *, folder: Path) -> dict[str, Any]:
        """Returns the answer to a request about recipes. folder: as in `output`."""
        text = json.dumps(request)
        key = (text.replace(str(folder), TEST_FOLDER), _digest([text], folder))
        if key not in self._outputs:
            answer = json.dumps(await asyncio.to_thread(answers.answer, request))
            self._outputs[key] = answer.replace(str(folder), TEST_FOLDER)
        stored: dict[str, Any] = json.loads(self._outputs[key].replace(TEST_FOLDER, str(folder)))
        return stored


class OwnRecipeProgram:
    """Answers the requests of the catalogue about recipes in this process: each once, as commands."""

    def __init__(self, outputs: CliOutputs, folder: Path) -> None:
        self._outputs, self._folder = outputs, folder

    async def ask(self, request: Mapping[str, Any]) -> Any:
        """Returns the answer to a request. Raises: InvalidInput with the code of its problem."""
        values = await self._outputs.answer(request, folder=self._folder)
        if "problem" in values:
            raise InvalidInput(values["problem"], code=values["code"])
        return values["answer"]

    async def close(self) -> None:
        """Does nothing."""


def _digest(arguments: Sequence[str], folder: Path) -> str:
    """Digest of the files below the folder that the arguments name."""
    digest = hashlib.sha256()
    named = re.findall(re.escape(str(folder)) + r"[^\s\"']*", " ".join(arguments))
    for path in sorted(Path(name) for name in named):
        for file in [path] if path.is_file() else sorted(path.rglob("*.*")):
            if file.is_file():
                digest.update(f"{file.relative_to(folder)} {file.resolve() == file}\n".encode() + file.read_bytes())
    return digest.hexdigest()


class FakeCatalogue(Catalogue):
    """One recipe, `smoke`, with one setting."""

    async def cards(self) -> tuple[RecipeCard, ...]:
        return (
            RecipeCard(name="smoke", name_or_path="smoke", summary="Looks whether it smokes", simulated=(), problem=""),
        )

    async def card(self, name: str) -> RecipeCard:
        if name != "smoke":
            raise InvalidInput(f"no recipe is called {name[:80]!r}; known: smoke")
        return (await self.cards())[0]

    async def form(
        self, name_or_path: str, overrides: Sequence[str] = (), *, text: str | None = None, role: str = ""
    ) -> RecipeForm:
        chosen = dict(override.split("=", 1) for override in overrides)
        steps = chosen.get(STEPS, "100")
        problems = () if steps.isdigit() else (FormProblem(key=STEPS, message="a whole number"),)
        return RecipeForm(
            name="smoke",
            summary="Looks whether it smokes",
            simulated=(),
            fields=(
                FormField(
                    key=STEPS,
                    title="Maximum steps",
                    owner="",
                    kind="integer",
                    value=100,
                    description="When to stop",
                    minimum=1.0,
                    maximum=None,
                    choices=(),
                    is_optional=False,
                    is_basic=True,
                    settable_by="agent",
                ),
            ),
            problems=problems,
            refusals=(),
            checks=(),
            overrides=tuple(overrides),
            needs_admin=False,
            toml=f"steps = {steps}",
            text=f"[stop]\nsteps = {steps}\n",
            usd_per_hour=0.0,
            has_fleet=False,
            pools=(),
            usd_per_hour_max=None,
            usd_per_day_max=None,
        )


class FakeLauncher(Launcher):
    """Starts runs that end at once, with a recipe to continue from and a log."""

    @staticmethod
    async def _start_process(folder: RunFolder, argv: Sequence[str]) -> int:
        file = folder.log(LAUNCH_LOG)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("began\nended\n")
        folder.recipe_file.write_text("{}")
        (folder.path / SUMMARY).write_text(json.dumps({"reason": "it was over at once"}))
        return 2**30  # not the pid of any process
