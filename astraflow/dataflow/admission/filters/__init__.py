"""Built-in filters, by kind."""

from astraflow.dataflow.admission.filtering import Filter
from astraflow.runtime.plugins import Registry

filters: Registry[Filter] = Registry(
    "filter",
    built_in={
        "informative": "astraflow.dataflow.admission.filters.informative",
        "keep_all": "astraflow.dataflow.admission.filters.keep_all",
        "length": "astraflow.dataflow.admission.filters.length",
        "off_policy": "astraflow.dataflow.admission.filters.off_policy",
        "repetition": "astraflow.dataflow.admission.filters.repetition",
    },
)
