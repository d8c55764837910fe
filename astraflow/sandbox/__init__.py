"""Registry of sandboxes, which run generated code in isolation."""

from astraflow.runtime.plugins import Registry
from astraflow.sandbox.base import Sandbox

sandboxes: Registry[Sandbox] = Registry(
    "sandbox",
    built_in={"local": "astraflow.sandbox.local", "sandbox_fusion": "astraflow.sandbox.sandbox_fusion"},
    extra="sandbox",
)
