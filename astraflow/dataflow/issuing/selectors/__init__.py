"""The selectors that come with AstraFlow, by kind."""

from astraflow.dataflow.issuing.selection import Selector
from astraflow.runtime.plugins import Registry

selectors: Registry[Selector] = Registry(
    "selector", built_in={"uniform": "astraflow.dataflow.issuing.selectors.uniform"}
)
