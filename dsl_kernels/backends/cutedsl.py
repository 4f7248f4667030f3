"""CuTe DSL: a generated module's `program` to PTX, cubin and launch description, without a GPU or nvcc.

The module states its launch in `LAUNCH`. The kernel's entry takes a 128-byte parameter for each tensor map,
in the order of `LAUNCH.tensor_maps`, then the parameters of `program`, which have the names of operands and
dims. The emitted entry is checked against that, so the DSL's own host code never runs.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from dsl_kernels.errors import CompileError, ToolchainError
from dsl_kernels.runtime import toolkit
from dsl_kernels.runtime.artifact import BUILD, Artifact, Launch, Param, Resources

from .base import imported_helpers, installed, load_module, place_cache, refused, timed

INSTALL = "`pip install 'dsl-kernels[cutedsl]'`"
OLDEST = "4.8.0"
DISTRIBUTION = "nvidia-cutlass-dsl"

# A parameter of the entry: its PTX type, whether it is a pointer, and its size.
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+(\.ptr\b[^\n]*?)?\w+(?:\[(\d+)\])?,?\s*$", re.MULTILINE
)
_KINDS = {"u32": "int32", "s32": "int32", "b32": "int32", "u64": "int64", "s64": "int64", "f32": "float32"}
_REQNTID = re.compile(r"\.reqntid\s+(\d+)(?:,\s*(\d+),\s*(\d+))?")

# The DSL stores the dynamic shared memory that it computed into its host function's launch configuration.
_CONFIG = r"!llvm\.struct<\(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32\)>"
_SMEM_FIELD = re.compile(
    rf"(%\w+) = llvm\.getelementptr %\w+\[0, 2\] : \(!llvm\.ptr\) -> !llvm\.ptr, {_CONFIG}"
)


class CuteDslBackend:
    """The `Backend` of CuTe DSL modules."""

    name = "cutedsl"

    def versions(self) -> dict[str, str]:
        return {DISTRIBUTION: installed(DISTRIBUTION, OLDEST, INSTALL)}

    def load(self) -> object:
        return _import_cute()

    def sources(self, path: Path) -> list[Path]:
        return [*imported_helpers(path, self.name), Path(__file__)]

    def flags(self, arch: str, *, lineinfo: bool = True) -> list[str]:
        line = ["--generate-line-info"] if lineinfo else []
        return ["--gpu-arch", arch, "--keep-ptx", "--keep-cubin", *line]

    def compile_module(self, path: Path, arch: str, out_dir: Path, *, lineinfo: bool = True) -> Artifact:
        return compile_module(path, arch, out_dir, lineinfo=lineinfo)


BACKEND = CuteDslBackend()


def compile_module(path: str | Path, arch: str, out_dir: str | Path, *, lineinfo: bool = True) -> Artifact:
    """Compile the generated module at `path` for `arch` (CUDA spelling, such as `sm_90a`) into `out_dir`.

    Raises:
        ToolchainError: CuTe DSL or a disassembler is missing.
        CompileError: the module or the DSL refuses, or the entry's parameters do not fit `LAUNCH`.
    """
    path, out = Path(path).resolve(), Path(out_dir).resolve()
    out.mkdir(parents=True, exist_ok=True)
    versions = BACKEND.versions()
    seconds: dict[str, float] = {}

    with timed(seconds, "import"):
        cute = _import_cute()
        module = load_module(path)
    launch = _launch(module, path)
    with timed(seconds, "compile"), refused(path.stem, "CuTe DSL"):
        kernel, program = getattr(module, path.stem), module.program
        kernel.set_name_prefix(path.stem, remove_cutlass_symbol=True, keep_mangled_name=False)
        arguments = [_argument(name, launch, path.stem) for name in inspect.signature(program).parameters]
        # Dumps are named by the types of the arguments: compilers that share a folder would mix them up.
        with tempfile.TemporaryDirectory(prefix="dsl_kernels_") as dumps:
            options = [*BACKEND.flags(arch, lineinfo=lineinfo), "--dump-dir", dumps]
            compiled = cute.compile(program, *arguments, options=" ".join(options))
    roots = [path.parent, Path(__file__).resolve().parents[2], Path(cute.__file__).resolve().parents[1]]
    ptx = toolkit.without_traces(compiled.__ptx__, roots)
    (out / "kernel.ptx").write_text(ptx)
    (out / "kernel.cubin").write_bytes(_without_roots(compiled.__cubin__, roots))
    with timed(seconds, "sass"):
        report, evidence = toolkit.inspect_cubin(out / "kernel.cubin")

    names = list(inspect.signature(program).parameters)
    entry, params = _entry(ptx, launch, names, path.stem)
    smem = max(launch.smem, _dynamic_smem(str(compiled.ir_module), path.stem))
    artifact = Artifact(
        variant=path.stem,
        backend=BACKEND.name,
        arch=arch,
        entry=entry,
        operands=launch.operands,
        params=params,
        dims=launch.dims,
        grid=launch.grid,
        block=(launch.block, 1, 1),
        cluster=launch.cluster,
        dynamic_smem=smem,
        cooperative=bool(launch.resident),
        resident=launch.resident,
        # A kernel that waits for the preceding grid may start while that one drains.
        programmatic_launch="griddepcontrol.wait" in ptx,
        tensor_maps=launch.tensor_maps,
        resources=Resources(
            registers=report.registers,
            spill_stores=report.spill_stores,
            spill_loads=report.spill_loads,
            stack=report.stack,
            barriers=report.barriers,
            static_smem=report.static_smem,
            dynamic_smem=smem,
            tmem_columns=toolkit.tmem_columns(ptx),
        ),
        evidence=evidence,
        toolchain=versions,
    )
    (out / BUILD).write_text(json.dumps({"seconds": seconds}, indent=1) + "\n")
    return artifact.seal(out)


def _without_roots(cubin: bytes, roots: list[Path]) -> bytes:
    """Line information without this machine's folders: slashes replace each root, so no offset changes."""
    for root in sorted((os.fsencode(root) for root in roots), key=len, reverse=True):
        cubin = cubin.replace(root, b"." + b"/" * (len(root) - 1))
    return cubin


