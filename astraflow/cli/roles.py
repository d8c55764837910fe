"""One role in this process, until it is told to stop. What a role needs is imported by the function that starts it."""

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from astraflow.access.authority import Authority
from astraflow.cli.local import Planes
from astraflow.cli.options import METRICS_TOKEN
from astraflow.cli.page_certificate import page_certificate
from astraflow.cli.rundir import explained
from astraflow.client.badge_file import BadgeFile
from astraflow.contract.errors import InvalidInput
from astraflow.raas.config import RaasConfig
from astraflow.raas.engines import engines
from astraflow.raas.preemption import notices
from astraflow.recipe import Check, dataflow_config, load_recipe, node_config, trainer_config, weights_config
from astraflow.runtime import logs
from astraflow.runtime.hosts import is_loopback
from astraflow.runtime.plugins import Registry
from astraflow.runtime.service import private_folder, run_process
from astraflow.runtime.toml import toml_value
from astraflow.runtime.tracing import TracingConfig, chosen, configure
from astraflow.wire.channel import ClientTls, authority_client_tls, dial
from astraflow.wire.server import Listen, ServerTls, authority_tls


def run_dataflow(
    recipe: str,
    overrides: list[str],
    *,
    run: str,
    weights: str,
    directory: Path,
    listen: Listen,
    metrics: str,
    weights_key: str,
) -> int:
    """The dataflow service; returns the exit code. metrics: instead of the recipe's, if not empty."""
    from astraflow.dataflow.service import serve
    from astraflow.weights.signing import VerifyingKey

    _log("dataflow")
    loaded = load_recipe(recipe, overrides, check=Check.NONE)
    _trace("dataflow", loaded.tracing)
    config = dataflow_config(loaded, run=run or loaded.name)
    if metrics:
        config = config.model_copy(update={"metrics": metrics})
    return run_process(
        lambda stop: serve(
            config,
            listen=listen,
            directory=_made(directory),
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
    listen: Listen,
    weights_key: str,
    follow: list[str],
    tls: ClientTls | None,
) -> int:
    """The weight store, or a mirror of those at `follow`; returns the exit code."""
    from astraflow.weights.mirror import Upstream
    from astraflow.weights.service import serve
    from astraflow.weights.signing import VerifyingKey

    _log("weights")
    config = weights_config(load_recipe(recipe, overrides, check=Check.NONE))
    trusted = VerifyingKey.parse(weights_key) if weights_key else None
    dialling = partial(dial, token=listen.token, tls=tls)
    upstream = Upstream(addresses=tuple(follow), dial=dialling) if follow else None
    return run_process(
        lambda stop: serve(
            config,
            listen=listen,
            directory=_made(directory),
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
    keep: Path | None,
    directory: Path,
    signing_key: Path | None,
) -> int:
    """The trainer of one policy; returns the exit code: 0 when the run is complete, 143 for a SIGTERM before."""
    from astraflow.trainer.service import serve
    from astraflow.weights.signing import SigningKey

    _log("trainer")
    loaded = load_recipe(recipe, overrides, check=Check.NONE)
    _trace("trainer", loaded.tracing)
    if not policy and len(loaded.policies) > 1:
        raise InvalidInput(
            f"{loaded.name} has several policies: choose one with --policy ({', '.join(loaded.policies)})"
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
            keep=keep,
            directory=_made(directory),
            stop=stop,
            signing=signing,
        ),
        may_complete=True,
    )


def run_node(
    config: RaasConfig,
    *,
    dataflow: str,
    token: str,
    tls: ClientTls | None,
    ca_hash: str = "",
    tracing: TracingConfig | None = None,
) -> int:
    """A RaaS node; returns the exit code: 0 when the run is complete or it was sent away, 143 for a SIGTERM before.

    tracing: as the recipe has it, for a node that knows one.
    """
    from astraflow.raas.service import serve

    _log("node")
    _trace("node", tracing or TracingConfig())
    return run_process(
        lambda stop: serve(config, dataflow=dataflow, token=token, tls=tls, ca_hash=ca_hash, stop=stop),
        may_complete=True,
    )


def recipe_node(recipe: str, overrides: list[str], *, name: str) -> tuple[RaasConfig, TracingConfig]:
    """One of the nodes that a recipe asks for, and where its spans go."""
    loaded = load_recipe(recipe, overrides, check=Check.NONE)
    return node_config(loaded, name=name), loaded.tracing


def own_node(*, engine: str, preemption: str, pull: str, **options: Any) -> RaasConfig:
    """A node by hand; options that are None keep their defaults.

    engine, preemption: a kind, or a TOML table with `kind` and its options; empty for what the run suggests, and none.
    pull: a TOML table of `PullConfig`; empty for its defaults.
    """
    given = {key: value for key, value in options.items() if value is not None}
    if engine:
        given["engine"] = _checked(engines, engine)
    if preemption:
        given["preemption"] = _checked(notices, preemption)
    if pull:
        given["pull"] = toml_value(pull)
    return RaasConfig.parse(given, where="join")


def kept_name(folder: Path) -> str | None:
    """Under which name a node was let in that kept its credential there; None for none. Raises: InvalidInput."""
    kept = BadgeFile(folder).read()
    return kept.name if kept is not None else None


def _checked(registry: Registry[Any], text: str) -> dict[str, Any]:
    value = toml_value(text)
    spec = value if isinstance(value, dict) else {"kind": text}
    registry.check(spec)
    return spec


def run_web(
    *,
    dataflow: str,
    directory: Path,
    host: str,
    port: int,
    recipe: str,
    token: str,
    more: Mapping[str, str | None],
    flags: Sequence[str] = (),
) -> int:
    """The page: this process becomes the web process, which knows AstraFlow only by its address.

    Beyond loopback it gets a certificate of the run's `authority`, unless it is told of another one, or of a proxy.
    more: further options of `python -m web`; those that are None are left out.
    """
    _made(directory)
    has_own = more.get("tls-certificate") or more.get("tls-key") or more.get("behind-proxy")
    if (authority := more.get("authority")) and not has_own and not is_loopback(host):
        names = [name] if (name := more.get("name")) else []
        file = str(page_certificate(Authority.opened(Path(authority)), directory, host=host, names=names))
        more = {**more, "tls-certificate": file, "tls-key": file}
    arguments = ["--dataflow", dataflow, "--directory", str(directory), "--host", host, "--port", str(port)]
    arguments += [part for name, value in more.items() if value is not None for part in (f"--{name}", value)]
    environment = {**os.environ, "ASTRAFLOW_TOKEN": token}
    command = [sys.executable, "-m", "web", *arguments, *flags, *(["--recipe", recipe] if recipe else [])]
    os.execve(sys.executable, command, environment)  # noqa: S606 (a list of arguments, no shell)


def run_fleet(
    config: Path,
    *,
    dataflow: str,
    join_address: str,
    directory: Path,
    host: str,
    port: int,
    token: str,
    authority: Path | None,
    tls: bool | None,
    advertise: Sequence[str],
) -> None:
    """The fleet service: this process becomes its process, which knows AstraFlow only by its planes."""
    _made(directory)
    arguments = ["--config", str(config), "--dataflow", dataflow, "--directory", str(directory)]
    arguments += ["--host", host, "--port", str(port)]
    arguments += ["--join-address", join_address] if join_address else []
    arguments += ["--authority", str(authority)] if authority else []
    arguments += [] if tls is None else ["--tls" if tls else "--no-tls"]
    for name in advertise:
        arguments += ["--advertise", name]
    command = [sys.executable, "-m", "maintainer.fleet", *arguments]
    os.execve(sys.executable, command, {**os.environ, "ASTRAFLOW_TOKEN": token})  # noqa: S606 (a list of arguments, no shell)


def run_maintainer(
    what: str,
    planes: Planes | None,
    *,
    config: Path | None = None,
    directory: Path | None = None,
    arguments: Sequence[str] = (),
) -> None:
    """This process becomes the maintainer's, which knows AstraFlow only by its planes. what: a command of it.

    arguments: others of that command.
    """
    arguments = [what, *arguments, *(["--config", str(config)] if config else [])]
    arguments += ["--directory", str(_made(directory))] if directory else []
    environment = dict(os.environ)
    if planes is not None:
        arguments += ["--dataflow", planes.dataflow, "--fleet", planes.fleet]
        arguments += ["--authority", str(planes.authority)] if planes.authority else []
        environment["ASTRAFLOW_TOKEN"] = planes.token
    command = [sys.executable, "-m", "maintainer", *arguments]
    os.execve(sys.executable, command, environment)  # noqa: S606 (a list of arguments, no shell)


def replay_maintainer(file: Path) -> None:
    """This process becomes the one that judges a transcript again."""
    command = [sys.executable, "-m", "maintainer", "replay", str(file)]
    os.execve(sys.executable, command, dict(os.environ))  # noqa: S606 (the same)


def announce(where: str) -> None:
    """Tell the parent process, or the person, that the service can be used now."""
    print(f"ready {where}", flush=True)  # noqa: T201 (this line is the protocol: see cli.child.READY)


def client_tls(
    ca: Path | None, certificate: Path | None, key: Path | None, authority: Path | None = None
) -> ClientTls | None:
    """How to reach services, or None for without TLS.

    authority: of the run, whose token this process holds: it makes a certificate of its own.
    Raises: InvalidInput for half of a pair, or for files that do not do.
    """
    if authority is not None:
        return authority_client_tls(Authority.opened(authority))
    if ca is None and certificate is None and key is None:
        return None
    if ca is None or (certificate is None) != (key is None):
        raise InvalidInput("TLS needs --tls-ca, and --tls-client-certificate and --tls-client-key only together")
    return ClientTls.read(ca, certificate, key)


def listening(
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
) -> Listen:
    """Where to listen, as the options of a `serve` command say. tls: None for beyond loopback only.

    Raises: InvalidInput for half of a TLS pair, for two certificates, or for TLS without any.
    """
    known = Authority.opened(authority) if authority is not None else None
    has_own = certificate is not None or key is not None or client_ca is not None
    is_wanted = not is_loopback(host) if tls is None else tls
    served: ServerTls | None = None
    if has_own and certificate is not None and key is not None and tls is not False:
        served = ServerTls.read(certificate, key, client_ca)
    elif has_own:
        raise InvalidInput("TLS needs --tls-certificate and --tls-key together, and no --no-tls")
    elif is_wanted and known is not None:
        served = authority_tls(known, host, tuple(advertise))
    elif tls:
        raise InvalidInput("--tls needs the run's --authority, or --tls-certificate and --tls-key")
    return Listen(host=host, port=port, token=token, tls=served, authority=known, enroll_port=enroll_port)


def _log(role: str) -> None:
    logs.configure()
    logs.bind(role=role)


def _trace(role: str, recipe: TracingConfig) -> None:
    config = chosen(recipe)
    if not config.to:
        return
    try:
        from astraflow.runtime.spans import OtelRecorder, exporter_to
    except ImportError as problem:
        raise InvalidInput(
            f"spans need OpenTelemetry, which is not installed ({problem}): pip install 'astraflow[otel]', or leave "
            "tracing.to empty"
        ) from None
    configure(OtelRecorder(exporter_to(config.to, role=role), role=role), share=config.share)


def _made(directory: Path) -> Path:
    try:
        return private_folder(directory)
    except OSError as problem:
        raise explained(problem, str(directory)) from None
