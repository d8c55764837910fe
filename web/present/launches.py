"""Launching: the form of a recipe with what was filled in, and the runs that were launched."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.contract.errors import InvalidInput
from web.launching.acts import Source
from web.launching.catalogue import FormField, FormProblem, RecipeForm
from web.launching.launcher import LOG, Launch, LaunchState
from web.launching.options import LaunchOptions

SET = "set."
"""Begins the names of the form's fields that are settings of the recipe."""

TONES = {LaunchState.STARTING: "warn", LaunchState.RUNNING: "good", LaunchState.ENDED: "off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldGroup:
    """Settings of one table of the recipe."""

    title: str
    """Its key, in words."""
    key: str
    fields: tuple[FormField, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchChoice:
    """A recipe, what was filled in, and what would come of it."""

    source: Source
    recipe: str
    """Its name; empty for an earlier run's."""
    of: str
    """The earlier run; empty for a recipe."""
    form: RecipeForm
    overrides: tuple[str, ...]
    options: LaunchOptions
    problem: str
    """What is wrong besides the settings."""
    query: str
    """Which recipe or run, for links."""
    key: str
    """The form's own: sent twice, it launches once."""

    @property
    def title(self) -> str:
        """What is launched."""
        return self.recipe or f"a run like {self.of}"

    @property
    def short(self) -> tuple[FormField, ...]:
        """The settings that most launches are about."""
        return tuple(field for field in self.form.fields if field.is_short)

    @property
    def groups(self) -> list[FieldGroup]:
        """All others, by the table they stand in."""
        groups: dict[str, list[FormField]] = {}
        for field in self.form.fields:
            if not field.is_short:
                parts = field.key.split(".")
                groups.setdefault(".".join(parts[:2] if len(parts) > 2 else parts[:1]), []).append(field)
        return [
            FieldGroup(title=key.replace(".", ": ").replace("_", " ").capitalize(), key=key, fields=tuple(fields))
            for key, fields in groups.items()
        ]

    def problem_of(self, key: str) -> str:
        """What is wrong with a setting; empty when nothing is."""
        return "; ".join(problem.message for problem in self.form.problems if problem.key == key)

    @property
    def other_problems(self) -> Sequence[FormProblem]:
        """What is wrong with no setting of the form in particular."""
        keys = {field.key for field in self.form.fields}
        return [problem for problem in self.form.problems if problem.key not in keys]

    @property
    def is_ready(self) -> bool:
        """Whether it can be launched as it is."""
        return not self.problem and not self.form.problems

    @property
    def command(self) -> str:
        """The same on the command line."""
        sets = [part for override in self.overrides for part in ("--set", override)]
        return shlex.join(["astraflow", "run", self.source.place, *self.options.arguments(), *sets])

    @property
    def request(self) -> str:
        """The same over the API."""
        body = {
            "recipe": self.recipe,
            "of": self.of,
            "set": dict(override.split("=", 1) for override in self.overrides),
            "fleet": self.options.has_fleet,
            "ends_by_itself": self.options.ends_by_itself,
            "limit_s": self.options.limit_s,
            "reason": "why",
        }
        told = {key: value for key, value in body.items() if key == "limit_s" or value not in ("", {})}
        return f"POST /api/v1/launches\nIdempotency-Key: {self.key}\n\n{json.dumps(told, indent=2)}"

    @property
    def cost(self) -> str:
        """What the nodes cost, in a sentence."""
        price = self.form.usd_per_hour
        return f"${price:,.2f} an hour for its nodes" if price else "nothing: its nodes are this machine's"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRow:
    """A launched run in the list."""

    name: str
    recipe: str
    state: str
    tone: str
    actor: str
    launched_at: float
    last_word: str
    is_going_on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchView:
    """A launched run by itself."""

    row: LaunchRow
    folder: str
    options: str
    programs: tuple[str, ...]
    """Processes that have a log."""
    program: str
    """The one whose log is shown."""
    can_resume: bool


def launch_row(launch: Launch) -> LaunchRow:
    """One line."""
    return LaunchRow(
        name=launch.name,
        recipe=launch.recipe,
        state=launch.state.value,
        tone=TONES[launch.state],
        actor=launch.actor,
        launched_at=launch.launched_at,
        last_word=launch.last_word,
        is_going_on=launch.state is not LaunchState.ENDED,
    )


def launch_view(launch: Launch, program: str) -> LaunchView:
    """A page."""
    programs = tuple(launch.folder.logs())
    chosen = program if program in programs else LOG
    return LaunchView(
        row=launch_row(launch),
        folder=str(launch.folder.path),
        options=_how(launch),
        programs=programs,
        program=chosen,
        can_resume=launch.can_resume,
    )


def _how(launch: Launch) -> str:
    """The way it was started, in a sentence."""
    options = launch.options
    parts = ["ends by itself when it has learned" if options.ends_by_itself else "goes on until it is stopped"]
    if options.has_fleet:
        parts.append("a fleet service starts its nodes")
    if options.limit_s:
        parts.append(f"ends after {options.limit_s:g} s at the latest")
    try:
        enroll = launch.folder.facts.enroll
    except InvalidInput:
        enroll = ""  # it has not begun
    if enroll:
        parts.append(f"machines elsewhere join at {enroll}, over TLS")
    return "; ".join(parts)
