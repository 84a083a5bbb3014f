"""Run a script in this interpreter as `python script.py args` would."""

from __future__ import annotations

import builtins
import contextlib
import importlib.machinery
import os
import pkgutil
import re
import runpy
import sys
import traceback
import types
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastfeed.errors import OptionError

EXIT_INTERRUPTED = 130
SAFE_PATH = bool(getattr(sys.flags, "safe_path", False))  # Python 3.10 does not have the flag
SOURCE_FILES = re.compile(
    r"(^|/)(queue|multiprocessing/\w+|concurrent/futures/\w+|torch/utils/data/.+|joblib/\w+|"
    r"fastfeed/(?!diagnose/).+)\.py$"
)


class Script:
    """Script to run, as `python` would be called with it.

    A file (or a folder or zip file with a `__main__`), `-m module`, `-c code` or `-` (standard
    input), and its arguments. A leading `python` is skipped. Raise OptionError if nothing is given
    or the file does not exist.
    """

    def __init__(self, words: Sequence[str]) -> None:
        given = list(words)
        if given and Path(given[0]).name.rstrip("0123456789.") == "python":
            given = given[1:]
        # They are options of an interpreter that runs already.
        while given and given[0] in ("-u", "-B"):
            given = given[1:]
        if not given or (given[0] in ("-m", "-c") and len(given) == 1):
            raise OptionError(
                "no script given: pass one as in fastfeed diagnose -- train.py args, "
                "or -m module, or -c code"
            )
        self.crashed = False  # by an exception
        self.crashed_in_feed = False  # while it waited for input, or because a producer had died
        self.how = given[0] if given[0] in ("-m", "-c", "-") else "file"
        self._what = given[1] if self.how in ("-m", "-c") else given[0]
        self._args = given[2:] if self.how in ("-m", "-c") else given[1:]
        file = os.path.basename(self._what)
        self.name = file if self.how == "file" else f"{self.how} {self._what}".strip()
        if self.how == "file" and not os.path.exists(self._what):
            raise OptionError(
                f"can't open {self._what!r}: the script must be a Python file, -m module or "
                "-c code (under torchrun: torchrun --no-python fastfeed diagnose -- train.py)"
            )

    def run(self) -> int:
        """Run the script as `__main__`, and return its exit code.

        It stays `__main__` afterwards. Tracebacks contain no frames of this package.
        """
        try:
            code, names = self._prepared()
            exec(code, names)
        except SystemExit as error:
            return _exit_code(error)
        except BaseException as error:
            self.crashed = True
            self.crashed_in_feed = in_feed(error)
            return _uncaught(error)
        return 0

    def _prepared(self) -> tuple[types.CodeType, dict[str, Any]]:
        main = types.ModuleType("__main__")
        names = main.__dict__
        names.update(__builtins__=builtins, __annotations__={})
        sys.modules["__main__"] = main
        sys.argv[:] = [self._what if self.how == "file" else self.how, *self._args]
        if self.how == "file":
            return self._file(names)
        if self.how == "-m":
            _first_path(os.getcwd())
            return self._module(names, self._what)
        _first_path("")
        names.update(
            __loader__=importlib.machinery.BuiltinImporter, __spec__=None, __package__=None
        )
        if self.how == "-c":
            return compile(self._what, "<string>", "exec", dont_inherit=True), names
        names.update(__file__="<stdin>", __cached__=None)
        names.update(__loader__=importlib.machinery.SourceFileLoader("__main__", "<stdin>"))
        return compile(sys.stdin.read(), "<stdin>", "exec", dont_inherit=True), names

    def _file(self, names: dict[str, Any]) -> tuple[types.CodeType, dict[str, Any]]:
        if os.path.isdir(self._what) or (
            not self._what.endswith(".py") and zipfile.is_zipfile(self._what)
        ):
            sys.path[: not SAFE_PATH] = [os.path.abspath(self._what)]
            return self._module(names, "__main__")
        _first_path(os.path.dirname(os.path.realpath(self._what)))
        path = self._what if os.path.isabs(self._what) else f"{os.getcwd()}/{self._what}"
        with open(path, "rb") as file:
            compiled = pkgutil.read_code(file)
            file.seek(0)
            text = file.read() if compiled is None else b""
        loaders = importlib.machinery
        kind = loaders.SourceFileLoader if compiled is None else loaders.SourcelessFileLoader
        names.update(
            __file__=path,
            __cached__=None,
            __spec__=None,
            __package__=None,
            __loader__=kind("__main__", path),
        )
        code = compiled or compile(text, path, "exec", dont_inherit=True)
        return code, names

    def _module(self, names: dict[str, Any], module: str) -> tuple[types.CodeType, dict[str, Any]]:
        """Prepare a module as runpy does for `python -m`.

        The private functions of runpy are those that pdb and Python's profilers use.
        """
        private: Any = runpy
        try:
            if module == "__main__":
                _, spec, code = private._get_main_module_details(private._Error)
            else:
                _, spec, code = private._get_module_details(module, private._Error)
        except private._Error as error:
            raise SystemExit(f"{sys.executable}: {error}") from None
        if self.how == "-m":
            sys.argv[0] = spec.origin
        names.update(
            __file__=spec.origin,
            __cached__=spec.cached,
            __loader__=spec.loader,
            __package__=spec.parent,
            __spec__=spec,
        )
        return code, names


def _first_path(path: str) -> None:
    """Replace the first entry of sys.path, the folder of the fastfeed command."""
    if not SAFE_PATH:
        sys.path[0] = path


def _exit_code(error: SystemExit) -> int:
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code if -(2**63) <= code < 2**63 else -1
    sys.stdout.flush()
    sys.stderr.write(f"{code}\n")
    return 1


def in_feed(error: BaseException) -> bool:
    """Return True if an exception comes from queues, pools or loaders, which batches come from."""
    chain: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in chain:
        chain.append(one)
        one = one.__cause__ or one.__context__
    traces = (traceback.walk_tb(one.__traceback__) for one in chain)
    files = [frame.f_code.co_filename for trace in traces for frame, _ in trace]
    return any(SOURCE_FILES.search(file.replace(os.sep, "/")) for file in files)


def _uncaught(error: BaseException) -> int:
    """Print an exception as Python does, through the script's own hook; return the exit code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    with contextlib.suppress(Exception):  # the end of the process reports a closed pipe
        sys.stdout.flush()
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit as again:
        return _exit_code(again)
    except BaseException as again:
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(again), again, again.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, trace)
    return EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
