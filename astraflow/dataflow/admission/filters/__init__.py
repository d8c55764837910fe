"""Built-in filters, by kind."""

from typing import Protocol, runtime_checkable

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.plugins import PluginSpec
from astraflow.dataflow.admission.routing import RoutedGroup
from astraflow.dataflow.plugin_slot import Plugin
from astraflow.runtime.plugins import Registry, modules

MIN_REWARD_SPREAD = 1e-6
"""Rewards that differ by at most this count as equal, unless options set another value."""


class Filter(Plugin, Protocol):
    """Decides whether a finished group is worth training on. Built by `filters.build(spec)`."""

    def keep(self, group: RoutedGroup, version: Version) -> bool:
        """Returns whether to keep the group; a drop counts under the filter's kind. version: the trainer's."""


@runtime_checkable
class PolicyChecked(Protocol):
    """A filter whose options name policies."""

    def check_policies(self, policies: tuple[PolicyId, ...]) -> None:
        """Checks the options against the policies that the flow trains. Raises: ValueError with cause and remedy."""


filters: Registry[Filter] = Registry(
    "filter",
    built_in=modules(__name__, "informative keep_all length off_policy repetition route"),
)


def build_filter(spec: PluginSpec, policies: tuple[PolicyId, ...]) -> Filter:
    """Builds a filter of a flow that trains these policies. Raises: InvalidInput, also if its policies are others."""
    plugin = filters.build(spec)
    if isinstance(plugin, PolicyChecked):
        try:
            plugin.check_policies(policies)
        except ValueError as problem:
            raise InvalidInput(
                f"cannot use the filter {spec['kind']!r}: {problem}", code="filters.impossible_route"
            ) from None
    return plugin
