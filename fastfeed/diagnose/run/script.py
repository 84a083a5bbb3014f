"""Run a script in this interpreter as `python script.py args` would."""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib.machinery
import linecache
import os
import re
import runpy
import sys
import traceback
import types
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastfeed.diagnose.patches.notebook import NOTEBOOK, Notebook
from fastfeed.diagnose.sample.turns import add_turns
from fastfeed.errors import OptionError

EXIT_INTERRUPTED = 130
SAFE_PATH = bool(getattr(sys.flags, "safe_path", False))  # Python 3.10 does not have the flag
SOURCE_FILES = re.compile(
    r"(^|/)(queue|multiprocessing/\w+|concurrent/futures/\w+|torch/utils/data/.+|joblib/\w+|"
    r"fastfeed/(?!diagnose/).+)\.py$"
)


class Script:
    """Script to run, as `python` would be called with it.

    A file (or a notebook, or a folder or zip file with a `__main__`), `-m module`, `-c code` or `-`
    (standard input), and its arguments. A leading `python` is skipped. `turns`: its loops record
    their iterations. Raise OptionError if nothing is given or the file does not exist.
    """

    def __init__(self, words: Sequence[str], *, turns: bool = False) -> None:
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
        self.words = tuple(given)
        self._turns = turns
        self.how = given[0] if given[0] in ("-m", "-c", "-") else "file"
        self._what = given[1] if self.how in ("-m", "-c") else given[0]
        self._args = given[2:] if self.how in ("-m", "-c") else given[1:]
        file = os.path.basename(self._what)
        self.name = file if self.how == "file" else f"{self.how} {self._what}".strip()
        if self.how == "file" and not os.path.exists(self._what):
            raise OptionError(
                f"can't open {self._what!r}: there is no such file; the script must be a Python "
                "file, -m module or -c code (under torchrun: torchrun --no-python fastfeed "
                "diagnose -- train.py)"
            )
        if self.how == "file" and file.endswith(NOTEBOOK):
            with contextlib.suppress(SyntaxError):  # the run shows it
                Notebook(Path(self._what))

    def run(self) -> int:
        """Run the script as `__main__`, and return its exit code.

        It stays `__main__` afterwards. Tracebacks contain no frames of this package.
        """
        try:
            self._execute()
        except SystemExit as error:
            return _exit_code(error)
        except BaseException as error:
            self.crashed = True
            self.crashed_in_feed = in_feed(error)
            return _uncaught(error)
        return 0

    def _execute(self) -> None:
        main = types.ModuleType("__main__")
        names = vars(main)
        names.update(__builtins__=builtins)
        if sys.version_info < (3, 14):  # later ones make it when it is needed
            names.update(__annotations__={})
        sys.modules["__main__"] = main
        sys.argv[:] = [self._what if self.how == "file" else self.how, *self._args]
        execute_module: Any = runpy._run_module_as_main  # type: ignore[attr-defined]
        if self.how == "-m":
            _first_path(os.getcwd())
            execute_module(self._what)
        elif self.how == "file" and (
            os.path.isdir(self._what)
            or (not self._what.endswith(".py") and zipfile.is_zipfile(self._what))
        ):
            _first_path(os.path.abspath(self._what))
            execute_module("__main__", alter_argv=False)
        else:
            text, file = self._source(names)
            code: Any = text
            if self._turns:
                code = compile(text, file, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
                add_turns(code, file)
            exec(compile(code, file, "exec", dont_inherit=True), names)

    def _source(self, names: dict[str, Any]) -> tuple[str | bytes, str]:
        """Return the source of a script and its file; add what its module knows about itself."""
        names.update(__spec__=None, __package__=None)
        if self.how == "file":
            _first_path(os.path.dirname(os.path.realpath(self._what)))
            text: str | bytes = Path(self._what).read_bytes()
            file = self._what if os.path.isabs(self._what) else f"{os.getcwd()}/{self._what}"
            if file.endswith(NOTEBOOK):  # without __file__, as in Jupyter
                text = Notebook(Path(file)).text
                linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
                names.update(display=_display)
                os.environ.setdefault("MPLBACKEND", "Agg")  # pictures need no window
                return text, file
        else:
            _first_path("")
            if self.how == "-c":
                names.update(__loader__=importlib.machinery.BuiltinImporter)
                return self._what, "<string>"
            text, file = sys.stdin.read(), "<stdin>"
        loader = importlib.machinery.SourceFileLoader("__main__", file)
        names.update(__file__=file, __cached__=None, __loader__=loader)
        return text, file


def _display(*shown: Any, **_: Any) -> None:
    """Show objects as IPython would do without a page."""
    for one in shown:
        sys.stdout.write(f"{one}\n")


def _first_path(path: str) -> None:
    """Replace the first entry of sys.path, the folder of the fastfeed command."""
    if not SAFE_PATH:
        sys.path[0] = path


def _exit_code(error: SystemExit) -> int:
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code
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
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
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
