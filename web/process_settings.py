"""Settings of the web process."""

import stat
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config.base import Config
from astraflow.runtime.folders.data_locations import check_data_location
from astraflow.runtime.http.hosts import WILDCARDS, proxy_url, require_reachable_host

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")

SESSION_S = 12 * 3600.0
"""Duration of a login session, seconds."""

STALE_AFTER_S = 5.0
"""Age of the newest report from which a page shows a banner, seconds."""


class Settings(Config):
    """Command line options and environment variables of `python -m web`."""

    dataflow: str = ""
    """Address `HOST:PORT` of a dataflow service to follow besides the active runs of this machine; empty for none."""
    is_read_only: bool = False
    """Shows recorded runs only: nothing is followed, launched or changed."""
    runs: tuple[Path, ...] = ()
    """Folders of the runs to show; empty for all runs of this machine and user."""
    token: str = Field(default="", repr=False)
    """Run token, or a join token of the role page, from the environment variable ASTRAFLOW_TOKEN."""
    authority: Path | None = None
    """Folder of the run's certificate authority, for a run with TLS."""
    ca_hash: str = ""
    """Pin of that authority: the run token is exchanged for a credential of the page's own, at `dataflow`."""
    credential_folder: Path | None = None
    """Folder of that credential, so that the page joins again without a token after a restart."""
    fleet: str = ""
    """Address `HOST:PORT` of the fleet service; empty for a run without one."""
    fleet_token: str = Field(default="", repr=False)
    """Token for the fleet service, from the environment variable ASTRAFLOW_FLEET_TOKEN; empty for the run token."""
    directory: Path
    """Directory of the database and the secret."""
    database: str = Field(default="", repr=False)
    """`postgresql://` URL, from the environment variable ASTRAFLOW_WEB_DATABASE; empty for SQLite in `directory`."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port to listen on; 0 chooses a free one."""
    run_dir: Path | None = None
    """Directory of the followed run, if it is on this machine."""
    recipe: str = ""
    """Name of the run's recipe, for display."""
    behind_proxy: str = ""
    """Public `https://` URL of a proxy in front of this process, also with a path; permits listening beyond
    loopback."""
    names: tuple[str, ...] = ()
    """Host names that browsers may use, in addition to loopback and the proxy's."""
    tls_certificate: Path | None = None
    """PEM file with the certificate and its chain; this process then serves TLS."""
    tls_key: Path | None = None
    """PEM file with its private key."""
    recipes: tuple[Path, ...] = ()
    """Read-only folders with recipes to launch, in addition to those of AstraFlow."""
    data: tuple[str, ...] = ()
    """Folders and URLs below which launched runs may read datasets and models."""
    join_host: str = ""
    """Address of this machine on which launched runs with remote nodes listen; empty if there are none."""
    join_name: str = ""
    """Name or address under which remote nodes reach it; empty for `join_host` itself."""
    provider: Path | None = None
    """TOML file with the OpenID provider for logins (`web.accounts.openid_provider.OpenIdConfig`)."""
    provider_secret: str = Field(default="", repr=False)
    """Client secret at the provider, from ASTRAFLOW_OIDC_SECRET; empty for a public client."""
    alerts: Path | None = None
    """TOML file with rules of alerts: tables `[[rule]]` with the fields of `web.alerting.rules.RuleSpec`."""
    mail: Path | None = None
    """TOML file with the mail server for notices of alerts (`web.alerting.mail.MailConfig`)."""
    mail_password: str = Field(default="", repr=False)
    """Password of that server, from ASTRAFLOW_MAIL_PASSWORD; empty for a server without a login."""

    reads_a_minute: int = Field(default=12_000, ge=1)
    """Read requests per minute of one session or token."""
    changes_a_minute: int = Field(default=600, ge=1)
    """Write requests per minute of one session or token."""
    exports_a_minute: int = Field(default=600, ge=1)
    """Exports and launches per minute of one session or token."""
    anonymous_requests_a_minute: int = Field(default=3000, ge=1)
    """Requests per minute of one address without a login."""
    sockets_a_user: int = Field(default=1000, ge=1)
    """Concurrent live pages of one user."""

    @field_validator("behind_proxy")
    @classmethod
    def _is_public_address(cls, value: str) -> str:
        return proxy_url(value) if value else ""

    def check(self) -> None:
        """Checks settings that would expose the page or leave nodes out. Raises: InvalidInput."""
        for folder in self.recipes:
            _check_recipes(folder)
        for location in self.data:
            check_data_location(location)
        if self.join_host and not (self.join_host in WILDCARDS and self.join_name):
            require_reachable_host(self.join_host, what="--join-host")
        if self.join_name:
            require_reachable_host(self.join_name, what="--join-name")
            if not self.join_host:
                raise InvalidInput(
                    "cannot use --join-name: --join-host is missing; give the address of this machine behind that name",
                    code="web.join_host_missing",
                )
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidInput(
                "cannot set up TLS: certificate and key belong together; give both --tls-certificate and --tls-key",
                code="web.invalid_tls",
            )
        if self.has_tls and self.behind_proxy:
            raise InvalidInput(
                "cannot set up TLS: --behind-proxy already provides it; drop --behind-proxy or the certificate and key",
                code="web.invalid_tls",
            )
        if self.host not in LOOPBACK_NAMES and not self.is_https:
            raise InvalidInput(
                f"cannot listen on {self.host!r}: the page would travel unencrypted beyond this machine; "
                "keep --host 127.0.0.1 (ssh -L reaches it from elsewhere), give --tls-certificate and --tls-key, "
                "or use a TLS proxy with --behind-proxy https://NAME",
                code="web.tls_required",
            )

    @property
    def hosts(self) -> frozenset[str]:
        """Accepted host names; any other Host is a rebinding attack or a mistake."""
        public = urlsplit(self.behind_proxy).hostname
        own = () if self.host in ("0.0.0.0", "::") else (self.host,)  # noqa: S104 (compared, not bound)
        return frozenset(name.lower() for name in (*LOOPBACK_NAMES, *self.names, *own, *([public] if public else [])))

    @property
    def path_prefix(self) -> str:
        """Path below which browsers reach the page, such as `/astraflow`; empty for the root."""
        return urlsplit(self.behind_proxy).path

    @property
    def has_tls(self) -> bool:
        """True if this process serves TLS."""
        return self.tls_certificate is not None

    @property
    def is_https(self) -> bool:
        """True if browsers reach the page over TLS; cookies are then Secure."""
        return self.behind_proxy.startswith("https:") or self.has_tls

    @property
    def start_command(self) -> str:
        """Command that starts a fleet service for this run."""
        return f"astraflow serve fleet fleet.toml --dataflow {self.dataflow} --port 7070"

    @property
    def web_command(self) -> str:
        """Command that starts the web service with that fleet service."""
        return f"astraflow serve web --dataflow {self.dataflow} --fleet 127.0.0.1:7070"


def _check_recipes(folder: Path) -> None:
    """Checks a recipe folder: its writers decide what is run, so it must not be world-writable. Raises:
    InvalidInput."""
    try:
        mode = folder.stat().st_mode
    except OSError as problem:
        raise InvalidInput(
            f"cannot use --recipes {str(folder)!r}: {problem.strerror}; give a folder with recipes",
            code="web.invalid_recipe_folder",
        ) from None
    if not stat.S_ISDIR(mode):
        raise InvalidInput(
            f"cannot use --recipes {str(folder)!r}: not a folder; give the folder that contains the recipes",
            code="web.invalid_recipe_folder",
        )
    if mode & stat.S_IWOTH:
        raise InvalidInput(
            f"cannot use --recipes {str(folder)!r}: every user may write there and choose what runs; chmod o-w it",
            code="web.invalid_recipe_folder",
        )
