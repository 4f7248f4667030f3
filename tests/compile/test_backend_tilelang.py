"""A generated module becomes CUDA, PTX, cubin and a launch description, without a GPU; refusals are typed."""

import json
import re

import pytest

from dsl_kernels import backends, programs, variants
from dsl_kernels.backends.base import imported_helpers, load_module
from dsl_kernels.backends.tilelang import PROVER, compile_module
from dsl_kernels.errors import CompileError, UnknownNameError
from dsl_kernels.runtime import toolkit
from dsl_kernels.runtime.artifact import Operand, Param, TensorMap, dims_of, read

pytestmark = pytest.mark.compile

GEMM = """
import tilelang.language as T

PASS_CONFIGS = {}


def program():
    m, n, k, a_stride = T.dynamic("m"), T.dynamic("n"), T.dynamic("k"), T.dynamic("a_stride", "int64")

    @T.prim_func
    def gemm__tilelang_sm90a__t(
        a: T.StridedTensor((m, k), (a_stride, 1), "bfloat16"),
        b: T.Tensor((n, k), "bfloat16"),
        c: T.Tensor((m, n), "float32"),
        scale: T.float32,
        off: T.int32,
    ):
        with T.Kernel(T.ceildiv(n, 64), T.ceildiv(m, 64), threads=128) as (bx, by):
            a_tile = T.alloc_shared((64, 64), "bfloat16")
            b_tile = T.alloc_shared((64, 64), "bfloat16")
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            for step in T.Pipelined(T.ceildiv(k, 64), num_stages=2):
                T.copy(a[by * 64, step * 64], a_tile)
                T.copy(b[bx * 64, step * 64], b_tile)
                T.gemm(a_tile, b_tile, acc, transpose_B=True)
            for i, j in T.Parallel(64, 64):
                acc[i, j] = acc[i, j] * scale + off
            T.copy(acc, c[by * 64, bx * 64])

    return gemm__tilelang_sm90a__t
"""


@pytest.fixture(scope="module")
def gemm(tmp_path_factory):
    """One real matrix product with TMA, wgmma and warp specialisation, compiled once."""
    folder = tmp_path_factory.mktemp("gemm")
    path = folder / "gemm__tilelang_sm90a__t.py"
    path.write_text(GEMM)
    return compile_module(path, "sm_90a", folder / "out"), folder / "out"


def test_launch_description(gemm):
    artifact, out = gemm
    assert read(out) == artifact
    assert (artifact.variant, artifact.op, artifact.entry) == (
        "gemm__tilelang_sm90a__t",
        "gemm",
        "gemm__tilelang_sm90a__t_kernel",
    )
    assert artifact.grid == ("(n + 63) // 64", "(m + 63) // 64", "1")
    assert artifact.block[0] in (128, 256) and artifact.cluster == (1, 1, 1)
    assert artifact.operands == (
        Operand("a", "tensor", "bfloat16", ("m", "k"), ("a_stride", "1"), written=False),
        Operand("b", "tensor", "bfloat16", ("n", "k"), ("k", "1"), written=False),
        Operand("c", "tensor", "float32", ("m", "n"), ("n", "1"), written=True),
        Operand("scale", "scalar", "float32"),
        Operand("off", "scalar", "int32"),
    )
    assert artifact.dims == {
        "m": ("a", "shape", 0),
        "k": ("a", "shape", 1),
        "a_stride": ("a", "stride", 0),
        "n": ("b", "shape", 0),
    }
    assert not artifact.cooperative and not artifact.programmatic_launch


def test_z3_searches_as_it_is_told_while_tilelang_lowers_and_no_longer(monkeypatch, tmp_path):
    import tilelang
    import z3

    def lower(*_args, **_options):
        seen.update({name: z3.get_param(name) for name in PROVER})
        raise RuntimeError("far enough")

    seen = {}
    z3.set_param("smt.relevancy", 1)
    before = {name: z3.get_param(name) for name in PROVER}
    monkeypatch.setattr(tilelang, "lower", lower)
    path = tmp_path / "gemm__tilelang_sm90a__t.py"
    path.write_text(GEMM)
    try:
        with pytest.raises(CompileError, match="far enough"):
            compile_module(path, "sm_90a", tmp_path / "out")
        assert {name: z3.get_param(name) for name in PROVER} == before != PROVER == seen
    finally:
        z3.reset_params()


