"""Cause of a mismatch between engine and trainer, from what trainers and nodes measure.

Only rows of the trainer's own version are measured, so that the age of rollouts is never the cause.
"""

from collections.abc import Mapping

from astraflow.contract.values import Value

FILTERED, ROUTED, COARSE, SAMPLED, UNEXPLAINED = (
    f"mismatch_{name}" for name in ("filtered", "routed", "coarse", "sampled", "unexplained")
)
"""Causes, whose templates with what to do are in `CAUSES`."""

ONE_SIDED = 0.8
"""`mismatch_one_sided` from which the engine filters its samples: rounding moves tokens in both directions."""

MISSING_MASS = 0.005
"""Probability that filters take away at least; less is within the error of the mean."""

COARSE_NATS = 0.25
"""Largest difference on the probe above which engine and trainer compute otherwise; rounding to 16 bits is below it."""


def mismatch_cause(
    metrics: Mapping[str, float],
    *,
    probe: float | None = None,
    engines: str = "",
    trainer: str = "",
    is_mixture: bool = False,
) -> tuple[str, dict[str, Value]]:
    """Returns the cause, and the values of its text.

    metrics: of a step with `mismatch_k3`. probe: largest difference that a node measured on the probe of a version, in
    nats; None if unknown. engines, trainer: precisions in which they compute; empty if unknown. is_mixture: the trainer
    stated that its model is a mixture of experts; one with `balance_loss` is too. `changed_experts` is measured where
    the trainer replays the engine's choices, which are then not the cause.
    """
    values: dict[str, Value] = {"k3": metrics["mismatch_k3"], "engines": engines, "trainer": trainer}
    values |= {name: metrics.get(f"mismatch_{name}", 0.0) for name in ("mass", "one_sided", "cut")}
    if probe is not None:
        values["probe"] = probe
    if metrics.get("mismatch_one_sided", 0.0) >= ONE_SIDED and metrics["mismatch_mass"] < 1 - MISSING_MASS:
        return FILTERED, values
    if (is_mixture or "balance_loss" in metrics) and "changed_experts" not in metrics:
        return ROUTED, values
    if probe is None:
        return UNEXPLAINED, values
    return (COARSE if probe > COARSE_NATS else SAMPLED), values
