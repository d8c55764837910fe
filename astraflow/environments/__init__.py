"""Registries of environments, in which a policy acts for several turns, and of games for two policies."""

from astraflow.environments.base import EnvironmentFactory
from astraflow.environments.two_player import GameFactory
from astraflow.runtime.plugins import Registry

environments: Registry[EnvironmentFactory] = Registry(
    "environment",
    built_in={
        "alfworld": "astraflow.environments.alfworld",
        "http": "astraflow.environments.adapters.http",
        "maintainer": "maintainer.training.environment",
        "openenv": "astraflow.environments.foreign.openenv",
        "process": "astraflow.environments.adapters.process",
        "scienceworld": "astraflow.environments.scienceworld",
        "terminal": "astraflow.environments.terminal.environment",
        "textcraft": "astraflow.environments.textcraft",
        "webshop": "astraflow.environments.webshop.environment",
    },
    extra="environments",
)

games: Registry[GameFactory] = Registry(
    "game",
    built_in={
        "process": "astraflow.environments.adapters.process",
        "textarena": "astraflow.environments.textarena_games",
    },
    extra="environments",
)
