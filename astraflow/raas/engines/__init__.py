"""Serving engines behind one interface; the built-in engines by kind.

A plugin is a class in a module that registers itself, with its options beside it; list the module under the entry
point group `astraflow.engines`, and run `astraflow check engine KIND` on it (docs/how-to/own-engine.md):

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
        "openai_tokens": "astraflow.raas.engines.server.openai_tokens",
        "scripted": "astraflow.raas.engines.scripted",
        "sglang": "astraflow.raas.engines.server.sglang",
        "vllm": "astraflow.raas.engines.server.vllm",
    },
    heavy=("local_torch", "sglang", "vllm"),
    extra="train,engines",
)
