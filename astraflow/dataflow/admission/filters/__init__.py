"""Built-in filters, by kind."""

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.plugins import PluginSpec
from astraflow.dataflow.admission.filtering import Filter, PolicyChecked
from astraflow.runtime.plugins import Registry

filters: Registry[Filter] = Registry(
    "filter",
    built_in={
        "informative": "astraflow.dataflow.admission.filters.informative",
        "keep_all": "astraflow.dataflow.admission.filters.keep_all",
        "length": "astraflow.dataflow.admission.filters.length",
        "off_policy": "astraflow.dataflow.admission.filters.off_policy",
        "repetition": "astraflow.dataflow.admission.filters.repetition",
        "route": "astraflow.dataflow.admission.filters.route",
    },
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
