"""Storage backends of the weight store; the built-ins by kind.

A plugin is a class in a module that registers itself, with its options beside it; list the module under the entry
point group `astraflow.storages`:

    @storages.register("my_storage", options=MyStorageOptions)
    class MyStorage:  # an astraflow.weights.store.storage.base.WeightStorage
        def __init__(self, options: MyStorageOptions, directory: Path) -> None: ...

`directory` is the store's own on this machine, locked while the plugin lives. `astraflow/testing/storage.py` tests
the requirements.
"""

from astraflow.runtime.plugins import Registry, modules
from astraflow.weights.store.storage.base import WeightStorage

storages: Registry[WeightStorage] = Registry(
    "storage",
    built_in=modules(__name__, "disk memory s3"),
)