def _import_cute() -> Any:
    place_cache("CUTE_DSL_CACHE_DIR", "cute")
    try:
        import cutlass.cute as cute
    except ImportError as error:
        raise ToolchainError(
            DISTRIBUTION, expected=f"{DISTRIBUTION} {OLDEST} or newer", got=str(error), fix=INSTALL
        ) from error
    return cute


def _launch(module: ModuleType, path: Path) -> Launch:
    for name in ("LAUNCH", "program", path.stem):
        if not hasattr(module, name):
            raise CompileError(
                str(path), expected=f"a module with {name}", got="none", fix="generate the module again"
            )
    launch: Launch = module.LAUNCH
    return launch


def _argument(name: str, launch: Launch, variant: str) -> Any:
    """A stand-in for one parameter of `program`: a pointer for a tensor, a number for a scalar or a dim."""
    import cutlass
    from cutlass.cute.runtime import make_ptr

    dtypes = {
        "float32": cutlass.Float32,
        "int32": cutlass.Int32,
        "uint32": cutlass.Uint32,
        "int64": cutlass.Int64,
        "bfloat16": cutlass.BFloat16,
        "float16": cutlass.Float16,
        "uint8": cutlass.Uint8,
        "float8_e4m3fn": cutlass.Float8E4M3FN,
    }
    for operand in launch.operands:
        if operand.name != name:
            continue
        if operand.kind == "scalar":
            return dtypes[operand.dtype](1)
        return make_ptr(dtypes[operand.dtype], 16, cutlass.cute.AddressSpace.gmem, assumed_align=16)
    if name in launch.dims:
        return cutlass.Int32(1)
    raise CompileError(
        variant,
        expected="parameters of program named after operands and dims: "
        + ", ".join([*(o.name for o in launch.operands), *launch.dims]),
        got=name,
        fix="rename the parameter, or declare the operand",
    )


def _entry(ptx: str, launch: Launch, names: list[str], variant: str) -> tuple[str, tuple[Param, ...]]:
    """The kernel's symbol and its parameters, with each PTX type checked against what will be passed."""
    head = re.search(r"\.visible \.entry (\w+)\((.*?)\)\s*\n([^{]*)\{", ptx, re.DOTALL)
    if head is None or ptx.count(".visible .entry") != 1:
        raise CompileError(variant, expected="one kernel", got="another number", fix="an op is one launch")
    kinds = {o.name: o.dtype if o.kind == "scalar" else "pointer" for o in launch.operands}
    wanted = [Param(m.name, "tensormap", m.name) for m in launch.tensor_maps]
    wanted += [Param(name, kinds.get(name, "int32"), name) for name in names]
    passed = []
    for kind, pointer, size in _PARAM.findall(head[2]):
        passed.append("pointer" if pointer else "tensormap" if size == "128" else _KINDS.get(kind, kind))
    if passed != [param.kind for param in wanted]:
        raise CompileError(
            variant,
            expected="entry parameters " + ", ".join(f"{p.name}: {p.kind}" for p in wanted),
            got=", ".join(passed),
            fix="pass the tensor maps' atoms first, over tensors of static extents, "
            "then what program takes, in order",
        )
    threads = _REQNTID.search(head[3])
    if threads is None or int(threads[1]) != launch.block:
        raise CompileError(
            variant,
            expected=f"{launch.block} threads",
            got=threads[0] if threads else "no .reqntid",
            fix="launch with block=(threads, 1, 1)",
        )
    return head[1], tuple(wanted)


def _dynamic_smem(ir: str, variant: str) -> int:
    """Bytes of dynamic shared memory that the DSL computed, read from its lowered host function."""
    field = _SMEM_FIELD.search(ir)
    if field is not None:
        stored = re.search(rf"llvm\.store (%\w+), {field[1]} : i64", ir[field.end() :])
        before = ir[: field.start()]
        if stored is not None:
            values = re.findall(rf"{re.escape(stored[1])} = llvm\.mlir\.constant\((\d+) : i64\)", before)
            if values:
                return int(values[-1])
    raise CompileError(
        variant,
        expected="a constant size of shared memory in the DSL's host function",
        got="none",
        fix="allocate with cutlass.memory.SmemAllocator and leave smem out of the launch",
    )
