"""What a line calls at one moment: a C function has no frame, only its caller and the present
instruction."""

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

ASKS_DICT = "dict.get"
ENTERS = ("BEFORE_WITH", "BEFORE_ASYNC_WITH", "SETUP_WITH", "SETUP_ASYNC_WITH", "LOAD_SPECIAL")
ASKS = ("FOR_ITER", "FOR_ITER_LIST", "SEND", "YIELD_FROM")
COPYING = frozenset(
    (
        *(
            "array",
            "asarray",
            "asanyarray",
            "ascontiguousarray",
            "asfortranarray",
            "astype",
            "copy",
            "copyto",
        ),
        *(
            "deepcopy",
            "stack",
            "vstack",
            "hstack",
            "dstack",
            "column_stack",
            "concatenate",
            "concat",
            "tobytes",
        ),
        *(
            "fromiter",
            "tolist",
            "as_tensor",
            "tensor",
            "constant",
            "convert_to_tensor",
            "default_collate",
        ),
        *("pin_memory",),
    )
)
COLLATES = re.compile(
    r"(^|/)(_utils/collate|_utils/pin_memory|constant_op|tensor_conversion\w*)\.py$"
)
PICKLERS = re.compile(
    r"(^|/)(pickle|copyreg|cloudpickle|dill/\w+|reductions?|numpy_pickle\w*)\.py$"
)
# copies of arrays, which release the interpreter lock
RELEASES = frozenset(
    ("astype", "copy", "copyto", "stack", "concatenate", "ascontiguousarray", "asfortranarray")
)
PICKLING = frozenset(("dumps", "loads", "dump", "load", "_feed"))
OTHER_FORMATS = frozenset(["json", "yaml", "toml", "np", "numpy", "torch", "marshal", "joblib"])
FILLS = frozenset(["ones", "full", "zeros", "ones_like", "full_like", "zeros_like"])
WAITS = frozenset(["acquire", "wait", "popleft", "__enter__", "release", "notify"])


def callee(spot: Spot) -> str:
    """Return the dotted name of what is called at a spot, "__enter__" of a with, "__next__" of a
    for; "" if nothing."""
    code, offset = spot
    if not 0 <= offset < len(code.co_code):
        return ""
    # a call of a Python function is past its own cache
    while offset and dis.opname[code.co_code[offset]] == "CACHE":
        offset -= 2
    name = dis.opname[code.co_code[offset]]
    if name in ENTERS:
        return "__enter__"
    if name in ASKS:
        return "__next__"
    if not name.startswith(("CALL", "PRECALL")):
        return ""
    if sys.version_info < (3, 11):
        found = calls_at(code.co_filename, line_of(spot))
        return found[0] if len(found) == 1 else ""
    place = next(itertools.islice(code.co_positions(), offset // 2, None), (None,) * 4)
    return _source_call(code.co_filename, place)


def _source_call(file: str, place: tuple[int | None, ...]) -> str:
    """Return the call whose source is at (line, last line, column, last column), in bytes."""
    first, last, begin, end = place
    if first is None or last is None or begin is None or end is None:
        return ""
    lines = [linecache.getline(file, number).encode() for number in range(first, last + 1)]
    if not all(lines):
        return ""
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    found = _parsed(b"".join(lines).decode(errors="replace"), "eval")
    return _called(found.body) if isinstance(found, ast.Expression) else ""


def _called(node: ast.expr) -> str:
    """Return the dotted name; ASKS_DICT for a `get` with a key: that of a queue has flags, if
    anything."""
    name = dotted(node)
    if not isinstance(node, ast.Call) or name.rpartition(".")[2] != "get" or not node.args:
        return name
    first = node.args[0]
    return name if isinstance(first, ast.Constant) and isinstance(first.value, bool) else ASKS_DICT


def dotted(node: ast.expr) -> str:
    """Return "np.stack" of `np.stack(...)`; of a call on a value, only the method's name."""
    if isinstance(node, ast.Call):
        return dotted(node.func)
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value) if isinstance(node.value, ast.Attribute | ast.Name) else ""
        return f"{owner}.{node.attr}" if owner else node.attr
    return node.id if isinstance(node, ast.Name) else ""


@lru_cache(4096)
def calls_at(file: str, line: int) -> tuple[str, ...]:
    """Return the names of all calls that are written on a line, the outermost first; () if it
    cannot be parsed."""
    text = textwrap.dedent(linecache.getline(file, line)).strip()
    if text.startswith(("elif ", "else", "except", "finally")):
        text = text.removeprefix("el") if text.startswith("elif") else ""
    for candidate in (text, f"{text} pass", f"{text}\n pass", text.rstrip(",") + ")"):
        found = _parsed(candidate, "exec")
        if found is not None:
            return tuple(
                filter(
                    None, (_called(node) for node in ast.walk(found) if isinstance(node, ast.Call))
                )
            )
    return ()


def _parsed(text: str, mode: str) -> ast.AST | None:
    try:
        return ast.parse(text.strip(), mode=mode)
    except (SyntaxError, ValueError):
        return None


def work_of(function: str, file: str, *, calls: tuple[str, ...] = ()) -> str:
    """Return what the innermost function, or one without a frame that it calls, does: "copying"
    (conversions, stacking and copies of arrays), "pickling", or ""."""
    names = [call.rpartition(".") for call in calls]
    if PICKLERS.search(file) or function.rpartition(".")[2] == "_feed":
        return "" if any(name in WAITS for _, _, name in names) else "pickling"
    if any(
        name in PICKLING and owner.split(".")[0] not in OTHER_FORMATS for owner, _, name in names
    ):
        return "pickling"
    if function in FILLS:  # numpy's own, which call copyto
        return ""
    if COLLATES.search(file) or function in COPYING or any(name in COPYING for _, _, name in names):
        return "copying"
    return ""
