"""Registries of environments, in which a policy acts for several turns, and of games for two policies."""

from astraflow.environments.base import EnvironmentFactory
from astraflow.environments.two_player import GameFactory
from astraflow.runtime.plugins import Registry

_INSTALL_HINT = "install it with pip install 'astraflow[environments]'"

environments: Registry[EnvironmentFactory] = Registry(
    "environment",
    built_in={
        "alfworld": "astraflow.environments.alfworld",
        "http": "astraflow.environments.http",
        "process": "astraflow.environments.process",
        "scienceworld": "astraflow.environments.scienceworld",
        "terminal": "astraflow.environments.terminal",
        "textcraft": "astraflow.environments.textcraft",
        "webshop": "astraflow.environments.webshop",
    },
    install_hint=_INSTALL_HINT,
)

games: Registry[GameFactory] = Registry(
    "game",
    built_in={
        "process": "astraflow.environments.process",
        "textarena": "astraflow.environments.textarena_games",
    },
    install_hint=_INSTALL_HINT,
)
