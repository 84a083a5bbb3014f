"""Signatures and help texts with the options of a dataclass, which lists them once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

Options = ParamSpec("Options")
Owner = TypeVar("Owner")
Returned = TypeVar("Returned")
Documented = TypeVar("Documented", bound=type)


def with_options(
    options: Callable[Options, Any],
) -> Callable[[Callable[..., Returned]], Callable[Concatenate[Any, Any, Options], Returned]]:
    """Give a method (self, source, **options) the keywords of `options`: for type checkers by its
    type, for editors and help() by its signature."""

    def decorate(
        method: Callable[..., Returned],
    ) -> Callable[Concatenate[Any, Any, Options], Returned]:
        own = inspect.signature(method)
        parameters = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        parameters += inspect.signature(options).parameters.values()
        method.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return method

    return decorate


def documented(options: type) -> Callable[[Documented], Documented]:
    """Append the description of `options` to the docstring of a class."""

    def decorate(kind: Documented) -> Documented:
        if kind.__doc__ and options.__doc__:  # python -OO has none
            kind.__doc__ = (
                f"{inspect.cleandoc(kind.__doc__)}\n\n{inspect.cleandoc(options.__doc__)}"
            )
        return kind

    return decorate
