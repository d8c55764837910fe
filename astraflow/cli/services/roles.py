"""Runs one role in this process until it is stopped. Each function imports the modules of its role."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from astraflow.access.authority import Authority
from astraflow.cli.options import METRICS_TOKEN
from astraflow.cli.run_directory import storage_error
from astraflow.client.credential_file import CredentialFile
from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.raas.config import RaasConfig
from astraflow.raas.engines import engines
from astraflow.raas.preemption import notices
from astraflow.recipe.config import dataflow_config, node_config, trainer_config, weights_config
from astraflow.recipe.loading import Check, load_recipe
from astraflow.runtime import logs
from astraflow.runtime.config.toml import toml_value
from astraflow.runtime.http.hosts import is_loopback
from astraflow.runtime.imports import needs_extra
from astraflow.runtime.plugins import Registry
from astraflow.runtime.service import exit_code, make_private_folder, print_error, run_process
from astraflow.runtime.tracing import TracingConfig, configure, effective_config
from astraflow.wire.channel import ClientTls, dial
from astraflow.wire.server import ListenOptions, ServerTls, authority_tls


def run_dataflow(
    recipe: str,
    overrides: list[str],
    *,
    run: str,
    weights: str,
    directory: Path,
    listen: ListenOptions,
    metrics: str,
    weights_key: str,
) -> int:
    """Runs the dataflow service; returns the exit code. metrics: overrides the recipe's value unless empty."""
    from astraflow.dataflow.service import serve
    from astraflow.weights.signing import VerifyingKey

    _configure_logs("dataflow")
    loaded = load_recipe(recipe, overrides, check=Check.NONE)
    _configure_tracing("dataflow", loaded.tracing)
    config = dataflow_config(loaded, run=run or loaded.name)
    if metrics:
        config = config.model_copy(update={"metrics": metrics})
    return run_process(
        lambda stop: serve(
            config,
            listen=listen,
            directory=_private_folder(directory),
            weights_address=weights,
            stop=stop,
            on_ready=announce,
            metrics_token=os.environ.get(METRICS_TOKEN, ""),
            weights_key=VerifyingKey.parse(weights_key).raw if weights_key else b"",
        )
    )


def run_weights(
    recipe: str,
    overrides: list[str],
    *,
    directory: Path,
    listen: ListenOptions,
    weights_key: str,
    follow: list[str],
    tls: ClientTls | None,
) -> int:
    """Runs the weight store, or a mirror of the stores at `follow`; returns the exit code."""
    from astraflow.weights.mirror import Upstream
    from astraflow.weights.service import serve
    from astraflow.weights.signing import VerifyingKey

    _configure_logs("weights")
    config = weights_config(load_recipe(recipe, overrides, check=Check.NONE))
    trusted = VerifyingKey.parse(weights_key) if weights_key else None
    dial_upstream = partial(dial, token=listen.token, tls=tls)
    upstream = Upstream(addresses=tuple(follow), dial=dial_upstream) if follow else None
    return run_process(
        lambda stop: serve(
            config,
            listen=listen,
            directory=_private_folder(directory),
            stop=stop,
            on_ready=announce,
            trusted=trusted,
            upstream=upstream,
        )
    )


def run_trainer(
    recipe: str,
    overrides: list[str],
    *,
    policy: str,
    dataflow: str,
    token: str,
    tls: ClientTls | None,
    ca_hash: str,
    credential_folder: Path | None,
    directory: Path,
    signing_key: Path | None,
) -> int:
    """Runs the trainer of one policy; returns the exit code: 0 when the run is complete, 143 after a SIGTERM."""
    from astraflow.trainer.service import serve
    from astraflow.weights.signing import SigningKey

    _configure_logs("trainer")
    loaded = load_recipe(recipe, overrides, check=Check.NONE)
    _configure_tracing("trainer", loaded.tracing)
    if not policy and len(loaded.policies) > 1:
        raise InvalidInput(
            f"cannot choose the policy: the recipe {loaded.name!r} has several; set --policy to one of "
            f"{', '.join(loaded.policies)}",
            code="trainer.policy_required",
        )
    config = trainer_config(loaded, policy or next(iter(loaded.policies)))
    signing = SigningKey.read(signing_key) if signing_key else None
    return run_process(
        lambda stop: serve(
            config,
            dataflow=dataflow,
            token=token,
            tls=tls,
            ca_hash=ca_hash,
            credential_folder=credential_folder,
            directory=_private_folder(directory),
            stop=stop,
            signing=signing,
        ),
        may_complete=True,
    )


def is_other_rank() -> bool:
    """Returns whether a scheduler started this process as a rank other than the first (RANK from 1)."""
    return os.environ.get("RANK", "0") != "0"


def run_trainer_rank() -> int:
    """Runs a rank of a trainer other than the first; ends the process, or returns the exit code of an error."""
    from astraflow.trainer.backends.rank_trainer import RankTrainer
    from astraflow.trainer.ranks.process import run_rank

    _configure_logs(f"trainer-rank-{os.environ.get('RANK', '')}")
    try:
        run_rank(RankTrainer.build)
    except AstraFlowError as problem:
        print_error(problem)
        return exit_code(problem)


