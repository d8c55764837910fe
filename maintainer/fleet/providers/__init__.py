"""Where machines come from; the built-ins by kind.

A provider is a class in a module that registers itself, with its options beside it; list the module here, or under the
entry point group `astraflow.providers`:

    @providers.register("my_cloud", options=MyCloudOptions)
    class MyCloud:  # a maintainer.fleet.providers.base.Provider
        def __init__(self, options: MyCloudOptions, *, clock: Clock, directory: Path) -> None: ...

`directory` is the provider's own, for what must survive a restart. A heavy SDK is imported by the function that makes
its client, and the extra that brings it is named in the error where it is missing.
"""

from astraflow.runtime.plugins import Registry
from maintainer.fleet.providers.base import Provider

providers: Registry[Provider] = Registry(
    "provider",
    built_in={
        "ec2": "maintainer.fleet.providers.ec2",
        "kubernetes": "maintainer.fleet.providers.kubernetes",
        "local_process": "maintainer.fleet.providers.local_process",
        "skypilot": "maintainer.fleet.providers.skypilot",
        "slurm": "maintainer.fleet.providers.slurm",
        "static_ssh": "maintainer.fleet.providers.static_ssh",
    },
    advice="the extra of that provider brings it, as in pip install 'astraflow[aws]'",
)
