"""Public ops as custom ops of torch, so that `torch.compile`, `torch.export` and modes see each as one call.

The arguments follow from the function's signature, and the outputs with their sizes from the operands of its
problem. `dsl_kernels::<op>` returns its outputs, `dsl_kernels::<op>_out` writes into given ones. Both take
every argument of the function, with a workspace as its handle, and run the function.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from .. import problems
from ..errors import DeclarationError, DslKernelError, InvalidArgumentError
from ..expr import compile_expressions, names_in_all
from ..problems.base import OperandSpec, Problem
from . import _dispatch
from ._dispatch import AT_ONCE, Unaddressed, dispatched, watched
from .workspace import require_workspace, workspace_of

F = TypeVar("F", bound=Callable[..., Any])

NAMESPACE = __name__.partition(".")[0]
"""The custom ops' namespace: the package's name, so that a renamed copy of the package has its own."""

_TYPES = {
    "torch.Tensor": "Tensor", "torch.Tensor | None": "Tensor?", "int": "SymInt", "int | None": "SymInt?",
    "float": "float", "float | None": "float?", "bool": "bool", "str": "str", "str | None": "str?",
    "Workspace | None": "SymInt?",
}  # fmt: skip


def torch_op(op: str, form: str, also: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Decorate a public op: it calls the function, or the custom op if torch has to see the call.

    Torch has to see the call while it traces a graph, while a mode is active, and for tensors without memory
    of their own, such as fake or distributed ones.

    Args:
        op: the operation.
        form: a form of it; every form that the function may choose must have the same outputs. An output
            whose dtype is the first argument's in every form follows that argument.
        also: optional arguments that the function writes and that are no operands of the problem.
    """

    def made(function: F) -> F:
        derived = _TorchOp(function, op, form, also)
        parameters = derived.signature.parameters.values()
        plain = derived.signature.replace(
            parameters=[p.replace(annotation=p.empty) for p in parameters],
            return_annotation=inspect.Signature.empty,
        )
        given = ", ".join(
            p.name if p.kind is not p.KEYWORD_ONLY else f"{p.name}={p.name}" for p in parameters
        )
        named = ", ".join(f"{p.name}={p.name}" for p in parameters)
        # Generated with its argument names, as *args and **kwargs would cost a call half a microsecond.
        text = (
            f"def {function.__name__}{plain}:\n"
            f"    if ({AT_ONCE}) and watched():\n"
            f"        return traced({named})\n"
            f"    if {derived.first}.__class__ is not Tensor and dispatched({derived.first}):\n"
            f"        return foreign({named})\n"
            f"    try:\n"
            f"        return eager({given})\n"
            f"    except Unaddressed:\n"
            f"        if not any(map(dispatched, ({', '.join(p.name for p in parameters)}))):\n"
            f"            raise\n"
            f"        return foreign({named})\n"
        )
        scope: dict[str, Any] = {
            "watched": watched,
            "is_compiling": _dispatch.is_compiling,
            "dispatch_modes": _dispatch.dispatch_modes,
            "function_modes": _dispatch.function_modes,
            "transform": _dispatch.transform,
            "traced": derived.traced,
            "Tensor": torch.Tensor,
            "dispatched": dispatched,
            "foreign": derived.foreign,
            "eager": function,
            "Unaddressed": Unaddressed,
        }
        exec(text, scope)
        public: Any = functools.update_wrapper(scope[function.__name__], function)
        return public

    return made


