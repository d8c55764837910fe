"""Where the weight store keeps its files; the built-ins by kind.

A plug-in is a class in a module that registers itself, with its options beside it; list the module under the entry
point group `astraflow.keeps`:

    @keeps.register("my_place", options=MyPlaceOptions)
    class MyPlace:  # an astraflow.weights.keeping.base.Keep
        def __init__(self, options: MyPlaceOptions, directory: Path) -> None: ...

`directory` is the store's own on this machine, locked while the plug-in lives. `tests/suites/keep_suite.py` is what a
plug-in must do.
"""

from astraflow.runtime.plugins import Registry
from astraflow.weights.keeping.base import Keep

keeps: Registry[Keep] = Registry(
    "keep",
    built_in={
        "disk": "astraflow.weights.keeping.disk",
        "memory": "astraflow.weights.keeping.memory",
        "s3": "astraflow.weights.keeping.s3",
    },
)
