"""fastfeed's errors on their way through TensorFlow's runtime, which knows only status codes and
text.

TensorFlow makes the exception of a failed operation in three places, all of them private: for eager
operations, for functions, and for sessions. Each gets a way to raise the real failure of the
operation. Only an operation that has failed passes there, so that no step pays for it. If another
TensorFlow has them elsewhere, its own exception is raised, with the same text.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fastfeed.errors import FeedError

MARK = re.compile(r"\[fastfeed error (\d+)\]")


class Crossing:
    """Remembers errors that are under way."""

    def __init__(self) -> None:
        self._errors: weakref.WeakValueDictionary[int, FeedError] = weakref.WeakValueDictionary()

    def marked(self, error: FeedError) -> RuntimeError:
        """Return what a Python operation raises instead of `error`, which must be held until it has
        crossed."""
        self._errors[id(error)] = error
        return RuntimeError(f"[fastfeed error {id(error)}] {type(error).__name__}: {error}")

    def arrived(self, text: str) -> FeedError | None:
        """Return the error that TensorFlow's text names, if it is one of fastfeed's."""
        found = MARK.search(text)
        return self._errors.get(int(found[1])) if found else None


class EagerError:
    """Replaces the function that makes an exception of an eager operation's status."""

    def __init__(self, plain: Callable[[Any], BaseException], crossing: Crossing) -> None:
        self.crossing = crossing
        self._plain = plain

    def __call__(self, status: Any) -> BaseException:
        return self.crossing.arrived(status.message) or self._plain(status)


def crossing() -> Crossing:
    """Return the only one of the process; nothing arrives at it if TensorFlow has no such place."""
    try:
        from tensorflow.python.eager import core

        _ = core._status_to_exception
    except (ImportError, AttributeError):
        return Crossing()
    if not isinstance(core._status_to_exception, EagerError):
        core._status_to_exception = EagerError(core._status_to_exception, Crossing())
        found = core._status_to_exception.crossing
        with contextlib.suppress(ImportError, AttributeError):
            _patch_functions(found)
        with contextlib.suppress(ImportError, AttributeError):
            _patch_sessions(found)
    made: Crossing = core._status_to_exception.crossing
    return made


def _patch_functions(crossing: Crossing) -> None:
    from tensorflow.python.eager.polymorphic_function.atomic_function import InterpolateRuntimeError

    plain = InterpolateRuntimeError.__exit__

    def leave(self: Any, *raised: Any) -> Any:
        found = (
            crossing.arrived(raised[1].message)
            if isinstance(raised[1], tf.errors.OpError)
            else None
        )
        if found is not None:
            raise found from None
        return plain(self, *raised)

    InterpolateRuntimeError.__exit__ = leave


def _patch_sessions(crossing: Crossing) -> None:
    from tensorflow.python.client.session import BaseSession

    plain = BaseSession._do_call

    def do_call(self: Any, fn: Any, *args: Any) -> Any:
        try:
            return plain(self, fn, *args)
        except tf.errors.OpError as error:
            found = crossing.arrived(error.message)
            if found is None:
                raise
        raise found

    BaseSession._do_call = do_call
