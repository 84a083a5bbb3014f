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
from fastfeed.core.status import RANKS, waiting
from fastfeed.errors import FeedTimeout, OptionError
from fastfeed.ranks.job_messages import WAIT, decode, encode, token_line, tune

SERVER_TIMEOUT_S = 10.0  # a server may start after its ranks; then it answers at once
CONNECT_RETRY_S = 0.1


class JobClaims:
    """Connection of one rank to its server.

    `job` is what all ranks must agree on; `state` is where an earlier job ended, or None. Raise
    FeedTimeout if there is no server within `timeout_s`, OptionError if it refuses this rank.
    """

    def __init__(
        self,
        address: ShardAddress,
        job: Mapping[str, Any],
        *,
        state: Mapping[str, Any] | None = None,
        timeout_s: float = SERVER_TIMEOUT_S,
    ) -> None:
        self._address = address
        self._where = f"{address.host}:{address.port}"
        self._sending = threading.Lock()
        self._timeout_s = timeout_s
        self._closed = False
        self.claimed = 0  # batches
        self.waits = False  # the server has answered that only other ranks hold batches
        self._socket = self._connected(timeout_s)
        self._lines = self._socket.makefile("rb")
        name = f"{platform.node()} {os.getpid()}"
        try:
            answer = self._ask({"name": name, "job": job, "state": state})
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

    def next(self, epoch: int) -> int | None:
        """Return the serial number of the next batch, or None at the end of the epoch, and once
        this was closed. Wait while other ranks hold the last batches, as long as the server says
        so. Raise ConnectionError if it has gone, FeedTimeout if it does not answer."""
        try:
            answer = self._ask({"claim": epoch})
            if answer == WAIT:
                answer = self._after_others()
        except (OSError, ValueError) as error:
            if self._closed:
                return None
            if isinstance(error, TimeoutError):
                raise FeedTimeout(
                    f"the ShardServer at {self._where} has not answered for {self._timeout_s:g} s: "
                    "is the process that runs it stopped, or busy in code that keeps the GIL?"
                ) from error
            raise ConnectionError(
                f"the ShardServer at {self._where} has gone, and nobody knows any more which "
                "batches are left: keep the process that runs it alive until every rank has ended"
            ) from error
        item: int | None = answer["item"]
        self.claimed += item is not None
        return item

    def report(self, serials: Sequence[int]) -> None:
        """Report batches as consumed. Without a server, do nothing: the next claim fails."""
        if serials:
            with suppress(OSError):
                self._send(self._socket, {"done": serials})

    def state(self, serials: Sequence[int]) -> dict[str, Any]:
        """Report batches as consumed, and return the state of the job. Raise FeedTimeout if the
        server has gone."""
        question = {"state_of": self.rank, "done": serials}
        # a claim may wait for its answer on the other connection
        with self._connected(SERVER_TIMEOUT_S) as connection:
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
            with suppress(OSError):  # which the first question meets again
                connection.sendall(token_line(self._address.token))
            return connection

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self._send(self._socket, message)
        return decode(self._lines.readline())

    def _after_others(self) -> dict[str, Any]:
        """Return the answer that comes once other ranks have consumed the last batches, or died."""
        self.waits = True
        try:
            with waiting(RANKS):
                while (answer := decode(self._lines.readline())) == WAIT:
                    pass
        finally:
            self.waits = False
        return answer

    def _send(self, connection: socket.socket, message: Mapping[str, Any]) -> None:
        with self._sending:
            connection.sendall(encode(dict(message)))
