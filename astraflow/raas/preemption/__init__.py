"""Sources of preemption notices for a node's machine; the built-in sources by kind.

A plugin is a class in a module that registers itself, with its options beside it; list the module under the entry
point group `astraflow.notices`:

    @notices.register("my_cloud", options=MyCloudOptions)
    class MyCloud:  # an astraflow.raas.preemption.base.NoticeSource
        def __init__(self, options: MyCloudOptions) -> None: ...
"""

from astraflow.raas.preemption.base import NoticeSource
from astraflow.runtime.plugins import Registry, modules

notices: Registry[NoticeSource] = Registry(
    "notice",
    built_in=modules(__name__, "file http none"),
)
