"""Tally of a script's steps: after a warm-up their times go to a file, and the process ends."""

from __future__ import annotations

import atexit
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

FIRST = 3  # steps that trace and compile
TICKS = os.sysconf("SC_CLK_TCK")
_began: list[tuple[float, float, float]] = []
_times: list[float] = []
_settings: dict[str, Any] = {}
_ready: dict[Any, Any] = {}
_turns = [0]


def start(settings: dict[str, Any]) -> None:
    """Count steps for `warmup` and then `seconds`."""
    _settings.update(settings)
    atexit.register(_write)


def tick(*_: Any, **__: Any) -> None:
    """A step is done."""
    if not _settings:
        return
    now = time.perf_counter()
    _times.append(now)
    if not _began and len(_times) > FIRST and now - _times[FIRST] > _settings["warmup"] / 2:
        _began.append((now, *_cpu()))
    if len(_times) > FIRST and now - _times[FIRST] > _settings["warmup"] + _settings["seconds"]:
        _write()
        if "tally.exit" in _settings["switches"]:
            sys.exit()  # a profiler writes its report
        os._exit(0)


def _cpu() -> tuple[float, float]:
    """Return CPU seconds of the machine, with those that a host took away, and of this session."""
    with open("/proc/stat") as file:
        spent = [int(one) for one in file.readline().split()[1:9]]
    session, own = os.getsid(0), 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rpartition(") ")[2].split()
            except OSError:  # it has ended
                continue
            if int(fields[3]) == session:
                own += sum(int(one) for one in fields[11:15])
    return (sum(spent) - spent[3] - spent[4]) / TICKS, own / TICKS


def _foreign() -> float | None:
    """Return the cores that other processes took since the warm-up."""
    if not _began:
        return None
    then, all_then, own_then = _began[0]
    all_now, own_now = _cpu()
    return (all_now - all_then - own_now + own_then) / (time.perf_counter() - then)


def ready(batches: Iterator[Any]) -> Any:
    """Return the first of `batches`, every time."""
    if id(batches) not in _ready:
        _ready[id(batches)] = next(batches)
    return _ready[id(batches)]


def again(batches: Any, times: int) -> Iterator[Any]:
    """Yield the first of `batches` `times` times; it is made once for all epochs."""
    if 0 not in _ready:
        _ready[0] = next(iter(batches))
    return itertools.repeat(_ready[0], times)


def once(made: Any, *given: Any, **named: Any) -> Any:
    """Return what `made` returned when it was first called."""
    key = getattr(made, "__qualname__", str(made))
    if key not in _ready:
        _ready[key] = made(*given, **named)
    return _ready[key]


def replay(made: Any, *given: Any) -> Any:
    """Return what `made` returns, 500 times; then the same again without calling it."""
    found = _ready.setdefault(("replay", made.__qualname__), [])
    if len(found) < 500:
        found.append(made(*given))
        return found[-1]
    _turns[0] += 1
    return found[_turns[0] % 500]


def _write() -> None:
    if len(_times) <= FIRST:
        return
    foreign = _foreign()
    kept = [t for t in _times if t - _times[FIRST] >= _settings["warmup"]]
    path = f"{_settings['out']}.{os.getpid()}"
    with open(path + ".part", "w") as file:
        json.dump({"before": len(_times) - len(kept), "times": kept, "foreign": foreign}, file)
    os.replace(path + ".part", path)
    _times.clear()
