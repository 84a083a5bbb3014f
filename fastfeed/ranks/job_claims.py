"""The side of a rank: claims batches from the server of its job, and reports what it consumed."""

from __future__ import annotations

import os
import platform
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from fastfeed.core.shard_address import ShardAddress
from fastfeed.errors import FeedTimeout, OptionError
from fastfeed.ranks.job_messages import decode, encode, tune

CONNECT_TIMEOUT_S = 10.0  # a server may start after its ranks
CONNECT_RETRY_S = 0.1


class JobClaims:
    """Connection of one rank to its server.

    `job` is what all ranks must agree on; `state` is where an earlier job ended, or None. Raise
    FeedTimeout if there is no server, OptionError if it refuses this rank.
    """

    def __init__(
        self,
        address: ShardAddress,
        job: Mapping[str, Any],
        *,
        state: Mapping[str, Any] | None = None,
        timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._address = address
        self._where = f"{address.host}:{address.port}"
        self._sending = threading.Lock()
        self._closed = self._asks = False
        self._held = 0  # batches that were claimed and not reported yet
        self._socket = self._connected(timeout_s)
        self._lines = self._socket.makefile("rb")
        name = f"{platform.node()} {os.getpid()}"
        try:
            answer = self._ask({"token": address.token, "name": name, "job": job, "state": state})
        except (OSError, ValueError) as error:
            self.close()
            raise OptionError(
                f"shard={self._where} is no ShardServer of this job, or another one: it closed the "
                "connection. Pass the address that server.address has now"
            ) from error
        if "error" in answer:
            self.close()
            raise OptionError(f"shard={self._where}: {answer['error']}")
        self.rank = int(answer["rank"])
        self._socket.settimeout(None)  # a claim may wait for other ranks

    def next(self, epoch: int) -> int | None:
        """Return the serial number of the next batch, or None at the end of the epoch, and once
        this was closed. Raise ConnectionError if the server has gone."""
        self._asks = True
        try:
            answer = self._ask({"claim": epoch})
        except (OSError, ValueError) as error:
            if self._closed:
                return None
            raise ConnectionError(
                f"the ShardServer at {self._where} has gone, and nobody knows any more which "
                "batches are left: keep the process that runs it alive until every rank has ended"
            ) from error
        finally:
            self._asks = False
        item: int | None = answer["item"]
        self._held += item is not None
        return item

    @property
    def waits_for_others(self) -> bool:
        """True while only other ranks hold batches, which are given to this one if they die."""
        return self._asks and self._held <= 0

    def report(self, serials: Sequence[int]) -> None:
        """Report batches as consumed. Without a server, do nothing: the next claim fails."""
        if serials:
            self._held -= len(serials)
            with suppress(OSError):
                self._send(self._socket, {"done": serials})

    def state(self, serials: Sequence[int]) -> dict[str, Any]:
        """Report batches as consumed, and return the state of the job. Raise FeedTimeout if the
        server has gone."""
        self._held -= len(serials)
        question = {"token": self._address.token, "state_of": self.rank, "done": serials}
        # a claim may wait for its answer on the other connection
        with self._connected(CONNECT_TIMEOUT_S) as connection:
            try:
                self._send(connection, question)
                with connection.makefile("rb") as lines:
                    found: dict[str, Any] = decode(lines.readline())["state"]
            except (OSError, ValueError) as error:
                raise FeedTimeout(
                    f"state(): the ShardServer at {self._where} does not answer: {error}"
                ) from error
        return found

    def close(self) -> None:
        """Leave the job. From any thread; a claim that waits returns."""
        if self._closed:
            return
        self._closed = True
        with suppress(OSError):
            self._send(self._socket, {"bye": True})
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._lines.close()

    def _connected(self, timeout_s: float) -> socket.socket:
        address, deadline = (self._address.host, self._address.port), time.monotonic() + timeout_s
        while True:
            try:
                connection = socket.create_connection(address, timeout_s)
            except OSError as error:
                if time.monotonic() + CONNECT_RETRY_S < deadline:
                    time.sleep(CONNECT_RETRY_S)
                    continue
                raise FeedTimeout(
                    f"no ShardServer at {self._where} within {timeout_s:g} s ({error}): start it "
                    "before the ranks, on a host= that they can reach, and keep it until they end"
                ) from error
            tune(connection)
            return connection

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self._send(self._socket, message)
        return decode(self._lines.readline())

    def _send(self, connection: socket.socket, message: Mapping[str, Any]) -> None:
        with self._sending:
            connection.sendall(encode(dict(message)))
