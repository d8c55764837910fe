"""Serving engines behind one small port; the built-ins by kind.

A plug-in is a class in a module that registers itself, with its options beside it; list the module under the entry
point group `astraflow.engines`, and run `tests/suites/engine_suite.py` on it:

    @engines.register("my_server", options=MyServerOptions)
    class MyServer:  # an astraflow.raas.engines.base.Engine
        def __init__(self, options: MyServerOptions, model: Mapping[str, Any]) -> None: ...
"""

from astraflow.raas.engines.base import Engine
from astraflow.runtime.plugins import Registry

engines: Registry[Engine] = Registry(
    "engine",
    built_in={
        "local_torch": "astraflow.raas.engines.local_torch",
        "scripted": "astraflow.raas.engines.scripted",
    },
    heavy=("local_torch",),
)