def test_parameters_are_in_the_order_of_the_entry(gemm):
    artifact, out = gemm
    assert set(artifact.params) >= {
        Param("a_desc", "tensormap", "a_desc"),
        Param("b_desc", "tensormap", "b_desc"),
        Param("scale", "float32", "scale"),
        Param("off", "int32", "off"),
        Param("k", "int32", "k"),
    }
    signature = re.search(
        r"void (?:__launch_bounds__\([^)]*\) )?gemm__\w+\(([^)]*)\);", (out / "kernel.cu").read_text()
    ).group(1)
    assert [p.split()[-1] for p in signature.split(",")] == [p.name for p in artifact.params]
    ptx = (out / "kernel.ptx").read_text()
    entry = ptx[ptx.index(f".entry {artifact.entry}(") :]
    assert entry[: entry.index(")\n")].count(".param") == len(artifact.params)


def test_tensor_maps_are_neutral(gemm):
    artifact, _ = gemm
    by_operand = {m.operand: m for m in artifact.tensor_maps}
    assert by_operand["a"] == TensorMap(
        "a_desc",
        "a",
        "BFLOAT16",
        ("k", "m"),
        ("a_stride * 2",),
        (64, 64),
        (1, 1),
        swizzle="128B",
        l2_promotion="L2_128B",
    )
    assert by_operand["b"].global_strides == ("k * 2",)


def test_resources_and_evidence(gemm):
    artifact, out = gemm
    assert (
        artifact.resources.registers > 30
        and artifact.resources.spill_stores == artifact.resources.spill_loads == 0
    )
    assert artifact.resources.dynamic_smem == artifact.dynamic_smem >= 2 * 2 * 64 * 64 * 2
    assert artifact.evidence["HGMMA"] >= 4 and artifact.evidence["UTMALDG.2D"] >= 2
    assert "LDL" not in artifact.evidence and artifact.resources.tmem_columns == 0
    assert set(json.loads((out / "build.json").read_text())["seconds"]) == {
        "import",
        "lower",
        "nvcc",
        "ptxas",
        "sass",
    }


def test_nothing_names_this_machine(gemm, tmp_path):
    _, out = gemm
    root = str(tmp_path).split("/")[1]
    for name in ("meta.json", "kernel.ptx", "kernel.cubin"):
        content = (out / name).read_bytes()
        for trace in (str(out), f"/{root}/", "site-packages", "/usr/local"):
            assert trace.encode() not in content, f"{trace} in {name}"
    assert '.file\t1 "kernel.cu"' in (out / "kernel.ptx").read_text()


def test_the_same_module_elsewhere_gives_the_same_bytes(gemm, tmp_path):
    artifact, _ = gemm
    path = tmp_path / "elsewhere" / "gemm__tilelang_sm90a__t.py"
    path.parent.mkdir()
    path.write_text(GEMM)
    assert compile_module(path, "sm_90a", tmp_path / "again") == artifact


def test_tensor_memory_is_counted():
    ptx = "mov.b32 %r7, 512;\ntcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], %r7;\n"
    assert toolkit.tmem_columns(ptx) == 512
    assert toolkit.tmem_columns("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%rd1], 128;") == 128


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import tilelang.language as T\n", "PASS_CONFIGS"),
        ("PASS_CONFIGS = {}\n", "program"),
        ("raise RuntimeError('broken template')\n", "broken template"),
        ("def program(:\n", "SyntaxError"),
        ("PASS_CONFIGS = {}\ndef program():\n    raise ValueError('no such shape')\n", "no such shape"),
        ("PASS_CONFIGS = {'tl.no_such_pass': 1}\ndef program():\n    return None\n", "lowering"),
    ],
)
def test_a_module_that_cannot_be_lowered(make_module, tmp_path, text, message):
    module = make_module(text=text)
    with pytest.raises(CompileError, match=message):
        compile_module(module.path, "sm_90a", tmp_path / "out")


def test_the_program_must_carry_the_variant_id(make_module, tmp_path):
    module = make_module()
    renamed = module.path.rename(module.path.with_name("scale__tilelang_sm90a__other.py"))
    with pytest.raises(CompileError, match="prim_func named scale__tilelang_sm90a__other"):
        compile_module(renamed, "sm_90a", tmp_path / "out")


def test_a_missing_module_and_an_unknown_backend(tmp_path):
    with pytest.raises(CompileError, match="no such file"):
        compile_module(tmp_path / "absent.py", "sm_90a", tmp_path / "out")
    with pytest.raises(UnknownNameError, match="tilelang"):
        backends.get("tilelan")
    assert backends.get("tilelang").name == "tilelang" and "base" not in backends.names()


def test_source_that_nvcc_refuses(make_module, tmp_path):
    prelude = 'PASS_CONFIGS = {"tl.device_compile_flags": "-DT=int -include no_such_header.h"}'
    with pytest.raises(CompileError, match=r"nvcc --ptx.*no_such_header"):
        compile_module(make_module(prelude=prelude).path, "sm_90a", tmp_path / "out")


