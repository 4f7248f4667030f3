"""Rewrites a function marked @recorded: its statements become calls of a `frontend.Frame`, at the same lines.

Whether a value is the kernel's or Python's is only known when the function runs, so types play no role here.
A branch becomes a loop over its sides, which keeps Python's scopes: `for side in frame.branch(c): if side:
... else: ...`.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, NoReturn, get_args

from ..errors import DeclarationError
from . import places
from .leaf import InOut, Out

_NO_ARGUMENTS = ast.arguments([], [], None, [], [], None, [])


def _load(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _lambda(value: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Lambda(_NO_ARGUMENTS, value), value)


_REFUSED = {
    ast.NamedExpr: "an assignment within an expression",
    ast.Match: "match",
    ast.Try: "try",
    ast.Yield: "yield",
    ast.YieldFrom: "yield from",
    ast.Await: "await",
    ast.Global: "global",
    ast.ClassDef: "a class",
}


def _leaving(body: Sequence[ast.stmt], *, loops: bool = True) -> str:
    """The first statement by which control leaves `body`: "return", "break", "continue", or "" for none."""
    for statement in body:
        if isinstance(statement, ast.Return) or (loops and isinstance(statement, (ast.Break, ast.Continue))):
            return type(statement).__name__.lower()
        inner = loops and not isinstance(statement, (ast.For, ast.While))
        if isinstance(statement, (ast.If, ast.For, ast.While, ast.With)):
            blocks = [*statement.body, *getattr(statement, "orelse", ())]
            if leaving := _leaving(blocks, loops=inner):
                return leaving
    return ""


def _early(body: list[ast.stmt], kind: type[ast.stmt]) -> list[ast.stmt]:
    """Rewrite `if c: ...; return` (or `continue`) as a branch whose other side is the rest of the body."""

    def leaves(block: list[ast.stmt]) -> bool:
        return bool(block) and isinstance(block[-1], kind) and getattr(block[-1], "value", None) is None

    for i, statement in enumerate(body):
        if leaves([statement]):
            return body[:i]
        if not isinstance(statement, ast.If):
            continue
        then, other, rest = statement.body, statement.orelse, body[i + 1 :]
        if leaves(then) or leaves(other):
            then = then[:-1] if leaves(then) else [*then, *rest]
            other = other[:-1] if leaves(other) else [*other, *rest]
        elif rest:
            continue
        then, other, test = _early(then, kind), _early(other, kind), statement.test
        if not then:
            then, other = other or [ast.Pass()], []
            test = ast.copy_location(ast.UnaryOp(ast.Not(), test), test)
        return [*body[:i], ast.copy_location(ast.If(test, then, other), statement)]
    return body


class _Names(ast.NodeVisitor):
    """The names that statements bind or read; of functions defined inside, only the names that they read."""

    def __init__(self, nodes: Sequence[ast.AST]) -> None:
        self.bound: set[str] = set()
        self.read: set[str] = set()
        for node in nodes:
            self.visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        (self.read if isinstance(node.ctx, ast.Load) else self.bound).add(node.id)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.generic_visit(node)
        if isinstance(node.target, ast.Name):
            self.read.add(node.target.id)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.bound.add(node.name)
        self.read |= _Names(node.body).read

    def _comprehension(self, node: ast.expr) -> None:
        inside = _Names(list(ast.iter_child_nodes(node)))
        self.read |= inside.read - inside.bound

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension


class _Rewrite(ast.NodeTransformer):
    """Rewrites a function, and those defined inside it, on top of a `Frame` each."""

    def __init__(self, function: Callable[..., Any], filename: str, runtime: ModuleType) -> None:
        self._runtime = runtime
        self._scope: Mapping[str, Any] = function.__globals__
        self._file = filename
        self._variables: list[set[str]] = []
        self._frames: list[str] = []
        self._outer: list[dict[str, int]] = []
        self._count = 0
        self._whole: list[list[ast.stmt]] = []

    def function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Rewrite a function; one defined inside another shares its recorder."""
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        body = _early(node.body, ast.Return) if not self._returns_value(node.body) else node.body
        nodes = (node for statement in body for node in ast.walk(statement))
        nonlocals = {name for node in nodes if isinstance(node, ast.Nonlocal) for name in node.names}
        marked = {a.arg for a in arguments if self._mark(a.annotation) in (Out, InOut)}
        declared = {name for s in _own_statements(body) if (name := self._declared(s)) is not None}
        depth = len(self._frames)
        frame = f"_frame_{depth}"
        self._frames.append(frame)
        self._variables.append(marked | declared)
        self._outer.append({name: self._owner(name) for name in nonlocals})
        self._whole.append(body)
        first: ast.expr
        if depth:
            first = ast.Attribute(_load(self._frames[0]), "m", ast.Load())
        elif arguments:
            first = _load(arguments[0].arg)
        else:
            self._refuse(node, "a recorded function without parameters", f"write def {node.name}(m, ...)")
        bound = ast.Tuple([ast.Constant(a.arg) for a in arguments], ast.Load())
        made = ast.Call(self._of("Frame"), [first, ast.Constant(node.name), bound], [])
        body = self._block(body)
        documented = body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        at = 1 if documented else 0
        while at < len(body) and isinstance(body[at], ast.Nonlocal):
            at += 1
        node.body = [*body[:at], ast.copy_location(_assign(frame, made), node), *body[at:]]
        for part in (self._frames, self._variables, self._outer, self._whole):
            part.pop()
        return node

    def _returns_value(self, body: Sequence[ast.stmt]) -> bool:
        return any(isinstance(s, ast.Return) and s.value is not None for s in _own_statements(body))

    def _owner(self, name: str) -> int:
        """The depth of the function around this one that owns a nonlocal name."""
        for depth in reversed(range(len(self._frames) - 1)):
            if name in _Names(self._whole[depth]).bound or name in self._variables[depth]:
                return depth
        return 0

    def _refuse(self, node: Any, what: str, fix: str) -> NoReturn:
        where = places.spelled_at(
            self._file, node.lineno, node.end_lineno, node.col_offset, node.end_col_offset
        )
        raise DeclarationError(what, expected="what a kernel can say", got="it", fix=fix, where=where)

    def _annotation(self, annotation: ast.expr | None) -> Any:
        if annotation is None:
            return None
        try:
            return eval(
                compile(ast.Expression(copy.deepcopy(annotation)), self._file, "eval"), dict(self._scope)
            )
        except Exception:
            # The annotation is for the type checker only: its names need not exist at run time.
            return None

    def _mark(self, annotation: ast.expr | None) -> Any:
        return next((x for x in get_args(self._annotation(annotation))[1:] if x in (Out, InOut)), None)

    def _declared(self, statement: ast.stmt) -> str | None:
        """The variable of the kernel that a statement declares, if it does."""
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            dtype = self._runtime.dtype_of(self._annotation(statement.annotation))
            return statement.target.id if dtype else None
        return None

    def _is_variable(self, name: str) -> bool:
        depth = self._outer[-1].get(name, len(self._frames) - 1)
        return name in self._variables[depth]

    def _frame_of(self, name: str) -> str:
        return self._frames[self._outer[-1].get(name, len(self._frames) - 1)]

    def _of(self, name: str) -> ast.expr:
        return ast.Attribute(_load("_frontend"), name, ast.Load())

    def _do(self, what: str, *arguments: ast.expr, frame: str = "") -> ast.expr:
        return ast.Call(
            ast.Attribute(_load(frame or self._frames[-1]), what, ast.Load()), list(arguments), []
        )

    def _block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        block: list[ast.stmt] = []
        for statement in body:
            new = self.visit(statement)
            for part in new if isinstance(new, list) else [new]:
                block.append(part if hasattr(part, "lineno") else ast.copy_location(part, statement))
        return block or [ast.Pass()]

    def visit(self, node: ast.AST) -> Any:
        for kind, what in _REFUSED.items():
            if isinstance(node, kind):
                self._refuse(
                    node,
                    f"{what} in a recorded function",
                    "say it by statements, or in a function of its own",
                )
        return super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return self.function(node)

    def visit_If(self, node: ast.If) -> Any:
        leaving = _leaving([*node.body, *node.orelse])
        names = self._gone([*node.body, *node.orelse], node)
        test = self.visit(node.test)
        body, orelse = self._block(node.body), self._block(node.orelse) if node.orelse else []
        if leaving:
            known = ast.copy_location(self._do("known", test, ast.Constant(leaving)), node.test)
            return ast.copy_location(ast.If(known, body, orelse), node)
        made = ast.copy_location(self._do("branch", test, ast.Constant(bool(orelse))), node.test)
        side = self._fresh("side")
        inner = ast.copy_location(ast.If(_load(side), body, orelse), node)
        return self._loop(side, made, [inner], names, node)

    def visit_While(self, node: ast.While) -> Any:
        self._no_else(node)
        body = _early(node.body, ast.Continue)
        leaving, names = _leaving(body), self._gone(body, node)
        test = _lambda(self.visit(node.test))
        made = ast.copy_location(self._do("repeat", test, ast.Constant(leaving)), node.test)
        return self._loop(self._fresh("turn"), made, self._block(body), names, node)

    def visit_For(self, node: ast.For) -> Any:
        self._no_else(node)
        body = _early(node.body, ast.Continue)
        leaving, names = _leaving(body), self._gone([*body, node.target], node)
        over = self.visit(node.iter)
        called = node.iter.func if isinstance(node.iter, ast.Call) else None
        if isinstance(called, ast.Name) and called.id == "range":
            over.func = ast.copy_location(self._of("_range"), called)
        name = node.target.id if isinstance(node.target, ast.Name) else ""
        made = ast.copy_location(
            self._do("turns", ast.Constant(name), over, ast.Constant(leaving)), node.iter
        )
        return self._loop(node.target, made, self._block(body), names, node)

    def _no_else(self, node: ast.For | ast.While) -> None:
        if node.orelse:
            self._refuse(node.orelse[0], "else of a loop in a recorded function", "write it after the loop")

    def _fresh(self, what: str) -> str:
        self._count += 1
        return f"_{what}_{self._count}"

    def _gone(self, block: Sequence[ast.AST], node: ast.stmt) -> list[str]:
        """Names bound in a block and read outside of it; after a recorded block they have no value."""
        inside = _Names(block)
        bound = {n for n in inside.bound if not self._is_variable(n) and n not in self._outer[-1]}
        if not bound:
            return []
        outside: set[str] = set()

        def look(nodes: Sequence[ast.AST]) -> None:
            for part in nodes:
                if part is node:
                    continue
                if any(inner is node for inner in ast.walk(part)):
                    look(list(ast.iter_child_nodes(part)))
                else:
                    outside.update(_Names([part]).read)

        look(self._whole[-1])
        return sorted(bound & outside)

    def _loop(
        self, target: str | ast.expr, over: ast.expr, body: list[ast.stmt], names: list[str], node: ast.stmt
    ) -> list[ast.stmt]:
        place = ast.Name(target, ast.Store()) if isinstance(target, str) else target
        whole = self._fresh("block") if names else ""
        made: list[ast.stmt] = []
        if whole:
            made.append(ast.copy_location(_assign(whole, over), node))
            over = ast.copy_location(_load(whole), over)
        made.append(ast.copy_location(ast.For(place, over, body, []), node))
        if whole:
            deleted: list[ast.stmt] = []
            for name in names:
                # To read the name later shall be a NameError. It may be unbound here, so bind it before the
                # deletion.
                deleted += [_assign(name, ast.Constant(None)), ast.Delete([ast.Name(name, ast.Del())])]
            made.append(ast.If(ast.Attribute(_load(whole), "recorded", ast.Load()), deleted, []))
        for part in made:
            ast.copy_location(part, node)
        return made

    def visit_Assign(self, node: ast.Assign) -> Any:
        value = self.visit(node.value)
        if len(node.targets) == 1 and isinstance(target := node.targets[0], ast.Name):
            return ast.copy_location(self._store(target.id, value, node), node)
        for whole in node.targets:
            for part in ast.walk(whole):
                if not isinstance(part, ast.Name) or not isinstance(part.ctx, ast.Store):
                    continue
                if self._is_variable(part.id):
                    self._refuse(
                        node,
                        f"several targets, of which {part.id} is a variable",
                        "assign one variable at a time",
                    )
        if len(node.targets) > 1 or not isinstance(node.targets[0], ast.Attribute):
            self._no_mark(node)
        node.value = value
        node.targets = [self.visit(target) for target in node.targets]
        return node

    def _no_mark(self, node: ast.Assign) -> None:
        """Refuse `inline` and `named` where no name is bound: their marks would get into the kernel."""
        for part in ast.walk(node.value):
            if isinstance(part, ast.Name) and any(
                self._scope.get(part.id) is mark for mark in (self._runtime.inline, self._runtime.named)
            ):
                self._refuse(
                    node, f"{part.id} in an assignment that names nothing", "leave it out, or assign one name"
                )

    def _store(self, name: str, value: ast.expr, node: ast.stmt) -> ast.stmt:
        frame = self._frame_of(name)
        if self._is_variable(name):
            return _assign(name, ast.copy_location(self._do("set", _load(name), value, frame=frame), node))
        return _assign(
            name, ast.copy_location(self._do("bind", ast.Constant(name), value, frame=frame), node)
        )

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        name = self._declared(node)
        if name is None or node.value is None:
            if name is not None:
                self._refuse(node, f"variable {name} without a value", f"write `{name}: ... = 0`")
            if node.value is None:
                return node
            plain = ast.copy_location(ast.Assign([node.target], node.value), node)
            return self.visit_Assign(plain)
        dtype = self._runtime.dtype_of(self._annotation(node.annotation))
        made = self._do("declare", ast.Constant(name), self.visit(node.value), ast.Constant(dtype))
        return ast.copy_location(_assign(name, ast.copy_location(made, node)), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        if not isinstance(node.target, ast.Name):
            return self.generic_visit(node)
        name, value = node.target.id, self.visit(node.value)
        if self._is_variable(name):
            whole = ast.copy_location(ast.BinOp(_load(name), node.op, value), node)
            return ast.copy_location(self._store(name, whole, node), node)
        changed = ast.copy_location(ast.AugAssign(node.target, node.op, value), node)
        return [changed, ast.copy_location(self._store(name, _load(name), node), node)]

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        word = "and" if isinstance(node.op, ast.And) else "or"
        parts = [_lambda(self.visit(value)) for value in node.values]
        return ast.copy_location(self._do("joined", ast.Constant(word), *parts), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return ast.copy_location(self._do("opposite", operand), node)
        node.operand = operand
        return node

    def visit_Compare(self, node: ast.Compare) -> Any:
        if len(node.ops) == 1:
            return self.generic_visit(node)
        sides = [self.visit(side) for side in (node.left, *node.comparators)]
        pairs = zip(sides, node.ops, sides[1:], strict=False)
        parts = [ast.copy_location(ast.Compare(copy.deepcopy(a), [op], [b]), node) for a, op, b in pairs]
        return ast.copy_location(self._do("joined", ast.Constant("and"), *map(_lambda, parts)), node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        test = self.visit(node.test)
        arms = (_lambda(self.visit(node.body)), _lambda(self.visit(node.orelse)))
        return ast.copy_location(self._do("either", test, *arms), node)

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        node.body = self.visit(node.body)
        return node


def _own_statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Every statement of a function, without those of functions defined inside it."""
    for statement in body:
        yield statement
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            for part in ("body", "orelse", "finalbody"):
                yield from _own_statements(getattr(statement, part, ()))


def rewritten(function: Callable[..., Any], runtime: ModuleType) -> Any:
    """The function rewritten on top of the `Frame` of `runtime`, which is the module `frontend`.

    Raises:
        DeclarationError: the function says what a kernel cannot do, or its source is not available.
    """
    code: CodeType = function.__code__
    try:
        lines, first = inspect.getsourcelines(function)
    except OSError as error:
        raise DeclarationError(
            f"recorded function {function.__qualname__}",
            expected="its source beside it",
            got=str(error),
            fix="define it in a file, and install the package unpacked",
        ) from error
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise DeclarationError(
            f"recorded function {function.__qualname__}",
            expected="def",
            got=type(definition).__name__,
            fix="write a function",
        )
    indent = len(lines[0]) - len(lines[0].lstrip())
    for node in ast.walk(tree):
        if indent and isinstance(node, (ast.expr, ast.stmt)):
            node.col_offset += indent
            node.end_col_offset = (node.end_col_offset or 0) + indent
    definition.decorator_list = []
    rewrite = _Rewrite(function, code.co_filename, runtime)
    definition = rewrite.function(definition)
    # A function around it makes the names that it closes over free variables; it then gets the original's
    # cells.
    closed = [_assign(name, ast.Constant(None)) for name in code.co_freevars]
    outer = ast.FunctionDef("_around", _NO_ARGUMENTS, [*closed, definition], [])
    module = ast.fix_missing_locations(ast.Module([outer], []))
    around = next(c for c in compile(module, code.co_filename, "exec").co_consts if isinstance(c, CodeType))
    inner = next(c for c in around.co_consts if isinstance(c, CodeType) and c.co_name == definition.name)
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    scope = function.__globals__
    scope.setdefault("_frontend", runtime)
    defaults = function.__defaults__
    made = FunctionType(
        inner, scope, function.__name__, defaults, tuple(cells[name] for name in inner.co_freevars)
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    places.note(inner)
    return made
