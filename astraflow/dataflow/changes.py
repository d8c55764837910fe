"""Other data algorithms while a run runs: asked for at any time, in force from the next version on."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from astraflow.contract.errors import InvalidInput, NotPermitted, UnknownPolicy
from astraflow.contract.ids import FlowId, PolicyId
from astraflow.contract.plugins import PlannedPlugins, PluginChange, PluginSpec, Seam
from astraflow.contract.values import Json
from astraflow.dataflow.admitting.filters import filters
from astraflow.dataflow.flow import Flow
from astraflow.dataflow.issuing.selectors import selectors
from astraflow.dataflow.journal import Journal
from astraflow.dataflow.plugged import Plugged
from astraflow.dataflow.records import Records
from astraflow.dataflow.reporting.events import Events
from astraflow.dataflow.serving.samplers import samplers
from astraflow.dataflow.serving.stream import Stream
from astraflow.runtime.config import nearest
from astraflow.runtime.overrides import SetBy, set_by
from astraflow.runtime.plugins import Registry

MOST_PLUGINS = 32
"""At one seam: what is in force is written with every commit."""

MOST_LETTERS = 1000
"""Of who asks, and of why."""

_REGISTRIES: Mapping[Seam, Registry[Any]] = {Seam.SELECTOR: selectors, Seam.FILTERS: filters, Seam.SAMPLER: samplers}

Place: TypeAlias = Flow | Stream
"""What has plug-ins."""


class PluginChanges:
    """Plans changes, and carries them out when their time has come.

    A stream's comes when its trainer's version grows, a flow's when all its policies have reached the next version, so
    that one rule decides about all that happens at a version. Where no version will come there is none to wait for: a
    change is carried out at once while its flow, or all flows that feed its stream, are paused, and until every trainer
    concerned has attached for the first time. Pausing is also the way out when what is in force keeps versions from
    coming, as a filter does that drops everything.
    """

    def __init__(
        self,
        flows: Mapping[FlowId, Flow],
        streams: Mapping[PolicyId, Stream],
        *,
        trainers: Mapping[PolicyId, Mapping[str, Json]],
        journal: Journal,
        records: Records,
        events: Events,
    ) -> None:
        self._flows = flows
        self._streams = streams
        self._trainers = trainers
        self._journal = journal
        self._records = records
        self._events = events

    def ask(self, change: PluginChange) -> str:
        """Plan all of a change or nothing; tells when it holds. Raises: InvalidInput, NotPermitted, UnknownPolicy."""
        place, where = self._place(change)
        wanted = change.wanted()
        _check(change, wanted, place, where)
        for seam, specs in wanted.items():
            _check_options(seam, specs, place.seams[seam].specs, where=f"{where}.{seam.value}")
        for seam, specs in wanted.items():
            place.seams[seam].check(specs, where=f"{where}.{seam.value}")
        for seam, specs in wanted.items():
            place.seams[seam].plan(specs, actor=change.actor, reason=change.reason, version=place.version)
            if place.seams[seam].planned is None:
                self._note("kept", place, seam, specs, "stays", by=change)
        self.carry_out(place)
        for planned in (place.seams[seam].planned for seam in wanted):
            if planned is not None:
                self._note("planned", place, planned.seam, planned.specs, "from the next version on", by=planned)
        self._journal.touch()
        return "; ".join(f"{seam.value} of {where} {_when(place.seams[seam])}" for seam in wanted)

    def carry_out(self, place: Place) -> None:
        """Put in force what is due. To be called when a version has grown."""
        for plugged in place.seams.values():
            if plugged.planned is not None and self._is_due(place, plugged.planned):
                self._take_over(place, plugged, plugged.planned)

    def carry_out_paused(self, flow: Flow) -> None:
        """The same, of a flow that was paused and the streams that it feeds."""
        self.carry_out(flow)
        for policy in flow.policies:
            self.carry_out(self._streams[policy])

    def _place(self, change: PluginChange) -> tuple[Place, str]:
        """What is to change, and where a recipe would say so."""
        if change.flow is not None and change.policy is None:
            if change.flow not in self._flows:
                raise InvalidInput(f"this run has no flow {change.flow!r}; {nearest(change.flow, list(self._flows))}")
            return self._flows[change.flow], f"flows.{change.flow}"
        if change.policy is not None and change.flow is None:
            if change.policy not in self._streams:
                known = nearest(change.policy, list(self._streams))
                raise UnknownPolicy(f"this run has no policy {change.policy!r}; {known}")
            return self._streams[change.policy], f"policies.{change.policy}"
        raise InvalidInput("plug-ins belong to a flow or to a policy: name one of the two")

    def _is_due(self, place: Place, planned: PlannedPlugins) -> bool:
        if isinstance(place, Flow):
            flows, policies = [place], place.policies
        else:
            flows = [flow for flow in self._flows.values() if place.policy in flow.policies]
            policies = (place.policy,)
        is_standing = all(flow.is_paused for flow in flows) or any(policy not in self._trainers for policy in policies)
        return is_standing or place.version > planned.version

    def _take_over(self, place: Place, plugged: Plugged[Any], planned: PlannedPlugins) -> None:
        owner = owner_of_rows(place) if isinstance(place, Flow) else None
        refused = plugged.take_over()
        if isinstance(place, Stream):
            self._records.released(place.policy, place.forget_unreplayed())
        elif planned.seam is Seam.SELECTOR:
            self._hand_rows_over(place, owner, is_anew=bool(refused))
        anew = [f"; {label} begins anew, its old state does not fit ({why})" for label, why in refused.items()]
        self._note("changed", place, planned.seam, planned.specs, f"is in force{''.join(anew)}", by=planned)

    def _hand_rows_over(self, flow: Flow, before: str | None, *, is_anew: bool) -> None:
        """The commit that knows of a change also deletes the rows that nobody goes on with."""
        after = owner_of_rows(flow)
        if before is not None and (is_anew or after != before):
            self._journal.forget_rows(before)
        if after is not None and flow.rows is not None:
            self._journal.keep_rows(after, flow.rows[1].changed_rows)

    def _note(
        self,
        happening: str,
        place: Place,
        seam: Seam,
        specs: Iterable[PluginSpec],
        message: str,
        *,
        by: PluginChange | PlannedPlugins,
    ) -> None:
        subject = place.id if isinstance(place, Flow) else place.policy
        text = ", ".join(json.dumps(dict(spec)) for spec in specs) or "none"
        what = f"{seam.value} {text} {message}"
        self._events.act(f"plugins_{happening}", subject, actor=by.actor, reason=by.reason, what=what)


def owner_of_rows(flow: Flow) -> str | None:
    """Under which name the journal keeps the rows of a flow's selector; None when it has none."""
    return None if flow.rows is None else f"flow {flow.id} {flow.rows[0]}"


