"""Registries of environments, in which a policy acts for several turns, and of games for two policies."""

from astraflow.environments.base import EnvironmentFactory
from astraflow.environments.two_player import GameFactory
from astraflow.runtime.plugins import Registry

environments: Registry[EnvironmentFactory] = Registry(
    "environment",
    built_in={
        "alfworld": "astraflow.environments.alfworld",
        "scienceworld": "astraflow.environments.scienceworld",
        "terminal": "astraflow.environments.terminal",
    },
)

games: Registry[GameFactory] = Registry(
    "game",
    built_in={"textarena": "astraflow.environments.textarena_games"},
    install_hint="install it with pip install 'astraflow[environments]'",
)
