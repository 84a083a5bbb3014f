"""Another number of producers for a stream that runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastfeed.errors import OptionError, StateError
from fastfeed.runner.stream import Stream
from fastfeed.runner.unfit_options import refuse_too_many
from fastfeed.source import uncached


def resize(stream: Stream, wanted: Mapping[str, int]) -> None:
    """Change the numbers of producers to those of `wanted`, by the names of the options. Raise what
    `FeedRunner.resize` raises."""
    with stream.resizing:
        _resize(stream, wanted)


def _resize(stream: Stream, wanted: Mapping[str, int]) -> None:
    if stream.shares:
        raise StateError(
            "resize() of a runner made by also(): its workers are those of the first runner, which "
            "can be resized"
        )
    _refuse_kinds(stream, wanted)
    for other in (stream, *stream.living_followers()):
        if not other.source.ordered:
            raise OptionError(
                f"resize({_in_words(wanted)}): each producer of {other.source_name}, a callable, "
                "has a stream of its own, which no other can go on with. Pass an iterable or an "
                "indexable; or save state(), and restore() it with another number"
            )
    changes: dict[str, Any] = dict(wanted)
    options = replace(stream.options, **changes)
    refuse_too_many(options.threads, options.processes)
    stream.options = options
    for follower in stream.living_followers():
        if options.workers:
            follower.options = replace(
                follower.options, processes=options.processes, producers=options.producers
            )
    if stream.feed is not None:
        stream.feed.resize(uncached(options))


def _refuse_kinds(stream: Stream, wanted: Mapping[str, int]) -> None:
    """Raise OptionError for producers of a kind that the stream does not have."""
    options = stream.options
    kinds = {
        "threads": not options.workers,
        "processes": options.processes > 0,
        "producers": options.remote is not None,
    }
    own = " and ".join(f"{name}=" for name, has in kinds.items() if has)
    for name, number in wanted.items():
        if not kinds[name]:
            raise OptionError(
                f"resize({_in_words(wanted)}): this runner can change {own}, not {name}=: it has "
                "no such producers. Save state(), and restore() it in a runner that has them"
            )
        if number == 0:
            raise OptionError(
                f"resize({_in_words(wanted)}): {name}= must be at least 1; stop() ends all"
            )


def _in_words(wanted: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={number!r}" for name, number in wanted.items())