def _check(change: PluginChange, wanted: Mapping[Seam, tuple[PluginSpec, ...]], place: Place, where: str) -> None:
    known = " and ".join(seam.value for seam in place.seams)
    if not wanted:
        raise InvalidInput(f"{where}: nothing is asked to change; it has {known}")
    for seam, specs in wanted.items():
        if seam not in place.seams:
            raise InvalidInput(f"{where}: has no {seam.value}, it has {known}: flows have filters, policies a sampler")
        if len(specs) > MOST_PLUGINS:
            raise InvalidInput(f"{where}.{seam.value}: {len(specs)} are too many, {MOST_PLUGINS} are the most")
    for what, text in (("actor", change.actor), ("reason", change.reason)):
        if not 0 < len(text.strip()) <= MOST_LETTERS:
            raise InvalidInput(f"{where}: a change needs its {what}, of 1 to {MOST_LETTERS} letters")


def _check_options(seam: Seam, specs: Iterable[PluginSpec], current: Iterable[PluginSpec], *, where: str) -> None:
    """Checks that a change sets no option that only the recipe may set, before any plug-in is built.

    current: specs in force, whose options may be repeated. Raises: NotPermitted.
    """
    in_force = [(str(spec["kind"]), path, value) for spec in current for path, value in _options(spec)]
    for spec in specs:
        kind = str(spec.get("kind", ""))
        if kind not in _REGISTRIES[seam].kinds():
            continue  # building it names the kinds that there are
        model = _REGISTRIES[seam].options(kind)
        for path, value in _options(spec):
            if path[0] not in model.model_fields:
                continue  # building it names the option that it does not have
            is_open = set_by(model, path) in (SetBy.AGENT, SetBy.OPERATOR)
            if not is_open and (kind, path, value) not in in_force:
                raise NotPermitted(
                    f"cannot change {where}: only the recipe sets the option {'.'.join(path)!r} of {kind!r}; change it "
                    "in the recipe and start the run again",
                    code="plugins.recipe_only_option",
                )


def _options(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Options of a spec without its kind: path of keys and list positions, and value."""
    if isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in items:
            if (*path, str(key)) != ("kind",):
                yield from _options(inner, (*path, str(key)))
    else:
        yield path, value


def _when(plugged: Plugged[Any]) -> str:
    return "is in force" if plugged.planned is None else "changes with the next version"
