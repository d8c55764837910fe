"""The filters that come with AstraFlow, by kind."""

from astraflow.dataflow.admitting.filtering import Filter
from astraflow.runtime.plugins import Registry

filters: Registry[Filter] = Registry(
    "filter",
    built_in={
        "informative": "astraflow.dataflow.admitting.filters.informative",
        "keep_all": "astraflow.dataflow.admitting.filters.keep_all",
    },
)