class _TorchOp:
    """A public op as torch sees it: its schema, its outputs and their sizes."""

    def __init__(self, function: Callable[..., Any], op: str, form: str, also: tuple[str, ...]) -> None:
        problem = problems.get(op)
        specs = problem.operands(form)
        self.function, self.signature = function, inspect.signature(function)
        parameters = self.signature.parameters
        self.first = next(iter(parameters))
        self.outputs = {
            spec.label: None if self._follows(spec, problem) else spec.torch_dtype
            for spec in specs
            if spec.kind == "out" and spec.default is None
        }
        # Outputs that are only written if the caller gives them.
        self.wanted = (*(s.label for s in specs if s.kind == "out" and s.default is not None), *also)
        # The source of a dim: an axis of a tensor that is passed on unchanged, or an integer argument.
        places: dict[str, tuple[str, int | None]] = {
            n: (n, None) for n, p in parameters.items() if p.annotation == "int"
        }
        for spec in specs:
            if spec.kind == "in" and spec.name in parameters:
                for axis, extent in enumerate(spec.shape):
                    places.setdefault(str(extent), (spec.name, axis))
        shapes = {
            spec.label: [spec.sizes.get(str(extent), str(extent)) for extent in spec.shape]
            for spec in specs
            if spec.label in self.outputs
        }
        dims = sorted(names_in_all(extent for shape in shapes.values() for extent in shape))
        if unknown := [dim for dim in dims if dim not in places]:
            raise DeclarationError(
                f"outputs of {function.__name__}",
                expected="extents of an input of that name, of an integer argument, or from `sizes`",
                got=f"{unknown[0]} in {op}",
                fix="state the output's sizes in its OperandSpec",
            )
        self.places = tuple(places[dim] for dim in dims)
        self.shapes = {name: compile_expressions(tuple(shape), dims) for name, shape in shapes.items()}
        self.functional = self._define(function.__name__, ())
        self.writing = self._define(f"{function.__name__}_out", (*self.outputs, *self.wanted))

    def _follows(self, output: OperandSpec, problem: Problem) -> bool:
        """Whether an output has the first argument's dtype in every form, and forms differ in it."""
        forms = [{spec.label: spec.torch_dtype for spec in specs} for specs in problem.forms.values()]
        pairs = {(form.get(self.first), form.get(output.label)) for form in forms}
        return len(pairs) > 1 and all(first is not None and first == dtype for first, dtype in pairs)

    def _define(self, name: str, written: tuple[str, ...]) -> Any:
        """Register the op that returns its outputs, or with `written` the one that writes into those."""
        asked = (*self.outputs, *self.wanted)
        taken = [p for p in self.signature.parameters.values() if p.name not in asked]
        # Torch has no keyword-only tensor arguments.
        placed = [p for p in taken if p.kind is not p.KEYWORD_ONLY or "Tensor" in p.annotation]
        required = [p for p in placed if p.default is p.empty]
        optional = [p for p in placed if p.default is not p.empty]
        arguments = [
            *map(_spelled, required),
            *(
                f"Tensor({chr(ord('a') + i)}!){'?' * (output in self.wanted)} {output}"
                for i, output in enumerate(written)
            ),
            *map(_spelled, optional),
            "*",
            *(_spelled(p) for p in taken if p not in placed),
        ]
        names = [*(p.name for p in required), *written, *(p.name for p in optional)]
        returned = "()" if written else f"({', '.join(['Tensor'] * len(self.outputs))})"

        def named(args: tuple[Any, ...], others: dict[str, Any]) -> dict[str, Any]:
            # Torch leaves out trailing arguments that have their default.
            return {**{p.name: p.default for p in taken}, **dict(zip(names, args, strict=False)), **others}

        def run(*args: Any, **others: Any) -> Any:
            given = named(args, others)
            if "workspace" in given:
                given["workspace"] = workspace_of(given["workspace"])
            result = self.function(**given)
            return None if written else result

        def fake(*args: Any, **others: Any) -> Any:
            return None if written else _one_or_all(self.new(named(args, others)))

        defined = torch.library.custom_op(
            f"{NAMESPACE}::{name}",
            run,
            mutates_args=written,
            schema=f"({', '.join(arguments)}) -> {returned}",
        )
        defined.register_fake(fake)
        return getattr(getattr(torch.ops, NAMESPACE), name)

    def new(self, arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
        """New outputs of the sizes that follow from the arguments."""
        sizes = [
            arguments[name] if axis is None else arguments[name].shape[axis] for name, axis in self.places
        ]
        like = arguments[self.first]
        return {
            name: like.new_empty(self.shapes[name](*sizes), dtype=dtype)
            for name, dtype in self.outputs.items()
        }

    def traced(self, **arguments: Any) -> Any:
        """The call while torch traces a graph or a mode is active."""
        given = {name: arguments.pop(name) for name in (*self.outputs, *self.wanted)}
        workspace = arguments.get("workspace")
        if workspace is not None:
            require_workspace(workspace)
            arguments["workspace"] = workspace.handle
        if all(tensor is None for tensor in given.values()):
            return self.functional(**arguments)
        if any(given[name] is None for name in self.outputs):
            new = self.new(arguments)
            given |= {name: new[name] for name in self.outputs if given[name] is None}
        self.writing(**arguments, **given)
        return _one_or_all({name: given[name] for name in self.outputs})

    def foreign(self, **arguments: Any) -> Any:
        """The call on a tensor subclass, which defines what an op on it does.

        Raises:
            InvalidArgumentError: the subclass does not define this op.
        """
        try:
            return self.traced(**arguments)
        except (DslKernelError, torch.OutOfMemoryError):
            raise
        except Exception as refused:
            name, tensor = next((n, value) for n, value in arguments.items() if dispatched(value))
            raise InvalidArgumentError(
                name,
                expected=f"plain tensors, or a subclass that runs {self.function.__name__}",
                got=f"{type(tensor).__name__}: {str(refused).partition(chr(10))[0]}",
                fix="pass the tensor on this device (of a DTensor, its to_local())",
            ) from refused


def _one_or_all(outputs: dict[str, torch.Tensor]) -> Any:
    return tuple(outputs.values()) if len(outputs) > 1 else next(iter(outputs.values()))


def _spelled(parameter: inspect.Parameter) -> str:
    """A parameter as a schema spells it.

    Raises:
        DeclarationError: torch's schemas have no type for the annotation.
    """
    if parameter.annotation not in _TYPES:
        raise DeclarationError(
            f"argument {parameter.name} of an op",
            expected="one of " + ", ".join(_TYPES),
            got=str(parameter.annotation),
            fix="use one of these annotations, in a module that imports annotations from __future__",
        )
    text, default = f"{_TYPES[parameter.annotation]} {parameter.name}", parameter.default
    if default is parameter.empty:
        return text
    return f'{text}="{default}"' if isinstance(default, str) else f"{text}={default}"
