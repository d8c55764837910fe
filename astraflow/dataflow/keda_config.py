"""Where KEDA is answered, and who may ask."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from astraflow.runtime.config import Config
from astraflow.runtime.hosts import is_loopback
from astraflow.runtime.overrides import SetBy
from astraflow.wire.server import ServerTls


class KedaConfig(Config):
    """KEDA knows no run token: beyond loopback it shows a certificate, or the port is open to whoever reaches it."""

    host: Annotated[str, SetBy.RECIPE] = "127.0.0.1"
    port: int = Field(default=9465, ge=0, lt=2**16)
    """0 takes a free one."""
    certificate: Annotated[Path | None, SetBy.RECIPE] = None
    """Serve TLS with this certificate (PEM)."""
    key: Annotated[Path | None, SetBy.RECIPE] = None
    """The certificate's key (PEM)."""
    client_ca: Annotated[Path | None, SetBy.RECIPE] = None
    """Let in only clients with a certificate of this authority (PEM)."""
    is_open: bool = False
    """Listen beyond loopback without asking for certificates: targets can be read there, and nothing can be changed."""

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a certificate and its key belong together: give both or neither")
        if self.client_ca is not None and self.certificate is None:
            raise ValueError("client_ca needs a certificate and a key to serve TLS with")
        if not (is_loopback(self.host) or self.client_ca is not None or self.is_open):
            raise ValueError(
                f"will not answer everybody on {self.host}: give certificate, key and client_ca, or is_open = true"
            )
        return self

    @property
    def tls(self) -> ServerTls | None:
        """Certificates as the server takes them. Raises: InvalidInput naming a file that does not do."""
        if self.certificate is None or self.key is None:
            return None
        return ServerTls.read(self.certificate, self.key, self.client_ca)
