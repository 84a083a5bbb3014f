"""Address of the server that hands out a job's batches: stealing://host:port/token."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from fastfeed.errors import OptionError

SCHEME = "stealing"
TOKENS = re.compile(rf"({SCHEME}://[^/\s]+/)[^\s'\"\\\\]+")


def without_tokens(text: str) -> str:
    """Return a text, such as a command line, in which no address shows its token."""
    return TOKENS.sub(r"\1...", text)


@dataclass(frozen=True)
class ShardAddress:
    """Host, port, and the token that a rank shows."""

    host: str
    port: int
    token: str = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> ShardAddress:
        """Return the address that `text` is. Raise OptionError for any other text."""
        try:
            parts = urlsplit(text)
            host, port, token = parts.hostname, parts.port, parts.path.strip("/")
        except ValueError:
            host = port = token = None
        if not (host and port and token and parts.scheme == SCHEME):
            raise OptionError(
                "shard must be two integers (rank, world), such as (0, 8), or the address of a "
                f'ShardServer, such as "{SCHEME}://127.0.0.1:43121/token", got {text!r}'
            )
        return cls(host, port, token)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{SCHEME}://{host}:{self.port}/{self.token}"

    @property
    def seed(self) -> int:
        """The root seed of all ranks that are given none."""
        return int.from_bytes(hashlib.sha256(self.token.encode()).digest()[:4], "big")
