"""Built-in samplers, by kind."""

from astraflow.dataflow.serving.sampling import Sampler
from astraflow.runtime.plugins import Registry

samplers: Registry[Sampler] = Registry(
    "sampler",
    built_in={
        "fresh": "astraflow.dataflow.serving.samplers.fresh",
        "priority": "astraflow.dataflow.serving.samplers.priority",
        "replay": "astraflow.dataflow.serving.samplers.replay",
    },
)
