"""Debian's nginx as a TLS proxy of a test on loopback, which serves an application below a path."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NGINX = Path("/usr/sbin/nginx")
"""Program of the package nginx."""

PATIENCE_S = 30.0

_CONFIG = """
daemon off; master_process off; pid pid; error_log stderr;
events {{}}
http {{
  access_log off;
  client_body_temp_path body; proxy_temp_path proxy;
  fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}
  server {{
    listen 127.0.0.1:{port} ssl; ssl_certificate {certificate}; ssl_certificate_key {key};
    location {prefix}/ {{
      proxy_pass http://127.0.0.1:{target}{kept};
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection $connection_upgrade;
      proxy_set_header X-Forwarded-For $remote_addr;
    }}
    location / {{ return 404 "another application\\n"; }}
  }}
}}
"""


@contextmanager
def serving_nginx(
    directory: Path, *, port: int, target: int, prefix: str, strips_prefix: bool, tls: tuple[Path, Path]
) -> Iterator[None]:
    """Serves until the block ends. target: port of the application. tls: files of the certificate and its key.

    strips_prefix: removes the prefix from requests, as `proxy_pass` with a path does.
    """
    directory.mkdir(parents=True)
    certificate, key = tls
    config = directory / "nginx.conf"
    config.write_text(
        _CONFIG.format(
            port=port,
            target=target,
            prefix=prefix,
            kept="/" if strips_prefix else "",
            certificate=certificate,
            key=key,
        )
    )
    process = subprocess.Popen([str(NGINX), "-p", str(directory), "-c", str(config)], stderr=subprocess.PIPE, text=True)
    try:
        yield
        assert process.poll() is None, process.communicate()[1]
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
