"""TileLang: a generated module's `program()` to CUDA, PTX, cubin and launch description, without a GPU."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from dsl_kernels.errors import CompileError, ToolchainError
from dsl_kernels.runtime import toolkit
from dsl_kernels.runtime.artifact import (
    BUILD,
    SCALAR_FORMATS,
    Artifact,
    Operand,
    Param,
    Resources,
    TensorMap,
)

from .base import imported_helpers, installed, load_module, place_cache, refused, timed

log = logging.getLogger(__name__)

INSTALL = "`pip install 'dsl-kernels[tilelang]'`"
# Older versions have neither clusters, nor strided views, nor tensor memory of any shape.
OLDEST = "0.1.15"

# Z3's settings when a pass of TileLang asks it to prove a condition. Most conditions cannot be proved, and
# the older arithmetic solver without relevancy gives up in half the time. For our kernels it proves as much
# as the default.
PROVER = {"smt.arith.solver": "2", "smt.relevancy": "0"}

# Lowering changes the process's standard error and Z3's settings, so one thread lowers at a time.
_lowering = threading.Lock()

# Warnings of the lowering that mean a wrong kernel, with the fix for its author.
FATAL_WARNINGS = {
    "race remains": "constrain the condition with T.assume, or place the barrier outside the branch yourself",
}

# Enumerators of cuTensorMapEncodeTiled in the order of cuda.h.
_TMAP_DTYPES = (
    "UINT8", "UINT16", "UINT32", "INT32", "UINT64", "INT64", "FLOAT16", "FLOAT32", "FLOAT64", "BFLOAT16",
    "FLOAT32_FTZ", "TFLOAT32", "TFLOAT32_FTZ", "16U4_ALIGN8B", "16U4_ALIGN16B", "16U6_ALIGN16B",
)  # fmt: skip
_TMAP_INTERLEAVE = ("NONE", "16B", "32B")
_TMAP_SWIZZLE = ("NONE", "32B", "64B", "128B", "128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B")
_TMAP_PROMOTION = ("NONE", "L2_64B", "L2_128B", "L2_256B")
_TMAP_FILL = ("NONE", "NAN_REQUEST_ZERO_FMA")

_INFIX = {
    "Add": "+",
    "Sub": "-",
    "Mul": "*",
    "Div": "//",
    "FloorDiv": "//",
    "Mod": "%",
    "FloorMod": "%",
    "EQ": "==",
    "NE": "!=",
    "LT": "<",
    "LE": "<=",
    "GT": ">",
    "GE": ">=",
    "And": "and",
    "Or": "or",
}
_INFIX_CALLS = {
    "shift_left": "<<",
    "shift_right": ">>",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
}


class TileLangBackend:
    """The `Backend` of TileLang programs."""

    name = "tilelang"

    def versions(self) -> dict[str, str]:
        return {"tilelang": installed("tilelang", OLDEST, INSTALL), "nvcc": toolkit.nvcc().version}

    def load(self) -> object:
        return _import_tilelang()

    def sources(self, path: Path) -> list[Path]:
        return [*imported_helpers(path, self.name), Path(__file__)]

    def flags(self, arch: str, *, lineinfo: bool = True) -> list[str]:
        return ["-O3", "-std=c++20", "-w", *(["-lineinfo"] if lineinfo else []), f"-arch={arch}"]

    def compile_module(self, path: Path, arch: str, out_dir: Path, *, lineinfo: bool = True) -> Artifact:
        return compile_module(path, arch, out_dir, lineinfo=lineinfo)


BACKEND = TileLangBackend()


def compile_module(path: str | Path, arch: str, out_dir: str | Path, *, lineinfo: bool = True) -> Artifact:
    """Compile the generated module at `path` for `arch` (CUDA spelling, such as `sm_90a`) into `out_dir`.

    Raises:
        ToolchainError: TileLang, nvcc or a host compiler is missing.
        CompileError: the module, TileLang or nvcc refuses, or lowering warned of a race.
    """
    path, out = Path(path).resolve(), Path(out_dir).resolve()
    out.mkdir(parents=True, exist_ok=True)
    versions = BACKEND.versions()
    seconds: dict[str, float] = {}

    with timed(seconds, "import"):
        _import_tilelang()
        module = load_module(path)
    configs = _pass_configs(module, path)
    with timed(seconds, "lower"):
        program, lowered = _lower(module, path, arch, configs)
    source = lowered.kernel_source
    (out / "kernel.cu").write_text(source)

    extra, roots = _nvcc_options(configs)
    flags = [f for f in BACKEND.flags(arch, lineinfo=lineinfo) if not f.startswith("-arch")]
    with timed(seconds, "nvcc"):
        toolkit.cuda_to_ptx(out / "kernel.cu", out / "kernel.ptx", arch, [*flags, *extra], roots=roots)
    with timed(seconds, "ptxas"):
        line_flags = ["-lineinfo"] if lineinfo else []
        assembler_flags = ["-O3", *line_flags, *(f for f in extra if _for_assembler(f))]
        report = toolkit.ptx_to_cubin(out / "kernel.ptx", out / "kernel.cubin", arch, assembler_flags)
    with timed(seconds, "sass"):
        evidence = toolkit.sass_counts(out / "kernel.cubin")

    launch = _launch_description(program, lowered, path.stem)
    # TileLang makes a launch cooperative itself if the kernel has a grid barrier.
    resident = str(getattr(module, "RESIDENT", ""))
    launch |= {"resident": resident, "cooperative": launch["cooperative"] or bool(resident)}
    artifact = Artifact(
        variant=path.stem,
        backend=BACKEND.name,
        arch=arch,
        resources=Resources(
            registers=report.registers,
            spill_stores=report.spill_stores,
            spill_loads=report.spill_loads,
            stack=report.stack,
            barriers=report.barriers,
            static_smem=report.static_smem,
            dynamic_smem=launch["dynamic_smem"],
            tmem_columns=toolkit.tmem_columns((out / "kernel.ptx").read_text()),
        ),
        evidence=evidence,
        toolchain=versions,
        **launch,
    )
    (out / BUILD).write_text(json.dumps({"seconds": seconds}, indent=1) + "\n")
    return artifact.seal(out)


def _import_tilelang() -> ModuleType:
    """Import TileLang, told not to print and not to complain that there is no device."""
    os.environ.setdefault("TILELANG_PRINT_ON_COMPILATION", "0")
    place_cache("TILELANG_CACHE_DIR", "tilelang")
    try:
        import tilelang
    except ImportError as error:
        raise ToolchainError(
            "tilelang", expected=f"tilelang {OLDEST} or newer", got=str(error), fix=INSTALL
        ) from error
    return tilelang


def _pass_configs(module: ModuleType, path: Path) -> dict[str, Any]:
    for name in ("PASS_CONFIGS", "program"):
        if not hasattr(module, name):
            raise CompileError(
                str(path), expected=f"a module with {name}", got="none", fix="generate the module again"
            )
    configs = dict(module.PASS_CONFIGS)
    if isinstance(flags := configs.get("tl.device_compile_flags"), str):
        configs["tl.device_compile_flags"] = shlex.split(flags)
    return configs


def _lower(module: ModuleType, path: Path, arch: str, configs: dict[str, Any]) -> tuple[Any, Any]:
    import tilelang
    from tilelang import tvm
    from tilelang.transform.pass_config import normalize_pass_configs
    from tvm.target import Target

    target = Target({"kind": "cuda", "arch": arch})
    captured: list[str] = []
    with (
        _lowering,
        refused(path.stem, "TileLang's lowering"),
        _quiet(),
        _prover(),
        _captured_stderr(captured),
    ):
        program = module.program()
        with tvm.transform.PassContext(opt_level=3, config=normalize_pass_configs(configs) or {}), target:
            lowered = tilelang.lower(
                program, target=target, enable_host_codegen=False, enable_device_compile=False
            )
    warnings = "".join(captured)
    for text, fix in FATAL_WARNINGS.items():
        if text in warnings:
            line = next(line for line in warnings.splitlines() if text in line)
            raise CompileError(
                path.stem, expected="a lowering without races", got=line[:1500], fix=fix, code="LOWERING_RACE"
            )
    for line in warnings.splitlines():
        log.debug("%s: %s", path.stem, line)
    symbol = str(program.attrs["global_symbol"])
    if symbol != path.stem:
        raise CompileError(
            str(path),
            expected=f"a prim_func named {path.stem}",
            got=symbol,
            fix="name the file and the program after the variant id",
        )
    return program, lowered


def _nvcc_options(configs: dict[str, Any]) -> tuple[list[str], list[Path]]:
    """Flags of the pass configs with include folders, and the roots that line information may name."""
    from tilelang.contrib import nvcc as tilelang_nvcc

    includes = [f for f in tilelang_nvcc.default_compile_options() if f.startswith("-I")]
    extra: list[str] = []
    if configs.get("tl.enable_fast_math"):
        extra.append("--use_fast_math")
    if (level := configs.get("tl.ptxas_register_usage_level")) is not None:
        extra.append(f"--ptxas-options=--register-usage-level={int(level)}")
    for item in configs.get("tl.device_compile_flags") or []:
        extra += shlex.split(item)
    return [*extra, *includes], [Path(f[2:]) for f in includes]


def _for_assembler(flag: str) -> bool:
    return flag.startswith(("--ptxas-options", "-Xptxas=", "--maxrregcount", "-maxrregcount"))


def _launch_description(program: Any, lowered: Any, variant: str) -> dict[str, Any]:
    """Entry, operands, parameters, grid and tensor maps, read from the lowered device and host functions."""
    from tvm import tirx
    from tvm.tirx.stmt_functor import post_order_visit

    functions = list(lowered.device_mod.functions.values())
    if len(functions) != 1:
        raise CompileError(
            variant, expected="one kernel", got=f"{len(functions)}", fix="fuse them: an op is one launch"
        )
    device = functions[0]
    attrs = device.attrs
    entry = str(attrs["global_symbol"])
    operands, dims = _operands(program, variant)
    scope = {*dims, *(o.name for o in operands if o.kind == "scalar")}

    bindings: dict[Any, Any] = {}
    calls: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.Bind):
            bindings[node.var] = node.value
        elif isinstance(node, tirx.Call) and getattr(node.op, "name", "").endswith("tvm_call_packed"):
            calls.append(node)

    (host,) = lowered.host_mod.functions.values()
    post_order_visit(host.body, visit)

    def text(node: Any) -> str:
        return _expression(node, scope, bindings, variant)

    tensors = {o.name for o in operands if o.kind == "tensor"}
    # A view of an operand (T.view) gives its data variable another name than the operand's.
    aliases = {buffer.data.name: buffer.name for buffer in program.buffer_map.values()}
    maps: list[TensorMap] = []
    names_of_maps: dict[Any, TensorMap] = {}
    launch: list[Any] | None = None
    for call in calls:
        callee, *args = call.args
        match callee.value:
            case "__tvm_set_device":
                continue
            case "__tvm_tensormap_create_tiled":
                # Two views of one operand get descriptors of one name.
                taken = sum(m.name.startswith(args[0].name) for m in maps)
                name = f"{args[0].name}_{taken}" if taken else args[0].name
                made = _tensor_map(args, name, aliases, tensors, text, variant)
                maps.append(made)
                names_of_maps[args[0]] = made
            case name if name == entry:
                launch = args
            case name:
                raise CompileError(
                    variant,
                    expected="a launch with plain arguments",
                    got=f"host call {name}",
                    fix="avoid the feature that needs it",
                )
    if launch is None:
        raise CompileError(
            variant,
            expected=f"a host call of {entry}",
            got="none",
            fix="report it: TileLang's host code changed",
        )

    stored: set[Any] = set()

    def visit_store(node: Any) -> None:
        """Collect tensor maps that the copy engine writes through: TileLang marks every map read-only."""
        if isinstance(node, tirx.Call) and str(getattr(node.op, "name", "")).startswith("tl.tma_store"):
            stored.update(arg for arg in node.args if isinstance(arg, tirx.Var))

    post_order_visit(device.body, visit_store)
    read_only = {int(i) for i in attrs.get("tl.readonly_param_indices", ())}
    params: list[Param] = []
    written: set[str] = set()
    for index, (param, value) in enumerate(zip(device.params, launch, strict=False)):
        source = aliases.get(value.name, value.name) if isinstance(value, tirx.Var) else ""
        if value in names_of_maps:
            params.append(Param(param.name, "tensormap", names_of_maps[value].name))
            touched = names_of_maps[value].operand
        elif source in tensors:
            params.append(Param(param.name, "pointer", source))
            touched = source
        elif str(param.dtype) in SCALAR_FORMATS:
            params.append(Param(param.name, str(param.dtype), source if source in scope else text(value)))
            continue
        else:
            raise CompileError(
                variant,
                expected="pointers, tensor maps and numbers as parameters",
                got=f"{param.name}: {param.dtype}",
                fix="pass a tensor, or a number of a dtype that launches pass",
            )
        if index not in read_only or param in stored:
            written.add(touched)

    extents = {str(k): v for k, v in attrs["thread_extent"].items()}
    cluster = [int(n) for n in attrs.get("cluster_dims", ())]
    return {
        "entry": entry,
        "operands": tuple(
            Operand(o.name, o.kind, o.dtype, o.shape, o.strides, o.name in written) for o in operands
        ),
        "params": tuple(params),
        "dims": dims,
        "grid": tuple(text(extents[f"blockIdx.{a}"]) if f"blockIdx.{a}" in extents else "1" for a in "xyz"),
        "block": tuple(int(extents.get(f"threadIdx.{a}", 1)) for a in "xyz"),
        "cluster": tuple([*cluster, 1, 1, 1][:3]),
        "dynamic_smem": int(attrs.get("dyn_shared_memory_buf", 0)),
        "cooperative": bool(attrs.get("use_cooperative_groups", 0)),
        "programmatic_launch": bool(attrs.get("has_cuda_pdl_sync", 0)),
        "tensor_maps": tuple(maps),
    }


def _operands(program: Any, variant: str) -> tuple[list[Operand], dict[str, tuple[str, str, int]]]:
    """The program's arguments in order, and where to read each dynamic dim: (operand, kind, axis)."""
    from tvm import tirx

    dims: dict[str, tuple[str, str, int]] = {}
    operands: list[Operand] = []
    scalars = {p.name for p in program.params if p not in program.buffer_map}
    for param in program.params:
        buffer = program.buffer_map.get(param)
        if buffer is None:
            operands.append(Operand(param.name, "scalar", str(param.dtype)))
            continue
        for what, sizes in (("shape", buffer.shape), ("stride", buffer.strides)):
            for axis, size in enumerate(sizes):
                if isinstance(size, tirx.Var) and size.name not in scalars:
                    dims.setdefault(size.name, (buffer.name, what, axis))
        operands.append(Operand(buffer.name, "tensor", str(buffer.dtype)))
    scope = {*dims, *scalars}

    def text(node: Any) -> str:
        return _expression(node, scope, {}, variant)

    for index, param in enumerate(program.params):
        if (buffer := program.buffer_map.get(param)) is not None:
            shape = tuple(text(size) for size in buffer.shape)
            strides = tuple(text(size) for size in buffer.strides) or None
            operands[index] = Operand(buffer.name, "tensor", str(buffer.dtype), shape, strides)
    return operands, dims


