"""The function that a line calls at one moment.

C functions have no frames: only the caller and its current instruction are visible.
"""

from __future__ import annotations

import ast
import dis
import itertools
import linecache
import re
import sys
import textwrap
from functools import lru_cache

from fastfeed.probes.places import Spot, line_of

# What a thread does for its data.
COPYING, PICKLING = "copying", "pickling"
DICT_GET = "dict.get"
ENTER_OPCODES = (
    "BEFORE_WITH",
    "BEFORE_ASYNC_WITH",
    "SETUP_WITH",
    "SETUP_ASYNC_WITH",
    "LOAD_SPECIAL",
)
NEXT_OPCODES = ("FOR_ITER", "FOR_ITER_LIST", "SEND", "YIELD_FROM")
COPY_FUNCTIONS = frozenset(
    [
        "array",
        "asarray",
        "asanyarray",
        "ascontiguousarray",
        "asfortranarray",
        "astype",
        "copy",
        "copyto",
        "deepcopy",
        "stack",
        "vstack",
        "hstack",
        "dstack",
        "column_stack",
        "concatenate",
        "concat",
        "tobytes",
        "fromiter",
        "tolist",
        "as_tensor",
        "tensor",
        "constant",
        "convert_to_tensor",
        "default_collate",
        "pin_memory",
    ]
)
COLLATE_FILES = re.compile(
    r"(^|/)(_utils/collate|_utils/pin_memory|constant_op|tensor_conversion\w*)\.py$"
)
PICKLE_FILES = re.compile(
    r"(^|/)(pickle|copyreg|cloudpickle|dill/\w+|reductions?|numpy_pickle\w*)\.py$"
)
# Copies of arrays that release the interpreter lock.
LOCK_FREE_COPIES = frozenset(
    ("astype", "copy", "copyto", "stack", "concatenate", "ascontiguousarray", "asfortranarray")
)
PICKLE_FUNCTIONS = frozenset(("dumps", "loads", "dump", "load", "_feed"))
OTHER_SERIALIZERS = frozenset(["json", "yaml", "toml", "np", "numpy", "torch", "marshal", "joblib"])
FILL_FUNCTIONS = frozenset(["ones", "full", "zeros", "ones_like", "full_like", "zeros_like"])
WAIT_FUNCTIONS = frozenset(["acquire", "wait", "popleft", "__enter__", "release", "notify"])


def callee(spot: Spot) -> str:
    """Return the dotted name of the function that is being called at a spot.

    "__enter__" for a `with`, "__next__" for a `for`, "" if nothing is called or the name is
    unknown.
    """
    code, offset = spot
    if not 0 <= offset < len(code.co_code):
        return ""
    # While a Python function runs, the offset of its caller is past the call's own caches.
    while offset and dis.opname[code.co_code[offset]] == "CACHE":
        offset -= 2
    name = dis.opname[code.co_code[offset]]
    if name in ENTER_OPCODES:
        return "__enter__"
    if name in NEXT_OPCODES:
        return "__next__"
    if not name.startswith(("CALL", "PRECALL")):
        return ""
    if sys.version_info < (3, 11):
        found = calls_at(code.co_filename, line_of(spot))
        return found[0] if len(found) == 1 else ""
    place = next(itertools.islice(code.co_positions(), offset // 2, None), (None,) * 4)
    return _source_call(code.co_filename, place)


def _source_call(file: str, place: tuple[int | None, ...]) -> str:
    """Return the call whose source lies at (line, last line, column, last column).

    Columns count bytes.
    """
    first, last, begin, end = place
    if first is None or last is None or begin is None or end is None:
        return ""
    lines = [linecache.getline(file, number).encode() for number in range(first, last + 1)]
    if not all(lines):
        return ""
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    found = parsed(b"".join(lines).decode(errors="replace").strip(), "eval")
    return _call_name(found.body) if isinstance(found, ast.Expression) else ""


def _call_name(node: ast.expr) -> str:
    """Return the dotted name of a call, or DICT_GET for a `get` with a key.

    The `get` of a queue has at most flags.
    """
    name = dotted(node)
    if not isinstance(node, ast.Call) or name.rpartition(".")[2] != "get" or not node.args:
        return name
    first = node.args[0]
    return name if isinstance(first, ast.Constant) and isinstance(first.value, bool) else DICT_GET


def dotted(node: ast.expr) -> str:
    """Return "np.stack" for `np.stack(...)`, and only the method's name for an unnamed value."""
    if isinstance(node, ast.Call):
        return dotted(node.func)
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value) if isinstance(node.value, ast.Attribute | ast.Name) else ""
        return f"{owner}.{node.attr}" if owner else node.attr
    return node.id if isinstance(node, ast.Name) else ""


@lru_cache(4096)
def calls_at(file: str, line: int) -> tuple[str, ...]:
    """Return the names of all calls on a source line, the outermost first; () if unparsable."""
    text = textwrap.dedent(linecache.getline(file, line)).strip()
    if text.startswith(("elif ", "else", "except", "finally")):
        text = text.removeprefix("el") if text.startswith("elif") else ""
    for candidate in (text, f"{text} pass", f"{text}\n pass", text.rstrip(",") + ")"):
        found = parsed(candidate.strip())
        if found is not None:
            calls = (node for node in ast.walk(found) if isinstance(node, ast.Call))
            return tuple(filter(None, map(_call_name, calls)))
    return ()


def parsed(text: str, mode: str = "exec") -> ast.AST | None:
    """Return the syntax tree of source text; None if it cannot be parsed."""
    try:
        return ast.parse(text, mode=mode)
    except (SyntaxError, ValueError):
        return None


def work_of(function: str, file: str, *, calls: tuple[str, ...] = ()) -> str:
    """Return the kind of work of the innermost `function` of a stack, or of one of its `calls`.

    COPYING (conversions, stacking and copies of arrays), PICKLING, or "" for any other work.
    """
    names = [call.rpartition(".") for call in calls]
    if PICKLE_FILES.search(file) or function.rpartition(".")[2] == "_feed":
        return "" if any(name in WAIT_FUNCTIONS for _, _, name in names) else PICKLING
    if any(
        name in PICKLE_FUNCTIONS and owner.split(".")[0] not in OTHER_SERIALIZERS
        for owner, _, name in names
    ):
        return PICKLING
    if function in FILL_FUNCTIONS:  # numpy's own functions, which call copyto
        return ""
    if (
        COLLATE_FILES.search(file)
        or function in COPY_FUNCTIONS
        or any(name in COPY_FUNCTIONS for _, _, name in names)
    ):
        return COPYING
    return ""