def run_node(
    config: RaasConfig,
    *,
    dataflow: str,
    token: str,
    tls: ClientTls | None,
    ca_hash: str = "",
    tracing: TracingConfig | None = None,
) -> int:
    """Runs a RaaS node; returns the exit code: 0 when the run is complete or the node left, 143 after a SIGTERM.

    tracing: settings of the recipe; None for a node without a recipe.
    """
    from astraflow.raas.service import serve

    _configure_logs("node")
    _configure_tracing("node", tracing or TracingConfig())
    return run_process(
        lambda stop: serve(config, dataflow=dataflow, token=token, tls=tls, ca_hash=ca_hash, stop=stop),
        may_complete=True,
    )


def run_model(folder: str, engine: str, *, temperature: float, port: int) -> int:
    """Serves a model folder; returns the exit code. engine: a kind, or a TOML table with `kind` and its options."""
    from astraflow.agents.session_limits import SessionOptions
    from astraflow.baselines.served_model import serve_model
    from astraflow.baselines.subjects import model_folder

    logs.configure(level="WARNING")
    path, spec = model_folder(folder), _plugin_spec(engines, engine)
    options = SessionOptions(temperature=temperature, uses_client_sampling=True)
    return run_process(lambda stop: serve_model(path, spec, options, port=port, stop=stop, on_ready=announce))


def recipe_node_config(recipe: str, overrides: list[str], *, name: str) -> tuple[RaasConfig, TracingConfig]:
    """Returns the configuration of a node of a recipe, and its tracing settings."""
    loaded = load_recipe(recipe, overrides, check=Check.NONE)
    return node_config(loaded, name=name), loaded.tracing


def joining_node_config(*, engine: str, preemption: str, pull: str, **options: Any) -> RaasConfig:
    """Returns the configuration of a node from options; options that are None keep their defaults.

    engine, preemption: a kind, or a TOML table with `kind` and its options; empty for the engine of the run, and for
    no notices. pull: a TOML table of `PullConfig`; empty for its defaults.
    """
    values = {key: value for key, value in options.items() if value is not None}
    if engine:
        values["engine"] = _plugin_spec(engines, engine)
    if preemption:
        values["preemption"] = _plugin_spec(notices, preemption)
    if pull:
        values["pull"] = toml_value(pull)
    return RaasConfig.parse(values, where="join")


def stored_credential_name(folder: Path) -> str | None:
    """Returns the name in the credential stored in `folder`; None without one. Raises: InvalidInput."""
    credential = CredentialFile(folder).read()
    return credential.name if credential is not None else None


def _plugin_spec(registry: Registry[Any], text: str) -> dict[str, Any]:
    value = toml_value(text)
    spec = value if isinstance(value, dict) else {"kind": text}
    registry.check(spec)
    return spec


def announce(address: str) -> None:
    """Prints that the service is ready, for the parent process or the user."""
    print(f"ready {address}", flush=True)  # noqa: T201 (this line is the protocol: see cli.running.supervisor)


def listen_options(
    host: str,
    port: int,
    token: str,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
    client_ca: Path | None = None,
    authority: Path | None = None,
    tls: bool | None = None,
    advertise: Sequence[str] = (),
    enroll_port: int = 0,
) -> ListenOptions:
    """Returns the listen options of a `serve` command. tls: None for TLS beyond loopback only.

    Raises: InvalidInput for an incomplete pair of TLS options, or for TLS without a certificate.
    """
    run_authority = Authority.load(authority) if authority is not None else None
    has_own = certificate is not None or key is not None or client_ca is not None
    is_wanted = not is_loopback(host) if tls is None else tls
    server_tls: ServerTls | None = None
    if has_own and certificate is not None and key is not None and tls is not False:
        server_tls = ServerTls.read(certificate, key, client_ca)
    elif has_own:
        raise InvalidInput(
            "cannot use TLS: the options contradict each other; give --tls-certificate and --tls-key together, without "
            "--no-tls",
            code="tls.incomplete_options",
        )
    elif is_wanted and run_authority is not None:
        server_tls = authority_tls(run_authority, host, tuple(advertise))
    elif tls:
        raise InvalidInput(
            "cannot use TLS: no certificate is given; give the run's --authority, or --tls-certificate and --tls-key",
            code="tls.no_certificate",
        )
    return ListenOptions(
        host=host, port=port, token=token, tls=server_tls, authority=run_authority, enroll_port=enroll_port
    )


def _configure_logs(role: str) -> None:
    logs.configure()
    logs.bind(role=role)


def _configure_tracing(role: str, recipe: TracingConfig) -> None:
    config = effective_config(recipe)
    if not config.to:
        return
    with needs_extra("otel", to=f"export spans to {config.to!r}"):
        from astraflow.runtime.otel_export import OtelRecorder, create_exporter
    configure(OtelRecorder(create_exporter(config.to, role=role), role=role), share=config.share)


def _private_folder(directory: Path) -> Path:
    try:
        return make_private_folder(directory)
    except OSError as problem:
        raise storage_error(problem, str(directory)) from None
