"""Names that statements of the user's read, bind and change: what may not move, and with what."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Set

from fastfeed.diagnose.patches.source_file import SourceFile, called
from fastfeed.diagnose.proof import SEEDED_KINDS, SEEDERS

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SHARED_NAMES = (ast.Global, ast.Nonlocal)
LOOPS = (ast.For, ast.AsyncFor)
LEAVES = (ast.Break, ast.Continue, ast.Return, ast.Yield, ast.YieldFrom, ast.Await)
# Ends of the names of what seeds; a bare `seed` or `key` may be a function of the user's own.
SEEDED_BY = tuple(
    f".{module.split('.')[-1]}.{name}" if name in ("seed", "key") else f".{name}"
    for module, names in {"": SEEDED_KINDS, "random": ("seed",), **SEEDERS}.items()
    for name in names
)
# What a worker process of a FeedRunner has anyway: seeds, and one thread for native code of torch.
SET_UP_BY = (*SEEDED_BY, ".set_num_threads")
CONVERTERS = {name for name, one in vars(builtins).items() if isinstance(one, type)}  # int, ...
PUT_IN = {"put", "put_nowait"}  # methods of queues
LOGGED = {"debug", "info", "warning", "error", "exception", "critical", "log"}  # of loggers
# Methods that take a part out of their object. `get` and `read` may be of anything.
TAKE_OUT = ("pop", "popleft", "popitem", "get_nowait", "readline", "__next__")
FileFunction = tuple[SourceFile, ast.FunctionDef]
TAKING = ("next", "islice")  # functions that take from their first argument
OWNER = "self"  # what its methods change is unknown; a run shows it


def own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those below it, but for functions, classes and comprehensions."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*SCOPES, *COMPREHENSIONS)):
            yield from own(child)


def below(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield nodes and all below them."""
    for node in nodes:
        yield from ast.walk(node)


def leaves(nodes: Iterable[ast.AST], *, by: tuple[type[ast.AST], ...] = LEAVES) -> bool:
    """Return True if statements may leave their block before its end, or wait in it."""
    return any(_leaves(node, by) for node in nodes)


def _leaves(node: ast.AST, by: tuple[type[ast.AST], ...]) -> bool:
    if isinstance(node, (*SCOPES, *COMPREHENSIONS)):
        return False
    if isinstance(node, (*LOOPS, ast.While)):  # what its body breaks off is itself
        inside = (one for one in own(node) if not isinstance(one, (ast.Break, ast.Continue)))
        return any(isinstance(one, by) for one in inside) or leaves(node.orelse, by=by)
    return isinstance(node, by) or leaves(ast.iter_child_nodes(node), by=by)


def bound(nodes: Iterable[ast.AST]) -> list[str]:
    """Return the names that are assigned, in order."""
    return [
        one.id
        for node in nodes
        for one in own(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, (ast.Store, ast.Del))
    ]


