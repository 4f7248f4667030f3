"""A kernel in one file: operands, a schedule and bodies, run without an operation or a registry.

`examples/` holds a ladder of sketches, and `python -m codegen try FILE` runs those of a file. Its `declare`
and bodies are those of a `TileProgram`, so a sketch moves into an operation unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from dsl_kernels import programs
from dsl_kernels.arch import ArchSpec, get_arch
from dsl_kernels.env import cache_root
from dsl_kernels.errors import DeclarationError, InvalidArgumentError
from dsl_kernels.problems.base import Comparison, OperandSpec
from dsl_kernels.problems.binding import bind
from dsl_kernels.runtime import sources
from dsl_kernels.runtime.storage import make_folder, write_atomically
from dsl_kernels.tile.frontend import recorded
from dsl_kernels.tile.lang import START, Body, Schedule
from dsl_kernels.tile.program import TileProgram
from dsl_kernels.variants import Variant

from .check import check
from .render import render
from .sweep import Instance, frame

if TYPE_CHECKING:
    import torch

    from dsl_kernels.executors import Executor
    from dsl_kernels.tile.text import Recorder


@recorded
def barriers_stand(m: Recorder) -> None:
    """What every thread does first when a sketch does not say: initialise the barriers."""
    m.barriers_stand()


@dataclass(frozen=True)
class Sketch:
    """One kernel for one architecture.

    Attributes:
        name: its function's name, which no operation may have.
        operands: inputs, workspaces and outputs, in order. An extent that is a name is a size of the call.
        declare: (no knobs, the architecture) -> the schedule.
        bodies: a function per role, and under START one for what every thread does first, if that is more
            than initialising the barriers.
        expected: inputs -> outputs by name, computed by torch.
        sizes: the value of each size that `operands` name.
        limit: the greatest relative error (2-norm) of an output.
        arch: sm_90a or sm_100a.
    """

    name: str
    operands: tuple[OperandSpec, ...]
    declare: Callable[[SimpleNamespace, ArchSpec], Schedule]
    bodies: Mapping[str, Body]
    expected: Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]
    sizes: Mapping[str, int] = field(default_factory=dict)
    limit: float = 1e-3
    arch: str = "sm_90a"

    @cached_property
    def program(self) -> TileProgram:
        """The sketch as the executors and the printer take it."""
        problem = SimpleNamespace(forms={"default": self.operands}, operands=lambda form: self.operands)
        bodies = {START: barriers_stand, **self.bodies}
        return TileProgram(
            self.name,
            problem,  # type: ignore[arg-type]
            (),
            self.declare,
            lambda k, arch: bodies,
        )

    @property
    def schedule(self) -> Schedule:
        """The schedule that `declare` gives on the sketch's architecture."""
        return self.program.schedule({}, get_arch(self.arch))

    def require_legal(self) -> None:
        """Hold the schedule to every rule of its architecture.

        Raises:
            DeclarationError: the schedule breaks rules; the error lists all of them.
        """
        if broken := check(self.program, {}, get_arch(self.arch)):
            violations = "; ".join(f"{v.code}: {v.figure}, limit {v.limit}: {v.fix}" for v in broken)
            raise DeclarationError(
                f"sketch {self.name}",
                expected=f"a schedule that {self.arch} takes",
                got=violations,
                fix="see each",
            )

    def source(self, dsl: str) -> str:
        """The module printed for a DSL; raises as `require_legal` and `codegen.render.render` do."""
        self.require_legal()
        return render(Instance(self.program, dsl, get_arch(self.arch), {}, frame(dsl)))

    def variant(self, dsl: str) -> Variant:
        """The printed module as a variant in the cache, where a second compilation costs nothing."""
        programs.lend(self.program)
        text = self.source(dsl).encode()
        digest = sha256(text).hexdigest()
        name = self.program.variant_id(dsl, get_arch(self.arch), {})
        path = cache_root() / "generated" / "sketches" / digest[:16] / f"{name}.py"
        make_folder(path.parent)
        write_atomically(path, text)
        return Variant(name, self.name, dsl, self.arch, {}, path, digest)

    def draw(self, seed: int = 0, device: str = "cpu") -> dict[str, torch.Tensor]:
        """Draw normal inputs, and fill outputs with what no correct kernel leaves there: NaN, or -1."""
        import torch

        generator, values = torch.Generator().manual_seed(seed), {}
        for spec in self.operands:
            shape = [self.sizes[e] if isinstance(e, str) else e for e in spec.shape]
            dtype = spec.torch_dtype
            if spec.kind == "in":
                value = torch.randn(shape, generator=generator).to(dtype)
            else:
                value = torch.full(
                    shape, 0 if spec.zeroed else torch.nan if dtype.is_floating_point else -1, dtype=dtype
                )
            values[spec.name] = value.to(device)
        return values

    def run(self, executor: Executor, dsl: str = "cutedsl", seed: int = 0, device: str = "cpu") -> Comparison:
        """Draw inputs, run the kernel, and compare each output with what is expected."""
        values, inputs = self.draw(seed, device), self.draw(seed)
        dims = bind(self.operands, values).dims
        executor.prepare(self.variant(dsl))(values, dims)
        result = Comparison()
        for name, want in self.expected(inputs).items():
            error = (values[name].cpu().double() - want.double()).norm() / want.double().norm()
            result.require(f"error of {name}", float(error), self.limit)
        return result


def sketches(path: Path) -> list[Sketch]:
    """The sketches that a Python file defines, in its order.

    Raises:
        InvalidArgumentError: the file does not exist, cannot be imported, or defines no sketch.
    """
    if not path.is_file():
        raise InvalidArgumentError(
            "FILE", expected="a Python file", got=str(path), fix="name one of examples/"
        )
    try:
        module = sources.load(f"sketches_{path.stem}", path)
    except (SyntaxError, ImportError, NameError, AttributeError) as error:
        raise InvalidArgumentError(
            "FILE",
            expected="Python that can be imported",
            got=f"{type(error).__name__}: {error}",
            fix="correct it",
        ) from error
    defined = [value for value in vars(module).values() if isinstance(value, Sketch)]
    if not defined:
        raise InvalidArgumentError(
            "FILE", expected="a Sketch", got=f"none in {path}", fix="define one at the top level"
        )
    return defined
