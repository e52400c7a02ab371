"""Who reads which setting in a release of upstream's, and what its functions compute, from the syntax alone.

Nothing of upstream is imported. A read is an attribute, an item or a `get` whose last name is a leaf's; a function
is known by the digest of its syntax tree, without docstrings, comments and places.
"""

import ast
import hashlib
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_GETS = ("get", "pop", "setdefault")
_WHOLE = "<module>"
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, order=True, slots=True)
class Read:
    """`owner` is the name that it is read from, such as `optim` of `config.optim.lr`."""

    file: str
    function: str
    owner: str
    name: str
    text: str


def modules(wheel: Path, files: Collection[str]) -> dict[str, ast.Module]:
    """The syntax trees of those of the files that the wheel has."""
    with zipfile.ZipFile(wheel) as archive:
        held = sorted(set(archive.namelist()) & set(files))
        return {file: ast.parse(archive.read(file)) for file in held}


def reads(file: str, module: ast.Module) -> Iterator[Read]:
    for function, node in _named_nodes(module):
        if (found := _owner_and_name(node)) is not None:
            yield Read(file, function, *found, ast.unparse(node))


def functions(module: ast.Module) -> dict[str, str]:
    """Digest by name of each function, a method as Class.method, and of what stands between them."""
    found: dict[str, str] = {}
    for name, node in _definitions(module.body, ""):
        found[name] = _digest([node])
    rest = [node for node in module.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    found[_WHOLE] = _digest(
        [node for node in rest if not isinstance(node, Function | ast.ClassDef)]
    )
    return found


def function_at(module: ast.Module, line: int) -> str:
    """The name of the function that the line is in."""
    inside = [
        (node.lineno, name)
        for name, node in _definitions(module.body, "")
        if node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(inside)[1] if inside else _WHOLE


def reads_of(
    field: str, sections: Collection[str], found: Mapping[str, Collection[Read]]
) -> set[Read]:
    """The reads in `found`, which is by name, that may be of this leaf.

    Read from a section, it is of the leaves of that section; read from anything else, such as `config`, it may be
    of any leaf of that name.
    """
    *above, name = field.split(".")
    parent = above[-1] if above else ""
    return {
        read
        for read in found.get(name, ())
        if read.owner == parent
        or read.owner.removesuffix("_config") in (parent, "config", "cfg")
        or (read.owner not in sections and read.owner in ("config", "cfg", "model_config"))
    }


def _named_nodes(module: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Every node with the name of the function that it is in."""
    stack: list[tuple[str, ast.AST]] = [("", module)]
    while stack:
        name, node = stack.pop()
        yield name or _WHOLE, node
        for child in ast.iter_child_nodes(node):
            inside = name
            if isinstance(child, Function | ast.ClassDef):
                inside = f"{name}.{child.name}" if name else child.name
            stack.append((inside, child))


def _owner_and_name(node: ast.AST) -> tuple[str, str] | None:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        return _last(node.value), node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        name = _text(node.slice)
        return None if name is None else (_last(node.value), name)
    if isinstance(node, ast.Call):
        return _asked(node)
    return None


def _asked(node: ast.Call) -> tuple[str, str] | None:
    """`config.get("n")`, `getattr(config, "n")`, `OmegaConf.select(config, "a.n")`."""
    called, arguments = _last(node.func), node.args
    if called in _GETS and isinstance(node.func, ast.Attribute) and arguments:
        path, owner = _text(arguments[0]), _last(node.func.value)
    elif called in ("getattr", "select") and len(arguments) > 1:
        path, owner = _text(arguments[1]), _last(arguments[0])
    else:
        return None
    if path is None:
        return None
    above, _, name = path.rpartition(".")
    return above.rpartition(".")[2] or owner, name


def _last(node: ast.AST) -> str:
    """The last name of an expression: `b` of `a.b`, of `a["b"]` and of `a.get("b")`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return _text(node.slice) or _last(node.value)
    if isinstance(node, ast.Call):
        asked = _asked(node)
        return asked[1] if asked else ""
    return ""


def _text(node: ast.AST) -> str | None:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return str(node.value) if is_text and isinstance(node, ast.Constant) else None


def _definitions(body: Collection[ast.stmt], above: str) -> Iterator[tuple[str, Function]]:
    for node in body:
        if isinstance(node, Function):
            yield f"{above}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _definitions(node.body, f"{above}{node.name}.")


def _digest(nodes: Collection[ast.AST]) -> str:
    text = "\n".join(ast.dump(_without_docstrings(node)) for node in nodes)
    return hashlib.sha256(text.encode()).hexdigest()


def _without_docstrings(node: ast.AST) -> ast.AST:
    for inner in ast.walk(node):
        body = getattr(inner, "body", None)
        if isinstance(inner, Function | ast.ClassDef) and isinstance(body, list):
            inner.body = [one for one in body if not _is_text(one)] or [ast.Pass()]
    return node


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and _text(node.value) is not None
