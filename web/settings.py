"""What the web process is told when it starts."""

import stat
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config import Config
from astraflow.runtime.data_places import check_place
from astraflow.runtime.hosts import WILDCARDS, reachable

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")

SESSION_S = 12 * 3600.0
"""How long a login lasts."""

STALE_AFTER_S = 5.0
"""A page whose newest report is older says so in a banner."""


class Settings(Config):
    """Command line and environment of `python -m web`."""

    dataflow: str = ""
    """Address `HOST:PORT` of the dataflow service to follow; empty for those of this machine's runs only."""
    follows_all: bool = False
    """Whether all runs of this machine and user are followed, besides those that were launched from the page."""
    is_read_only: bool = False
    """Whether the page only shows what was recorded: nothing is followed, launched or changed."""
    token: str = Field(default="", repr=False)
    """Run token, or a join token of the role page, from the environment variable ASTRAFLOW_TOKEN."""
    authority: Path | None = None
    """Folder of the run's certificate authority, for a run that speaks TLS."""
    ca_hash: str = ""
    """Pin of that authority: the run token is exchanged for a credential of the page's own, at `dataflow`."""
    keep: Path | None = None
    """Folder in which that credential is kept, so that the page joins again without a token after a restart."""
    fleet: str = ""
    """Address `HOST:PORT` of the fleet service; empty for a run without one."""
    fleet_token: str = Field(default="", repr=False)
    """What it is shown, from the environment variable ASTRAFLOW_FLEET_TOKEN; empty for the run token."""
    directory: Path
    """Where the database and the secret are kept."""
    database: str = Field(default="", repr=False)
    """`postgresql://` URL, from the environment variable ASTRAFLOW_WEB_DATABASE; empty for SQLite in `directory`."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    run_dir: Path | None = None
    """Directory of the run that is followed or, read-only, of the one that is shown, when it is on this machine."""
    recipe: str = ""
    """Name of the recipe the run was started from, to show."""
    behind_proxy: str = ""
    """Public `https://` address of a proxy in front of this process; lets it listen beyond loopback."""
    names: tuple[str, ...] = ()
    """Host names that browsers may use, besides those of loopback and the proxy's."""
    tls_certificate: Path | None = None
    """PEM file with the certificate and its chain: this process then speaks TLS itself."""
    tls_key: Path | None = None
    """PEM file with its private key."""
    recipes: tuple[Path, ...] = ()
    """Folders with recipes that can be launched, besides those that come with AstraFlow. They are only read."""
    data: tuple[str, ...] = ()
    """Data places: folders and addresses below which launched runs may be told to read data sets and models."""
    join_host: str = ""
    """Address of this machine on which launched runs listen that have machines elsewhere; empty: there are none."""
    join_name: str = ""
    """Name or address under which those machines reach it; empty for `join_host` itself."""
    provider: Path | None = None
    """TOML file about an OpenID provider through which people log in (`web.accounts.provider.ProviderConfig`)."""
    provider_secret: str = Field(default="", repr=False)
    """What this page proves itself to the provider with, from ASTRAFLOW_OIDC_SECRET; empty for a public client."""

    reads_a_minute: int = Field(default=12_000, ge=1)
    """Requests that only look, of one session or token."""
    changes_a_minute: int = Field(default=600, ge=1)
    """Requests that may change something, of one session or token."""
    exports_a_minute: int = Field(default=600, ge=1)
    """Files and launches, of one session or token."""
    strangers_a_minute: int = Field(default=3000, ge=1)
    """Requests of one address for which nobody is logged in."""
    sockets_a_user: int = Field(default=1000, ge=1)
    """Live pages that are open at once, of one user."""

    @field_validator("behind_proxy")
    @classmethod
    def _is_public_address(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme != "https" or not parts.hostname):
            raise ValueError("must be the public address of the proxy, as in https://astraflow.example.org")
        return value

    def check(self) -> None:
        """Refuse what would let strangers in, or leave machines outside. Raises: InvalidInput."""
        for folder in self.recipes:
            _check_recipes(folder)
        for place in self.data:
            check_place(place)
        if self.join_host and not (self.join_host in WILDCARDS and self.join_name):
            reachable(self.join_host, what="--join-host")
        if self.join_name:
            reachable(self.join_name, what="--join-name")
            if not self.join_host:
                raise InvalidInput("--join-name goes with --join-host, the address of this machine behind that name")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidInput("TLS needs both --tls-certificate and --tls-key")
        if self.has_tls and self.behind_proxy:
            raise InvalidInput("give either --behind-proxy, which speaks TLS, or --tls-certificate and --tls-key")
        if self.host not in LOOPBACK_NAMES and not self.is_https:
            raise InvalidInput(
                f"refusing to listen on {self.host}: the page would travel unencrypted beyond this machine; "
                "keep --host 127.0.0.1 (ssh -L reaches it from elsewhere), give --tls-certificate and --tls-key, "
                "or put a TLS proxy in front and name its address with --behind-proxy https://NAME"
            )

    @property
    def hosts(self) -> frozenset[str]:
        """Names under which this page may be asked for; any other is a rebinding attack or a mistake."""
        public = urlsplit(self.behind_proxy).hostname
        own = () if self.host in ("0.0.0.0", "::") else (self.host,)  # noqa: S104 (told apart, not bound)
        return frozenset(name.lower() for name in (*LOOPBACK_NAMES, *self.names, *own, *([public] if public else [])))

    @property
    def has_tls(self) -> bool:
        """Whether this process speaks TLS itself."""
        return self.tls_certificate is not None

    @property
    def is_https(self) -> bool:
        """Whether browsers reach the page over TLS: then cookies are Secure."""
        return bool(self.behind_proxy) or self.has_tls


def _check_recipes(folder: Path) -> None:
    """Recipes are declared by who may write to the folder. Raises: InvalidInput where that is anybody."""
    try:
        mode = folder.stat().st_mode
    except OSError as problem:
        raise InvalidInput(f"--recipes {folder}: {problem.strerror}: name a folder with recipes") from None
    if not stat.S_ISDIR(mode):
        raise InvalidInput(f"--recipes {folder}: is no folder: name the one that the recipes stand in")
    if mode & stat.S_IWOTH:
        raise InvalidInput(f"--recipes {folder}: everybody may write there, and would choose what is run: chmod o-w it")