def test_a_race_that_the_lowering_reports_is_an_error(make_module, tmp_path):
    text = (
        "[ThreadSync] Hoisting sync out of an if: the hoisted barrier no longer separates them "
        "and the race remains."
    )
    prelude = f"def warn():\n    os.write(2, b'W: {text}')\n"
    module = make_module(prelude=prelude)
    module.path.write_text(
        module.path.read_text().replace("    n = T.dynamic", "    warn()\n    n = T.dynamic")
    )
    with pytest.raises(CompileError, match="race remains") as caught:
        compile_module(module.path, "sm_90a", tmp_path / "out")
    assert caught.value.code == "LOWERING_RACE" and "T.assume" in caught.value.fix


@pytest.mark.parametrize(
    ("call", "launch"),
    [
        ("T.sync_grid()", {"cooperative": True}),
        ("T.pdl_sync()", {"programmatic_launch": True}),
        ("T.ClusterKernel(T.ceildiv(n, 128), threads=128, cluster_dims=2)", {"cluster": (2, 1, 1)}),
    ],
)
def test_how_the_kernel_must_be_launched(make_module, tmp_path, call, launch):
    module = make_module()
    text = module.path.read_text()
    if "Kernel" in call:
        text = text.replace("T.Kernel(T.ceildiv(n, 128), threads=128)", call)
    else:
        text = text.replace("threads=128) as bx:\n", f"threads=128) as bx:\n            {call}\n")
    module.path.write_text(text)
    artifact = compile_module(module.path, "sm_90a", tmp_path / "out")
    plain = {"cooperative": False, "programmatic_launch": False, "cluster": (1, 1, 1)}
    assert {name: getattr(artifact, name) for name in plain} == {**plain, **launch}


def test_two_kernels_in_one_program_are_refused(make_module, tmp_path):
    module = make_module()
    body = module.path.read_text()
    kernel = body[body.index("        with T.Kernel") : body.index("    return")].rstrip() + "\n"
    module.path.write_text(body.replace(kernel, kernel + kernel))
    with pytest.raises(CompileError, match="one kernel; got 2"):
        compile_module(module.path, "sm_90a", tmp_path / "out")


def test_helpers_are_found_through_each_other(tmp_path, monkeypatch):
    from dsl_kernels.backends import base

    folder = tmp_path / "dsl_kernels" / "device" / "tilelang"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "softmax.py").write_text("from . import (\n    masks,  # a comment\n    lanes,\n)\n")
    (folder / "masks.py").write_text("import os\n")
    (folder / "lanes.py").write_text("")
    (folder / "unused.py").write_text("")
    (folder / "clock.cuh").write_text("")
    monkeypatch.setattr(base, "_PACKAGE", tmp_path / "dsl_kernels")
    module = tmp_path / "m.py"
    module.write_text("import tilelang, os\nfrom dsl_kernels.device.tilelang.softmax import rescale as r\n")
    assert [p.name for p in imported_helpers(module, "tilelang")] == [
        "__init__.py",
        "clock.cuh",
        "lanes.py",
        "masks.py",
        "softmax.py",
    ]


RENAMING = """
import tilelang.language as T
from dsl_kernels.device.tilelang import symbols

PASS_CONFIGS = {}


@T.macro
def copy(x, y, limit):
    if T.get_thread_binding() < limit:
        y[T.get_thread_binding()] = x[T.get_thread_binding()]


def program():
    n = T.dynamic("n")

    @T.prim_func
    def copy__tilelang_sm90a__t(x: T.Tensor((n,), "int32"), y: T.Tensor((n,), "int32")):
        with T.Kernel(1, threads=32):
            copy(x, y, n)

    return RETURNED
"""


@pytest.mark.parametrize(
    ("returned", "named"),
    [("symbols.named(copy__tilelang_sm90a__t, n=n)", "n"), ("copy__tilelang_sm90a__t", "limit")],
    ids=("named again", "as the macro left it"),
)
def test_sizes_keep_their_names_though_a_macro_takes_them_under_others(
    tmp_path, returned: str, named: str
) -> None:
    """A launch passes sizes by their names; the second row is what TileLang does on its own."""
    path = tmp_path / "copy__tilelang_sm90a__t.py"
    path.write_text(RENAMING.replace("RETURNED", returned))
    artifact = compile_module(path, "sm_90a", tmp_path / "out")
    assert {o.name: o.shape for o in artifact.operands} == {"x": (named,), "y": (named,)}


@pytest.mark.parametrize(
    "variant", variants.variants(backend="tilelang", op="topk_selector"), ids=lambda v: v.id
)
def test_a_module_s_sizes_are_those_that_it_declares(variant) -> None:
    program = load_module(variant.path).program()
    sizes = {str(part) for buffer in program.buffer_map.values() for part in (*buffer.shape, *buffer.strides)}
    assert sizes - {"1"} <= set(dims_of(programs.get(variant.op).operands(variant.knobs)))
