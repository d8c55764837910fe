"""Checks of a model folder: the same ones that a trainer and the engine `local_torch` make at their start."""

from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.contract.plugins import CheckResult, Outcome


def model_results(folder: Path) -> list[CheckResult]:
    """Returns how the model of a folder is trained and served here, and what stands against a faster way.

    Loads the model in float32 on the CPU. Raises: InvalidInput for a folder without a model.
    """
    from astraflow.models import models
    from astraflow.models.precision import device_of
    from astraflow.raas.engines.local.choice import exact_batcher
    from astraflow.raas.engines.local_torch import LocalTorchOptions
    from astraflow.trainer.engines.scoring.choice import choose_demanded
    from astraflow.trainer.engines.scoring.scorer import Scorer

    source = models.build({"kind": "huggingface", "path": str(folder)})
    prepared = source.prepare()
    results = []
    try:
        facts = choose_demanded(Scorer(source.load(prepared), device_of("cpu")), None).facts
        results.append(_passed("training", f"batching {facts.sentence}; off by {facts.largest_difference:.1e} nats"))
    except InvalidInput as problem:
        results.append(_failed("training", problem))
    try:
        served = source.load(prepared).eval().requires_grad_(False)
        batcher = exact_batcher(served, LocalTorchOptions().limits)
        results.append(_passed("engine local_torch", batcher.way))
    except InvalidInput as problem:
        results.append(_failed("engine local_torch", problem))
    return results


def _passed(subject: str, detail: str) -> CheckResult:
    return CheckResult(promise=subject, outcome=Outcome.PASSED, detail=detail)


def _failed(subject: str, problem: InvalidInput) -> CheckResult:
    return CheckResult(promise=subject, outcome=Outcome.FAILED, detail=str(problem))
