"""Work on a tenant's model: a stored request becomes passes for the executor, and then an answer."""

import json
import shutil
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from astraflow.contract.errors import AstraFlowError, InvalidInput, NotPermitted, Unavailable
from astraflow.runtime.logs import get_logger
from astraflow.tinker.base_models import SharedBase, TenantAdapters, find_base
from astraflow.tinker.requests import LoadWeights, OptimStep, SaveWeights, SaveWeightsForSampler
from astraflow.tinker.store import (
    ModelRow,
    RequestRow,
    checkpoint_folder,
    sampler_folder,
    states_folder,
    tenant_folder,
)
from astraflow.tinker.tenant_models import TenantModel
from astraflow.tinker.training_data import parse_request, training_data

log = get_logger()

Passes = Generator[int, None, bytes]
"""Yields the cost of each pass in tokens, returns the answer."""

SAVING = ("save_weights", "save_weights_for_sampler")
"""Requests that add files which stay."""
_UNUSABLE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a request."""

    answer: bytes
    """The answer, or the text of the error."""
    kind: str
    """`ok`, `user` or `server`."""
    tokens: int
    writes_state: bool = False
    """True if the state on disk contains the request."""

    @classmethod
    def failed(cls, problem: Exception, *, tokens: int, writes_state: bool = False) -> Self:
        """Returns the result of a request that an error ended; some errors are the fault of the user."""
        if isinstance(problem, AstraFlowError):
            text = f"{problem} [{problem.code}]"
        else:
            text = f"{type(problem).__name__}: {problem}"[:500]
        kind = "user" if isinstance(problem, InvalidInput | NotPermitted) else "server"
        return cls(answer=text.encode(), kind=kind, tokens=tokens, writes_state=writes_state)


Settle = Callable[[RequestRow, Outcome], None]
"""Takes the result of a request."""


class ModelWork:
    """One request to a model. Implements `Work`."""

    def __init__(
        self, request: RequestRow, begin: Callable[[], Passes], settle: Settle, *, is_state: Callable[[], bool]
    ) -> None:
        """is_state: returns whether the newest state on disk is that after the request."""
        self._request = request
        self._begin = begin
        self._settle = settle
        self._is_state = is_state
        self._passes: Passes | None = None
        self._tokens = 0

    def advance(self) -> tuple[int, bool]:
        """Computes the next pass."""
        try:
            if self._passes is None:
                self._passes = self._begin()
            cost = next(self._passes)
        except StopIteration as end:
            answer: bytes = end.value
            return self._end(Outcome(answer=answer, kind="ok", tokens=self._tokens, writes_state=self._is_state()))
        except Exception as problem:  # the tenant gets the error; others are not concerned
            if not isinstance(problem, AstraFlowError):
                log.exception("tinker_request_failed", request=self._request.id, kind=self._request.kind)
            return self._end(Outcome.failed(problem, tokens=self._tokens, writes_state=self._is_state()))
        self._tokens += cost
        return cost, False

    def _end(self, outcome: Outcome) -> tuple[int, bool]:
        self._settle(self._request, outcome)
        return 1, True


@dataclass(slots=True, kw_only=True)
class Workshop:
    """Loaded models of tenants, used by the executor's thread alone."""

    folder: Path
    bases: Mapping[str, SharedBase]
    pass_tokens: int
    check_disk: Callable[[str], None]
    """Raises NotPermitted if a tenant may not add to what it keeps."""
    models: dict[str, TenantModel] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)
    """Number of the request after which the newest state of a model was written; -1: it cannot be written or read."""

    def passes(self, request: RequestRow, model: ModelRow, earlier: list[RequestRow]) -> Passes:
        """Computes a request. earlier: answered passes since the state on disk, for a model that is not loaded."""
        if self.states.get(model.id) == _UNUSABLE:
            raise Unavailable(
                f"cannot compute {request.kind}: the state of {model.id!r} could not be written or read; mend the "
                "directory of the server, such as its free space, and restart it",
                code="tinker.state_unusable",
            )
        trained = self.models.get(model.id)
        if trained is None:
            trained = yield from self._restored(model, earlier)
        if request.kind == "forward_backward":
            answer = yield from self._train(trained, request)
            return answer
        yield 1
        return json.dumps(self._apply(trained, request, model)).encode()

    def _restored(self, model: ModelRow, earlier: list[RequestRow]) -> Generator[int, None, TenantModel]:
        """Returns a model as it was before a restart: its state on disk, and the gradients since."""
        self.states[model.id] = _UNUSABLE
        base = find_base(self.bases, model.base)
        targets = model.targets.split(",")
        adapters = TenantAdapters.begin(base, rank=model.rank, targets=targets, seed=model.seed)
        trained = TenantModel(base, adapters, pass_tokens=self.pass_tokens)
        if model.state:
            trained.load(self._states(model) / str(model.state), with_optimizer=True)
        for request in earlier:
            try:
                yield from self._train(trained, request)
            except InvalidInput as problem:  # as when it was first computed
                log.info("tinker_pass_refused_again", request=request.id, code=problem.code)
        self.models[model.id] = trained
        self.states[model.id] = model.state
        return trained

    def _train(self, trained: TenantModel, request: RequestRow) -> Passes:
        return trained.train(training_data(parse_request(request.body), trained.base.limits))

    def _apply(self, trained: TenantModel, request: RequestRow, model: ModelRow) -> dict[str, Any]:
        folder = tenant_folder(self.folder, model.tenant)
        is_first_state = self.states[model.id] == 0 and request.kind != "create_model"
        if is_first_state or request.kind in SAVING:
            self.check_disk(model.tenant)
        match request.kind:
            case "create_model":
                return {"model_id": model.id, "type": "create_model"}
            case "optim_step":
                try:
                    metrics = trained.step(OptimStep.model_validate_json(request.body).adam_params)
                finally:
                    self._write_state(trained, model, request.number)
                return {"metrics": metrics}
            case "load_weights":
                load = LoadWeights.model_validate_json(request.body)
                trained.load(checkpoint_folder(folder, load.path), with_optimizer=load.optimizer)
                self._write_state(trained, model, request.number)
                return {"path": load.path, "model_id": model.id, "type": "load_weights"}
            case "save_weights":
                path = f"tinker://{model.id}/weights/{SaveWeights.model_validate_json(request.body).path}"
                trained.save(checkpoint_folder(folder, path))
                return {"path": path, "type": "save_weights"}
            case "save_weights_for_sampler":
                return _save_for_sampler(folder, trained, request, model)
        raise AssertionError(request.kind)

    def forget(self, model: ModelRow) -> None:
        """Drops a model whose session is closed, and its state on disk; its checkpoints stay."""
        self.models.pop(model.id, None)
        self.states.pop(model.id, None)
        shutil.rmtree(self._states(model), ignore_errors=True)

    def _write_state(self, trained: TenantModel, model: ModelRow, number: int) -> None:
        self.states[model.id] = _UNUSABLE
        trained.save(self._states(model) / str(number))
        self.states[model.id] = number

    def _states(self, model: ModelRow) -> Path:
        return states_folder(self.folder, model.tenant, model.id)


def _save_for_sampler(folder: Path, trained: TenantModel, request: RequestRow, model: ModelRow) -> dict[str, Any]:
    save = SaveWeightsForSampler.model_validate_json(request.body)
    if save.path is not None:
        path = f"tinker://{model.id}/sampler_weights/{save.path}"
        trained.save_for_sampling(checkpoint_folder(folder, path))
        return {"path": path, "type": "save_weights_for_sampler"}
    sampler = f"{model.session}:sample:{save.sampling_session_seq_id}"
    trained.save_for_sampling(sampler_folder(folder, sampler))
    return {"sampling_session_id": sampler, "type": "save_weights_for_sampler"}
