"""Registry of environments, in which a policy acts for several turns."""

from astraflow.environments.base import EnvironmentFactory
from astraflow.runtime.plugins import Registry

environments: Registry[EnvironmentFactory] = Registry(
    "environment",
    built_in={
        "http": "astraflow.environments.http",
        "process": "astraflow.environments.process",
        "textcraft": "astraflow.environments.textcraft",
        "webshop": "astraflow.environments.webshop",
    },
    install_hint="install it with pip install 'astraflow[environments]'",
)