def _tensor_map(
    args: list[Any], name: str, aliases: dict[str, str], tensors: set[str], text: Any, variant: str
) -> TensorMap:
    """Read `__tvm_tensormap_create_tiled(desc, dtype, rank, base, dims, strides, box, ...)`."""
    rank = int(args[2])
    base = getattr(args[3], "name", str(args[3]))
    base = aliases.get(base, base)
    if base not in tensors:
        raise CompileError(
            variant,
            expected="a tensor map over a whole operand",
            got=f"base {base}",
            fix="pass the tensor as an operand",
        )
    groups = [args[4 + i * rank : 4 + (i + 1) * rank] for i in range(4)]
    dims, strides, box, steps = groups
    interleave, swizzle, promotion, fill = (int(a) for a in args[4 + 4 * rank : 8 + 4 * rank])
    return TensorMap(
        name=name,
        operand=base,
        dtype=_TMAP_DTYPES[int(args[1])],
        global_dims=tuple(text(d) for d in dims),
        global_strides=tuple(text(s) for s in strides[1:]),
        box=tuple(int(b) for b in box),
        element_strides=tuple(int(s) for s in steps),
        interleave=_TMAP_INTERLEAVE[interleave],
        swizzle=_TMAP_SWIZZLE[swizzle],
        l2_promotion=_TMAP_PROMOTION[promotion],
        oob_fill=_TMAP_FILL[fill],
    )


