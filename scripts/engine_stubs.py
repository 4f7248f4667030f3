"""Compare the stubs of tests/engine_stubs.py with an engine's sources: python scripts/engine_stubs.py vllm
PATH.

PATH is the folder with the package: a checkout, or an unpacked sdist or wheel of vllm, sglang or sgl_kernel.
Nothing of the engine is imported. Every function, method and class of the stubs must exist there, and each
function must take the stub's parameters in their order. Exits with 1 if something differs.
"""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import engine_stubs

Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def differences(engine: str, root: Path) -> list[str]:
    """Where the stubs of an engine differ from its sources."""
    lines = []
    for module, names in engine_stubs.MODULES.items():
        if module.split(".")[0] != engine:
            continue
        for name, stub in names.items():
            node = definition(root, module, name)
            if node is None:
                lines.append(f"{module}.{name}: not there")
            elif isinstance(stub, type) and isinstance(node, ast.ClassDef):
                lines += [f"{module}.{name}.{why}" for why in of_class(stub, node)]
            elif isinstance(stub, type) or isinstance(node, ast.ClassDef):
                lines.append(f"{module}.{name}: a class on one side, a function on the other")
            elif (why := of_function(stub, node)) is not None:
                lines.append(f"{module}.{name}: {why}")
    return lines


def definition(root: Path, module: str, name: str, depth: int = 8) -> Node | None:
    """The node that defines a name of a module, found through `from ... import`."""
    base = root / module.replace(".", "/")
    path = next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)
    if path is None or depth == 0:
        return None
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, Node) and node.name == name:
            return node
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            if (alias.asname or alias.name) == name:
                parent = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
                origin = ".".join(filter(None, (parent if node.level else "", node.module)))
                return definition(root, origin, alias.name, depth - 1)
    return None


def of_class(stub: type, node: ast.ClassDef) -> list[str]:
    """How a class differs: methods with other parameters, and names that it lacks."""
    members: dict[str, ast.AST] = {}
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            members[item.name] = item
        for target in getattr(item, "targets", [getattr(item, "target", None)]):
            if isinstance(target, ast.Name):
                members[target.id] = item
    lines = []
    for name, value in vars(stub).items():
        function = getattr(value, "__func__", value)
        made = getattr(function, "__module__", None) == stub.__module__
        if (
            inspect.isfunction(function)
            and made
            and getattr(function, "__qualname__", "").startswith(stub.__name__)
        ):
            item = members.get(name)
            if not isinstance(item, ast.FunctionDef):
                # Methods that a stub's dataclass generates need no counterpart.
                if name not in ("__init__", "__eq__", "__repr__", "__replace__"):
                    lines.append(f"{name}: not there")
            elif (why := of_function(function, item)) is not None:
                lines.append(f"{name}: {why}")
    fields = stub.__members__ if hasattr(stub, "__members__") else vars(stub).get("__annotations__", {})
    return lines + [f"{name}: not there" for name in fields if name not in members]


def of_function(stub: Any, node: Node) -> str | None:
    """How the parameters of a function differ."""
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    given = node.args
    theirs = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    ours = [
        p.name
        for p in inspect.signature(stub).parameters.values()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    theirs, ours = ([n for n in names if n not in ("self", "cls")] for names in (theirs, ours))
    if theirs != ours:
        return f"takes ({', '.join(theirs)}), the stub says ({', '.join(ours)})"
    return None


def main(
    engine: Annotated[str, typer.Argument(help="vllm, sglang or sgl_kernel")],
    root: Annotated[Path, typer.Argument(help="The folder that holds the package.")],
) -> None:
    """Print every difference between the stubs and an engine's sources."""
    if not (root / engine).is_dir():
        raise typer.BadParameter(f"{root} holds no {engine}")
    lines = differences(engine, root)
    for line in lines:
        print(line)
    stubs = sum(
        len(names) for module, names in engine_stubs.MODULES.items() if module.split(".")[0] == engine
    )
    print(f"{engine}: {stubs} stubs, {len(lines)} differences")
    raise typer.Exit(bool(lines))


if __name__ == "__main__":
    typer.run(main)
