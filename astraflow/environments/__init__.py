"""Registries of environments, in which a policy acts for several turns, and of games for two policies."""

from astraflow.environments.base import EnvironmentFactory
from astraflow.environments.two_player import GameFactory
from astraflow.runtime.plugins import Registry

environments: Registry[EnvironmentFactory] = Registry(
    "environment",
    built_in={
        "http": "astraflow.environments.http",
        "process": "astraflow.environments.process",
        "textcraft": "astraflow.environments.textcraft",
    },
    install_hint="install it with pip install 'astraflow[environments]'",
)

games: Registry[GameFactory] = Registry(
    "game",
    built_in={"textarena": "astraflow.environments.textarena_games"},
    install_hint="install it with pip install 'astraflow[environments]'",
)
