"""Launching without processes: a recipe whose form is known, and runs that are over as soon as they are begun.

For tests that launch by the hundred; `tests/web/launching/test_launching.py` has the real thing.
"""

import json
import subprocess
from collections.abc import Sequence
from typing import cast

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.runs import RunFolder
from web.launching.catalogue import Catalogue, FormField, FormProblem, RecipeCard, RecipeForm
from web.launching.launcher import LOG, SUMMARY, Launcher

STEPS = "stop.steps"


class FakeCatalogue(Catalogue):
    """One recipe, `smoke`, with one setting."""

    async def cards(self) -> tuple[RecipeCard, ...]:
        return (RecipeCard(name="smoke", place="smoke", summary="Looks whether it smokes", simulated=(), problem=""),)

    async def card(self, name: str) -> RecipeCard:
        if name != "smoke":
            raise InvalidInput(f"no recipe is called {name[:80]!r}; known: smoke")
        return (await self.cards())[0]

    async def form(self, place: str, overrides: Sequence[str] = (), *, role: str = "") -> RecipeForm:
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
                    title="Most steps",
                    owner="",
                    kind="whole",
                    value=100,
                    description="When to stop",
                    least=1.0,
                    most=None,
                    choices=(),
                    is_optional=False,
                    is_short=True,
                    set_by="agent",
                ),
            ),
            problems=problems,
            refusals=(),
            checks=(),
            toml=f"steps = {steps}",
            usd_per_hour=0.0,
            has_fleet=False,
            pools=(),
            usd_per_hour_max=None,
            usd_per_day_max=None,
        )


class FakeLauncher(Launcher):
    """Begins runs that end at once, with a recipe to go on with and a log."""

    @staticmethod
    async def _started(folder: RunFolder, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        file = folder.log(LOG)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("it began\nit ended\n")
        folder.recipe_file.write_text("{}")
        (folder.path / SUMMARY).write_text(json.dumps({"reason": "it was over at once"}))
        return cast("subprocess.Popen[bytes]", _Over())


class _Over:
    """A process that ended."""

    pid = 2**30
    """No process has it."""

    returncode = 0

    def poll(self) -> int:
        return self.returncode
