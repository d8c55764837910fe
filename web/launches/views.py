"""Launch page: the form of a recipe with its values, and launched runs."""

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from astraflow.client.local_runs import LAUNCH_LOG, LocalRun, LocalRunState, log_tail
from astraflow.contract.errors import InvalidInput, NotPermitted
from astraflow.contract.launching import (
    FormField,
    FormProblem,
    PoolEstimate,
    ProviderCheck,
    RecipeForm,
    RecipePreflight,
)
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.folders.launch_facts import LaunchFacts
from web.components.formats import several
from web.launcher.options import LaunchOptions
from web.launches.cost import cost_of_nodes, cost_of_pools, instances_text, largest_usd_per_hour
from web.launches.progress import SUPERVISOR_LOG, Phase, PhaseState, has_started, phases, start_duration_s

LAUNCHES_PATH = "/api/v1/launches"
"""Address of launches in the API."""

SETTING_PREFIX = "set."
"""Prefix of form fields that are settings of the recipe."""

TONES = {LocalRunState.STARTING: "warn", LocalRunState.RUNNING: "good", LocalRunState.ENDED: "off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSource:
    """Recipe or snapshot from which a run is started."""

    name: str
    """Name of the recipe or of the earlier run."""
    location: str
    """Argument of `astraflow run`: a name or a file."""
    recipe: str = ""
    """Name of the recipe; empty for an earlier run."""
    earlier_run: str = ""
    """Name of the earlier run; empty for a recipe."""
    needs_admin: bool = False
    """Whether it may have settings that only an admin may override."""
    launch: LaunchFacts = dataclasses.field(default_factory=LaunchFacts)
    """Launch of the earlier run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldGroup:
    """Settings of one table of the recipe."""

    title: str
    """Key of the table, in words."""
    key: str
    fields: tuple[FormField, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchChoice:
    """A recipe, the chosen values, and the result of checking them."""

    source: LaunchSource
    form: RecipeForm
    options: LaunchOptions
    problem: str
    """Problem that is not about a setting; empty for none."""
    refusals: tuple[FormProblem, ...]
    """Settings and options that the role may not use; those about a setting are among the form's problems."""
    role: str
    """Role of the user."""
    data_paths: tuple[str, ...]
    """Folders from which data paths may be chosen."""
    key: str
    """Idempotency key of the form; two requests with it launch one run."""
    reason: str = ""
    """Reason that the user entered."""
    kept_steps: tuple[int, ...] = ()
    """Steps of the earlier run in which a fork can begin, newest first."""
    preflight: RecipePreflight | None = None
    """Preflight check of the providers; None before it ran."""
    preflight_problem: str = ""
    """Cause why the preflight check could not run; empty otherwise."""

    @property
    def overrides(self) -> tuple[str, ...]:
        """Settings that differ from the source, as `--set` arguments."""
        return self.form.overrides

    @property
    def title(self) -> str:
        """Title of the launch."""
        kind = "a run like" if self.options.fork_step is None else "a fork of"
        return self.source.recipe or f"{kind} {self.source.earlier_run}"

    @property
    def _source_field(self) -> dict[str, str]:
        return {"recipe": self.source.recipe} if self.source.recipe else {"of": self.source.earlier_run}

    @property
    def main_fields(self) -> tuple[FormField, ...]:
        """Settings that most launches change."""
        return tuple(field for field in self.form.fields if field.is_basic)

    @property
    def groups(self) -> list[FieldGroup]:
        """All other settings, by the table that contains them."""
        groups: dict[str, list[FormField]] = {}
        for field in self.form.fields:
            if not field.is_basic:
                parts = field.key.split(".")
                groups.setdefault(".".join(parts[:2] if len(parts) > 2 else parts[:1]), []).append(field)
        return [
            FieldGroup(title=key.replace(".", ": ").replace("_", " ").capitalize(), key=key, fields=tuple(fields))
            for key, fields in groups.items()
        ]

    def problem_of(self, key: str) -> str:
        """Returns the problems of a setting, including those of entries of a list; empty for none."""
        lists = {field.key for field in self.form.fields if field.kind == "plugins"}
        return "; ".join(
            problem.message
            for problem in self.form.problems
            if problem.key == key or (key in lists and problem.key.startswith(f"{key}."))
        )

    @property
    def text_lines(self) -> Sequence[int]:
        """Numbers of the lines of the text."""
        return range(1, self.form.text.count("\n") + 2)

    @property
    def error_lines(self) -> frozenset[int]:
        """Lines of the text that have a problem."""
        return frozenset(problem.line for problem in self.form.problems if problem.line is not None)

    @property
    def line_problems(self) -> Sequence[FormProblem]:
        """Problems of the text, each with its line."""
        return [problem for problem in self.form.problems if problem.line is not None]

    def field_of(self, problem: FormProblem) -> str:
        """Returns the key of the field at which a problem is shown; empty for none."""
        return next(
            (
                field.key
                for field in self.form.fields
                if problem.key == field.key or (field.kind == "plugins" and problem.key.startswith(f"{field.key}."))
            ),
            "",
        )

    @property
    def has_problem_below(self) -> bool:
        """Whether a field of the collapsed settings has a problem."""
        return any(self.problem_of(field.key) for field in self.form.fields if not field.is_basic)

    @property
    def fields_digest(self) -> str:
        """Digest of the fields, to which a page compares those that it shows."""
        return text_digest("\n".join(field.key for field in self.form.fields))

    @property
    def text_digest(self) -> str:
        """Digest of the text, by which an edit without scripts is noticed."""
        return text_digest(self.form.text)

    @property
    def verdict(self) -> str:
        """Title of the preview: whether it can be launched, or the number of problems."""
        count = len(self.form.problems) + bool(self.problem) + sum(not refusal.key for refusal in self.refusals)
        return "Ready to launch" if self.is_ready else several(count, "problem")

    @property
    def is_ready(self) -> bool:
        """Whether it can be launched without changes."""
        return not self.problem and not self.form.problems and not self.refusals

    @property
    def refusal_text(self) -> str:
        """All refusals as a sentence; empty for none."""
        return "; ".join(
            f"cannot override {refusal.key}: {refusal.message}" if refusal.key else refusal.message
            for refusal in self.refusals
        )

    @property
    def status(self) -> int:
        """HTTP status of the page that shows it."""
        return 403 if self.refusals else 200 if self.is_ready else 422

    def check(self) -> None:
        """Checks that it can be launched. Raises: NotPermitted, InvalidInput."""
        if self.refusals:
            raise NotPermitted(self.refusal_text, code="launch.refused")
        if not self.is_ready:
            raise InvalidInput(self.problem_text, code="launch.invalid")

    def may_set(self, field: FormField) -> bool:
        """Returns whether the form lets the user change a setting; the server decides again on submission."""
        if field.settable_by == "data_location":
            return bool(self.data_paths)
        return SettableBy(field.settable_by).allows(self.role)

    @property
    def needs_admin(self) -> bool:
        """Whether it overrides settings that only an admin may override."""
        return self.source.needs_admin or self.form.needs_admin

    @property
    def problem_text(self) -> str:
        """All problems as a sentence; empty for none."""
        problems = [
            f"{problem.key}: {problem.message}" if problem.key else problem.message for problem in self.form.problems
        ]
        return "; ".join([self.problem, *problems] if self.problem else problems)

    @property
    def command(self) -> str:
        """Equivalent command line."""
        sets = [part for override in self.overrides for part in ("--set", override)]
        target = self.options.target(self.source.location)
        return shlex.join(["astraflow", self.options.command, target, *self.options.arguments(), *sets])

    @property
    def body(self) -> dict[str, object]:
        """Equivalent request body of the API, with each changed setting."""
        fields = {field.key: field for field in self.form.fields}
        changed = [override.partition("=")[0] for override in self.overrides]
        return {
            **self._source_field,
            **self._settings_of(changed, fields),
            "fleet": self.options.has_fleet,
            "ends_by_itself": self.options.ends_by_itself,
            "limit_s": self.options.limit_s,
            **self._fork_fields,
            "reason": "why",
        }

    @property
    def _fork_fields(self) -> dict[str, object]:
        step, is_fresh = self.options.fork_step, self.options.has_fresh_optimizer
        return {} if step is None else {"step": step, "fresh_optimizer": is_fresh}

    def _settings_of(self, changed: Sequence[str], fields: Mapping[str, FormField]) -> dict[str, object]:
        if all(key in fields for key in changed):
            return {"set": {key: _as_json(fields[key]) for key in changed}} if changed else {}
        return {"text": self.form.text}  # it has settings without a field

    @property
    def request(self) -> str:
        """Equivalent request of the API below its address, as text."""
        return f"Idempotency-Key: {self.key}\n\n{json.dumps(self.body, indent=2)}"

    @property
    def has_pools(self) -> bool:
        """Whether its nodes come from pools of the recipe."""
        return self.options.has_fleet and bool(self.form.pools)

    @property
    def needs_preflight(self) -> bool:
        """Whether its providers still have to be checked."""
        return self.has_pools and self.is_ready and self.preflight is None and not self.preflight_problem

    @property
    def provider_checks(self) -> tuple[ProviderCheck, ...]:
        """Results of the preflight check of its providers."""
        return self.preflight.checks if self.preflight is not None else ()

    @property
    def priced_pools(self) -> tuple[PoolEstimate, ...]:
        """Pools of the recipe, with the prices that the preflight check found."""
        return self.preflight.pools if self.preflight is not None else self.form.pools

    @property
    def largest_usd_per_hour(self) -> float | None:
        """Largest cost of the nodes. US dollars per hour; None while unknown."""
        if not self.has_pools:
            return self.form.usd_per_hour
        return largest_usd_per_hour(self.priced_pools, self.form.usd_per_hour_max)

    @property
    def machines(self) -> str:
        """Source of its nodes, in a sentence."""
        if self.has_pools:
            return f"a fleet service starts them: {instances_text(self.form.pools)}"
        if self.options.has_fleet:
            return "a fleet service starts them as processes on this machine"
        left_out = "; the recipe's pools are not used" if self.form.pools else ""
        return f"processes on this machine{left_out}"

    @property
    def cost(self) -> str:
        """Cost of the nodes, in a sentence."""
        if not self.has_pools:
            return cost_of_nodes(self.form.usd_per_hour)
        return cost_of_pools(
            self.priced_pools,
            usd_per_hour_max=self.form.usd_per_hour_max,
            usd_per_day_max=self.form.usd_per_day_max,
            is_asked=not self.needs_preflight,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchView:
    """View model of the page of a launched run."""

    run: LocalRun
    options: str
    """Start options in a sentence."""
    programs: tuple[str, ...]
    """Processes that have a log."""
    program: str
    """Process whose log is shown."""
    phases: tuple[Phase, ...]
    """Phases of its start."""
    start_s: float
    """Time from the start to the first step. Seconds; 0 before it."""
    run_id: int | None
    """Id of the run's record, which has its page; None before its first report."""

    @property
    def is_starting(self) -> bool:
        """Whether its latest start made no step yet."""
        return not has_started(self.phases)

    @property
    def tone(self) -> str:
        """Tone of its state."""
        return TONES[self.run.state]


def text_digest(text: str) -> str:
    """Returns the digest of a text of a recipe."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _as_json(field: FormField) -> bool | int | float | str | None:
    """Returns a setting as JSON; text that does not parse stays text."""
    text = field.text
    if field.kind in ("text", "plugins"):
        return text
    if field.kind == "boolean":
        return {"true": True, "false": False}.get(text, text)
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if isfinite(number) else text
    return text or None


def launch_view(run: LocalRun, program: str, *, run_id: int | None, now: float) -> LaunchView:
    """Returns the page of a launch. run_id: of its record. now: Unix seconds."""
    programs = tuple(run.folder.logs())
    usual = LAUNCH_LOG if LAUNCH_LOG in programs else next(iter(programs), "")
    chosen = program if program in programs else usual
    log = log_tail(run.folder, SUPERVISOR_LOG)[0] if SUPERVISOR_LOG in programs else ""
    ended = PhaseState.FAILED if run.has_failed else PhaseState.STOPPED
    return LaunchView(
        run=run,
        options=_start_options_text(run),
        programs=programs,
        program=chosen,
        phases=phases(log, launched_at=run.started_at, now=now, end=None if run.is_active else ended),
        start_s=start_duration_s(log),
        run_id=run_id,
    )


def _start_options_text(run: LocalRun) -> str:
    """Returns the start options in a sentence."""
    options = run.launch
    parts = ["ends when its stop condition is met" if options.ends_by_itself else "runs until it is stopped"]
    if options.has_fleet:
        parts.append("a fleet service starts its nodes")
    if options.limit_s:
        parts.append(f"ends after {options.limit_s:g} s at most")
    if run.facts and run.facts.enroll:
        parts.append(f"remote nodes join at {run.facts.enroll} over TLS")
    return "; ".join(parts)
