"""Errors of fastfeed that pass through the runtime of TensorFlow, which keeps only codes and text.

TensorFlow makes the exception of a failed operation in three private places: for eager operations,
for functions, and for sessions. Each is patched to raise the original error. Only failed operations
run this code, so steps do not pay for it. In a TensorFlow without these places its own exception is
raised, with the same text.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fastfeed.errors import FeedError

ERROR_MARK = re.compile(r"\[fastfeed error (\d+)\]")


class ErrorRegistry:
    """Errors that are in transit, by the number in their text."""

    def __init__(self) -> None:
        self._errors: weakref.WeakValueDictionary[int, FeedError] = weakref.WeakValueDictionary()

    def mark(self, error: FeedError) -> RuntimeError:
        """Return the error for a Python operation to raise instead of `error`. The caller keeps
        `error` alive until it arrives."""
        self._errors[id(error)] = error
        return RuntimeError(f"[fastfeed error {id(error)}] {type(error).__name__}: {error}")

    def find(self, text: str) -> FeedError | None:
        """Return the error that a text of TensorFlow names, or None."""
        match = ERROR_MARK.search(text)
        return self._errors.get(int(match[1])) if match else None


class EagerErrorFactory:
    """Replaces the function that makes an exception from the status of an eager operation."""

    def __init__(self, plain: Callable[[Any], BaseException], registry: ErrorRegistry) -> None:
        self.registry = registry
        self._plain = plain

    def __call__(self, status: Any) -> BaseException:
        return self.registry.find(status.message) or self._plain(status)


def error_registry() -> ErrorRegistry:
    """Return the registry of the process; an unconnected one if TensorFlow cannot be patched."""
    try:
        from tensorflow.python.eager import core

        plain = core._status_to_exception
    except (ImportError, AttributeError):
        return ErrorRegistry()
    if isinstance(plain, EagerErrorFactory):
        return plain.registry
    registry = ErrorRegistry()
    core._status_to_exception = EagerErrorFactory(plain, registry)
    with contextlib.suppress(ImportError, AttributeError):
        _patch_functions(registry)
    with contextlib.suppress(ImportError, AttributeError):
        _patch_sessions(registry)
    return registry


def _patch_functions(registry: ErrorRegistry) -> None:
    from tensorflow.python.eager.polymorphic_function.atomic_function import InterpolateRuntimeError

    plain = InterpolateRuntimeError.__exit__

    def leave(self: Any, *raised: Any) -> Any:
        error = raised[1]
        original = registry.find(error.message) if isinstance(error, tf.errors.OpError) else None
        if original is not None:
            raise original from None
        return plain(self, *raised)

    InterpolateRuntimeError.__exit__ = leave


def _patch_sessions(registry: ErrorRegistry) -> None:
    from tensorflow.python.client.session import BaseSession

    plain = BaseSession._do_call

    def do_call(self: Any, fn: Any, *args: Any) -> Any:
        try:
            return plain(self, fn, *args)
        except tf.errors.OpError as error:
            original = registry.find(error.message)
            if original is None:
                raise
        raise original

    BaseSession._do_call = do_call