def read(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that are read, and the dotted names of attributes ("self.data")."""
    return {name for node in nodes for name in _read(node)}


def _read(node: ast.AST) -> Iterator[str]:
    inside = {name for child in ast.iter_child_nodes(node) for name in _read(child)}
    if isinstance(node, COMPREHENSIONS):
        inside -= set(bound(one.target for one in node.generators))
    elif isinstance(node, (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef)):
        inside -= {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
    yield from inside
    if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
        yield from filter(None, [path_of(node)])
    if isinstance(node, ast.AugAssign):
        yield from filter(None, [path_of(node.target)])


def changed(nodes: Iterable[ast.AST], *, made: Set[str] = frozenset()) -> set[str]:
    """Return the names whose values are changed in place: by a store to a part, as the object of a
    method whose result nobody takes, or as its argument. `print` and logs change none, nor do
    methods of what is `made` here, such as `rows.append`."""
    found: set[str] = set()
    for one in (child for node in nodes for child in own(node)):
        if isinstance(one, (ast.Subscript, ast.Attribute)) and isinstance(
            one.ctx, (ast.Store, ast.Del)
        ):
            found.add(path_of(one.value))
            found |= {path_of(one)} if isinstance(one, ast.Attribute) else set()
        elif isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
            call = one.value
            owner = call.func.value if isinstance(call.func, ast.Attribute) else None
            if path_of(call.func) == "print" or (owner and called(call) in LOGGED):
                continue
            within = owner is not None and path_of(owner).partition(".")[0] in made
            found |= {path_of(part) for part in (*([] if within else call.args), owner) if part}
    return found - {"", OWNER}


def changed_outside(function: ast.FunctionDef, *, modules: Set[str]) -> set[str]:
    """Return the names of what a function changes in place and does not make itself, but for
    functions of modules: all that run it share that."""
    names = dict(_other_names(function))
    found: set[str] = set()
    for name in changed(function.body):
        seen: set[str] = set()
        while name in names.keys() - seen:
            seen.add(name)
            name = names[name]
        found.add(name)
    made = set(bound(function.body)) - names.keys() | modules
    return {one for one in found if one.partition(".")[0] not in made}


def _other_names(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yield the names that a function gives to what has one, with the first one."""
    nodes = (node for one in function.body for node in own(one) if isinstance(node, ast.Assign))
    for target, value in ((target, node.value) for node in nodes for target in node.targets):
        pairs = [(target, value)]
        if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
            pairs = list(zip(target.elts, value.elts, strict=False))
        yield from ((path_of(one), path_of(other)) for one, other in pairs if path_of(other))


def stored_outside(function: ast.FunctionDef) -> set[str]:
    """Return the names that a function binds for others, to whose parts it assigns, or whose
    methods it calls for what they do, such as `seen.append`, but for what it puts into a queue."""
    nodes = [one for statement in function.body for one in own(statement)]
    given = {name for one in nodes if isinstance(one, SHARED_NAMES) for name in one.names}
    made = bound(function.body)
    parts = (one for one in nodes if isinstance(one, (ast.Subscript, ast.Attribute)))
    paths = [path_of(one.value) for one in parts if isinstance(one.ctx, (ast.Store, ast.Del))]
    calls = (one.value for one in nodes if isinstance(one, ast.Expr))
    methods = [one.func for one in calls if isinstance(one, ast.Call)]
    methods = [one for one in methods if getattr(one, "attr", "put") not in PUT_IN | LOGGED]
    paths += [path_of(one.value) for one in methods if isinstance(one, ast.Attribute)]
    stored = {one.partition(".")[0] for one in paths}
    return stored - {"", OWNER, *made} | given & {*made}


def functions_of(file: SourceFile, maker: ast.expr) -> list[ast.FunctionDef]:
    """Return the functions of a file that an expression may name, or call in a lambda."""
    body = maker.body if isinstance(maker, ast.Lambda) else maker
    name = last_of(path_of(body.func if isinstance(body, ast.Call) else body))
    functions = (one for one in ast.walk(file.tree) if isinstance(one, ast.FunctionDef))
    return [one for one in functions if one.name == name]


def advanced(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that `next` and methods such as `pop` take from: each call gives another
    value, so that those who share one get what the others do not."""
    nodes, found, inner = list(nodes), set[str](), set[str]()
    for one in below(nodes):
        if isinstance(one, COMPREHENSIONS):
            inner |= set(bound(part.target for part in one.generators))
        if not isinstance(one, ast.Call):
            continue
        if called(one) in TAKING and (isinstance(one.func, ast.Name) or called(one) != "next"):
            found |= set(map(path_of, one.args[:1]))
        elif isinstance(one.func, ast.Attribute) and one.func.attr in TAKE_OUT:
            found.add(path_of(one.func.value))
    return found - inner - {"", OWNER}


def kept_by(loop: ast.For | ast.While, *, modules: Set[str]) -> set[str]:
    """Return the dotted names by which one turn of a loop may leave something to the next: of what
    it changes and does not make, and of what it reads before it binds it."""
    target = set(bound([loop.target])) if isinstance(loop, ast.For) else set()
    written, needed = set(bound(loop.body)), read_first(loop.body)
    made = (written - needed) | target
    found = changed(loop.body, made=made) | advanced(loop.body)
    kept = {one for one in found if one.partition(".")[0] not in made | modules}
    return kept | written & (needed - target)


def is_endless(function: ast.FunctionDef) -> bool:
    """Return True if a function loops without an end of its own."""
    loops = (node for one in function.body for node in own(one) if isinstance(node, ast.While))
    return any(map(_has_no_end, loops))


def _has_no_end(loop: ast.While) -> bool:
    return isinstance(loop.test, ast.Constant) and bool(loop.test.value)


def called_on(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the dotted names of the objects whose methods are called."""
    calls = (one.func for one in below(nodes) if isinstance(one, ast.Call))
    owners = (one.value for one in calls if isinstance(one, ast.Attribute))
    found = {path_of(one) for one in owners if isinstance(one, (ast.Name, ast.Attribute))}
    return found - {"", OWNER}


def whole_paths(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the dotted names that are read, each to its end."""
    known = list(below(nodes))
    parts = {id(one.value) for one in known if isinstance(one, ast.Attribute)}
    return {path_of(one) for one in known if id(one) not in parts} - {""}


def touches(one: str, other: str) -> bool:
    """Return True if one of two dotted names is, or holds, the other one."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def path_of(node: ast.AST) -> str:
    """Return the dotted name of a node; "" if it is none."""
    while isinstance(node, (ast.Subscript, ast.Starred)):
        node = node.value
    if isinstance(node, ast.Name):
        return node.id
    base = path_of(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{base}.{node.attr}" if base and isinstance(node, ast.Attribute) else ""


def last_of(path: str) -> str:
    """Return the last name of a dotted one."""
    return path.rpartition(".")[2]


def read_first(statements: Iterable[ast.stmt]) -> set[str]:
    """Return the names that may be read before these statements bind them."""
    found: set[str] = set()
    _follow(statements, known=set(), found=found)
    return found


def _follow(statements: Iterable[ast.stmt], *, known: set[str], found: set[str]) -> None:
    """Add to `found` what is read without being in `known`, and to `known` what is bound then."""
    for one in statements:
        parts: list[ast.AST] = []
        if isinstance(one, LOOPS):
            parts, binds = [one.iter], [one.target]
        elif isinstance(one, (ast.With, ast.AsyncWith)):
            parts = [item.context_expr for item in one.items]
            binds = [item.optional_vars for item in one.items if item.optional_vars is not None]
        elif isinstance(one, (ast.If, ast.While)):
            parts, binds = [one.test], []
        elif isinstance(one, ast.Try):
            parts, binds = [], []
        else:
            found |= read([one]) - known
            known |= set(bound([one]))
            continue
        found |= read(parts) - known
        inside = known | set(bound(parts)) | set(bound(binds))
        blocks = [getattr(one, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(one, "handlers", [])]
        for block in blocks:
            _follow(block, known=inside if block is one.body else set(inside), found=found)
        if isinstance(one, (ast.With, ast.AsyncWith)):  # its body always runs
            known |= inside


def only_sets_up(file: SourceFile, given: ast.expr) -> bool:
    """Return True if a function for the start of a worker does only what those of a FeedRunner do
    anyway."""
    bodies = [one.body for one in functions_of(file, given)]
    if isinstance(given, ast.Lambda):
        bodies = [[ast.Expr(given.body)]]
    statements = [one for body in bodies for one in body]
    return bool(bodies) and all(_sets_up(one, modules=file.modules) for one in statements)


def _sets_up(node: ast.stmt, *, modules: Set[str]) -> bool:
    calls = [path_of(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)]
    known = all(one.partition(".")[0] in modules or one in CONVERTERS for one in calls)
    if isinstance(node, ast.Assign):
        return known and all(isinstance(one, ast.Name) for one in node.targets)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return known and seeds(node.value, by=SET_UP_BY)
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass))


def seeds(call: ast.Call, *, by: tuple[str, ...] = SEEDED_BY) -> bool:
    """Return True if a call seeds random numbers, or is one of others, `by` the ends of names."""
    return f".{path_of(call.func)}".endswith(by)


def only_seeds(function: ast.FunctionDef, parameter: str) -> bool:
    """Return True if a function reads a parameter only to seed random numbers with it."""
    calls = [one for one in ast.walk(function) if isinstance(one, ast.Call)]
    seeding = [one for one in calls if seeds(one)]
    given = {part for one in seeding for part in ast.walk(one)}
    loads = [one for one in ast.walk(function) if getattr(one, "id", "") == parameter]
    return bool(loads) and given.issuperset(loads)


def reached(files: Iterable[SourceFile], body: Iterable[ast.stmt]) -> list[FileFunction]:
    """Return the functions of files that statements may call, and those that these may call."""
    known: dict[str, list[FileFunction]] = {}
    for file in files:
        for one in ast.walk(file.tree):
            if isinstance(one, ast.FunctionDef):
                known.setdefault(one.name, []).append((file, one))
    every, found, bodies = set(known), list[FileFunction](), list(body)
    while bodies:
        nodes = list(below(bodies))
        names = {called(one) for one in nodes if isinstance(one, ast.Call)}
        names |= {getattr(one, "id", "") for one in nodes}
        if any(isinstance(one, ast.Subscript) for one in nodes):
            names.add("__getitem__")
        functions = {getattr(one.func, "id", "") for one in nodes if isinstance(one, ast.Call)}
        if functions - {"", *every, *vars(builtins)}:  # of objects
            names.add("__call__")
        more = [one for name in sorted(names & set(known)) for one in known.pop(name)]
        found += more
        bodies = [part for _, one in more for part in one.body]
    return found
