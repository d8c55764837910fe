"""Pure maths on tensors: advantages, masks, losses."""

from astraflow.algorithms.base import Advantage
from astraflow.runtime.plugins import Registry

advantages: Registry[Advantage] = Registry(
    "advantage",
    built_in={
        "batch_whitened": "astraflow.algorithms.advantages",
        "group_centred": "astraflow.algorithms.advantages",
        "group_relative": "astraflow.algorithms.advantages",
        "leave_one_out": "astraflow.algorithms.advantages",
    },
    heavy=("batch_whitened", "group_centred", "group_relative", "leave_one_out"),
)
