"""Names of container images."""

import re

_DOMAIN = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?/"
_PATH = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
IMAGE_NAME = re.compile(
    rf"(?:{_DOMAIN})?{_PATH}(?:/{_PATH})*(?::[\w][\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?", re.ASCII
)
_MAX_CHARS = 512


def is_image_name(name: str) -> bool:
    """Returns whether a text is the name of an image, such as `registry:5000/team/image:1`, and not an option.

    >>> [is_image_name(name) for name in ("debian:bookworm-slim", "-v=/:/host", "--privileged")]
    [True, False, False]
    """
    return len(name) <= _MAX_CHARS and IMAGE_NAME.fullmatch(name) is not None
