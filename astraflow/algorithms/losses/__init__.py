"""What the optimizer makes smaller; the built-ins by kind."""

from astraflow.algorithms.losses.base import Loss
from astraflow.runtime.plugins import Registry

losses: Registry[Loss] = Registry("loss", built_in={"ppo": "astraflow.algorithms.losses.ppo"}, heavy=("ppo",))
