"""Texts without what is for nobody's eyes."""

from __future__ import annotations

import re

# The user of an abfss URI is a container.
_SECRETS = re.compile(
    r"(?<=://)(?:(?<!abfs://)(?<!abfss://)[^/\s]*|[^/@\s]*:[^/\s]*)@|\?[^\s'\"]*",
)


def redacted(text: str) -> str:
    """A text whose URIs have neither a user with a password, nor a token in a user's place, nor a query, as a
    signed URL has.
    """
    return _SECRETS.sub("", text)
