"""The filters that come with AstraFlow, by kind."""

from astraflow.dataflow.admitting.filtering import Filter
from astraflow.runtime.plugins import Registry

filters: Registry[Filter] = Registry(
    "filter",
    built_in={
        "informative": "astraflow.dataflow.admitting.filters.informative",
        "keep_all": "astraflow.dataflow.admitting.filters.keep_all",
        "length": "astraflow.dataflow.admitting.filters.length",
        "off_policy": "astraflow.dataflow.admitting.filters.off_policy",
        "repetition": "astraflow.dataflow.admitting.filters.repetition",
    },
)
