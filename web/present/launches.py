"""Launching: the form of a recipe with what was filled in, and the runs that were launched."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from astraflow.contract.errors import InvalidInput, NotPermitted
from astraflow.runtime.overrides import SetBy
from web.launching.catalogue import FleetCheck, FormField, FormProblem, RecipeForm, Rehearsed
from web.launching.launcher import LOG, Launch, LaunchState
from web.launching.options import LaunchOptions
from web.launching.sources import Source
from web.present.launch_cost import cost_of_nodes, cost_of_pools, machines_of

LAUNCHES = "/api/v1/launches"
"""Where the API launches."""

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
    form: RecipeForm
    overrides: tuple[str, ...]
    options: LaunchOptions
    problem: str
    """What is wrong besides the settings."""
    refusals: tuple[FormProblem, ...]
    """What the role may not do; those that are about a setting are among the form's problems."""
    role: str
    """Of the user who chose."""
    places: tuple[str, ...]
    """Data places: paths below them may be chosen."""
    key: str
    """The form's own: sent twice, it launches once."""
    rehearsed: Rehearsed | None = None
    """What its providers said; None before they were asked."""
    rehearsal_problem: str = ""
    """Why they could not be asked."""

    @property
    def title(self) -> str:
        """What is launched."""
        return self.source.recipe or f"a run like {self.source.of}"

    @property
    def _named(self) -> dict[str, str]:
        return {"recipe": self.source.recipe} if self.source.recipe else {"of": self.source.of}

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
        """What is wrong with a setting; empty when nothing is. What is wrong in a list is wrong with it."""
        lists = {field.key for field in self.form.fields if field.kind == "plugins"}
        return "; ".join(
            problem.message
            for problem in self.form.problems
            if problem.key == key or (key in lists and problem.key.startswith(f"{key}."))
        )

    @property
    def other_problems(self) -> Sequence[FormProblem]:
        """What is wrong with no setting of the form in particular."""
        return [problem for problem in self.form.problems if not self._is_of_a_field(problem)]

    def _is_of_a_field(self, problem: FormProblem) -> bool:
        return any(
            problem.key == field.key or (field.kind == "plugins" and problem.key.startswith(f"{field.key}."))
            for field in self.form.fields
        )

    @property
    def is_ready(self) -> bool:
        """Whether it can be launched as it is."""
        return not self.problem and not self.form.problems and not self.refusals

    @property
    def refused(self) -> str:
        """All that is refused, in a sentence; empty when nothing is."""
        return "; ".join(
            f"cannot override {one.key}: {one.message}" if one.key else one.message for one in self.refusals
        )

    @property
    def status(self) -> int:
        """HTTP status of a page that shows it."""
        return 403 if self.refusals else 200 if self.is_ready else 422

    def check(self) -> None:
        """Refuse what cannot be launched. Raises: NotPermitted, InvalidInput."""
        if self.refusals:
            raise NotPermitted(self.refused)
        if not self.is_ready:
            raise InvalidInput(self.trouble)

    def may_set(self, field: FormField) -> bool:
        """Whether the form lets the user change a setting; the server decides again when it is sent."""
        if field.set_by == "place":
            return bool(self.places)
        return SetBy(field.set_by).allows(self.role)

    @property
    def needs_admin(self) -> bool:
        """Whether it has settings that only an admin may override."""
        admins = {field.key for field in self.form.fields if field.set_by == SetBy.ADMIN.value}
        return self.source.needs_admin or any(one.partition("=")[0] in admins for one in self.overrides)

    @property
    def trouble(self) -> str:
        """All that is wrong, in a sentence; empty when nothing is."""
        found = [f"{one.key}: {one.message}" if one.key else one.message for one in self.form.problems]
        return "; ".join([self.problem, *found] if self.problem else found)

    @property
    def command(self) -> str:
        """The same on the command line."""
        sets = [part for override in self.overrides for part in ("--set", override)]
        return shlex.join(["astraflow", "run", self.source.place, *self.options.arguments(), *sets])

    @property
    def body(self) -> dict[str, object]:
        """The same over the API: what is sent, with each setting as it was chosen."""
        fields = {field.key: field for field in self.form.fields}
        changed = [override.partition("=")[0] for override in self.overrides]
        return {
            **self._named,
            **({"set": {key: _as_json(fields[key]) for key in changed if key in fields}} if changed else {}),
            "fleet": self.options.has_fleet,
            "ends_by_itself": self.options.ends_by_itself,
            "limit_s": self.options.limit_s,
            "reason": "why",
        }

    @property
    def request(self) -> str:
        """The same over the API, to read."""
        return f"POST {LAUNCHES}\nIdempotency-Key: {self.key}\n\n{json.dumps(self.body, indent=2)}"

    @property
    def has_pools(self) -> bool:
        """Whether its machines come from pools that the recipe names."""
        return self.options.has_fleet and bool(self.form.pools)

    @property
    def is_asking(self) -> bool:
        """Whether its providers are still to be asked."""
        return self.has_pools and self.is_ready and self.rehearsed is None and not self.rehearsal_problem

    @property
    def provider_checks(self) -> tuple[FleetCheck, ...]:
        """What its providers said."""
        return self.rehearsed.checks if self.rehearsed is not None else ()

    @property
    def machines(self) -> str:
        """Where its nodes come from, in a sentence."""
        if self.has_pools:
            return f"a fleet service starts them: {machines_of(self.form.pools)}"
        if self.options.has_fleet:
            return "a fleet service starts them, as processes of this machine"
        left_out = "; its recipe's pools are left out" if self.form.pools else ""
        return f"processes of this machine{left_out}"

    @property
    def cost(self) -> str:
        """What the nodes cost, in a sentence."""
        if not self.has_pools:
            return cost_of_nodes(self.form.usd_per_hour)
        return cost_of_pools(
            self.rehearsed.pools if self.rehearsed is not None else self.form.pools,
            usd_per_hour_max=self.form.usd_per_hour_max,
            usd_per_day_max=self.form.usd_per_day_max,
            is_asked=not self.is_asking,
        )


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


def _as_json(field: FormField) -> bool | int | float | str | None:
    """A setting as JSON has it; what makes no sense stays the text that it is."""
    text = field.text
    if field.kind in ("text", "plugins"):
        return text
    if field.kind == "yes_no":
        return {"true": True, "false": False}.get(text, text)
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if isfinite(number) else text
    return text or None


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
