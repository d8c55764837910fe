"""Registry of providers, with the built-in kinds.

A provider is a class that its module registers together with its options. List the module here, or under the entry
point group `astraflow.providers`:

    @providers.register("my_cloud", options=MyCloudOptions)
    class MyCloud:  # a maintainer.fleet.providers.base.Provider
        def __init__(self, options: MyCloudOptions, *, clock: Clock, directory: Path) -> None: ...

`directory` holds the provider's persistent files. A missing package is an error when the fleet service reads its
configuration: a module imports its dependencies at the top, or calls `runtime.imports.require_package` there for an SDK
that takes long to import.
"""

from astraflow.runtime.plugins import Registry
from maintainer.fleet.providers.base import Provider

providers: Registry[Provider] = Registry(
    "provider",
    built_in={
        "ec2": "maintainer.fleet.providers.ec2.provider",
        "kubernetes": "maintainer.fleet.providers.kubernetes.provider",
        "local_process": "maintainer.fleet.providers.local_process.provider",
        "skypilot": "maintainer.fleet.providers.skypilot.provider",
        "slurm": "maintainer.fleet.providers.slurm.provider",
        "static_ssh": "maintainer.fleet.providers.static_ssh.provider",
    },
    extras={"ec2": "aws", "kubernetes": "k8s", "skypilot": "skypilot", "static_ssh": "ssh"},
)