def _expression(node: Any, scope: set[str], bindings: dict[Any, Any], variant: str) -> str:
    """A TIR integer expression as Python text over the names in `scope`; hoisted values are written out."""
    from tvm import tirx

    def text(node: Any) -> str:
        kind = type(node).__name__
        if isinstance(node, int):
            return str(node)
        if isinstance(node, tirx.IntImm):
            return str(int(node.value))
        if isinstance(node, tirx.Var):
            if node.name in scope:
                return node.name
            if node in bindings:
                return text(bindings[node])
        elif kind in _INFIX:
            return f"({text(node.a)} {_INFIX[kind]} {text(node.b)})"
        elif kind in ("Min", "Max"):
            return f"{kind.lower()}({text(node.a)}, {text(node.b)})"
        elif kind == "Cast":
            return text(node.value)
        elif kind == "Select":
            return f"({text(node.true_value)} if {text(node.condition)} else {text(node.false_value)})"
        elif kind == "Call":
            name = node.op.name.rsplit(".", 1)[-1]
            if name in _INFIX_CALLS:
                return f"({text(node.args[0])} {_INFIX_CALLS[name]} {text(node.args[1])})"
            if name == "if_then_else":
                return f"({text(node.args[1])} if {text(node.args[0])} else {text(node.args[2])})"
        raise CompileError(
            variant,
            expected=f"a launch size over {', '.join(sorted(scope)) or 'constants'}",
            got=str(node),
            fix="compute it from the operands' dynamic dims and scalar arguments",
        )

    result = text(node)
    return result[1:-1] if result.startswith("(") and _closes_at_end(result) else result


def _closes_at_end(text: str) -> bool:
    depth = 0
    for index, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return index == len(text) - 1
    return False


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence TileLang's logger, which prints whole programs that it refuses: the error says enough."""
    logger = logging.getLogger("tilelang")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _prover() -> Iterator[None]:
    """Set Z3's parameters to `PROVER` for a block."""
    import z3

    before = {name: z3.get_param(name) for name in PROVER}
    try:
        for name, value in PROVER.items():
            z3.set_param(name, value)
        yield
    finally:
        for name, value in before.items():
            z3.set_param(name, value)


@contextlib.contextmanager
def _captured_stderr(text: list[str]) -> Iterator[None]:
    """Collect what the process writes to file descriptor 2, where TileLang's C++ passes log."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            sink.seek(0)
            text.append(sink.read().decode(errors="replace"))
