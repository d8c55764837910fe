"""Built-in selectors, by kind."""

from astraflow.dataflow.issuing.selection import Selector
from astraflow.runtime.plugins import Registry

selectors: Registry[Selector] = Registry(
    "selector",
    built_in={
        "curriculum": "astraflow.dataflow.issuing.selectors.curriculum",
        "greso": "astraflow.dataflow.issuing.selectors.greso",
        "sequential": "astraflow.dataflow.issuing.selectors.sequential",
        "uniform": "astraflow.dataflow.issuing.selectors.uniform",
    },
)
