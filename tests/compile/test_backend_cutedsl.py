"""A CuTe DSL module becomes PTX, cubin and a launch description, without GPU or nvcc; refusals are typed."""

import json

import pytest

import ptx_emulator as emulator
from dsl_kernels.backends.cutedsl import compile_module
from dsl_kernels.errors import CompileError
from dsl_kernels.runtime.artifact import Operand, Param, read

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass")
pytestmark = pytest.mark.compile

ID = "gather__cutedsl_sm90a__t"
SCALE_ROWS = f"""
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

from dsl_kernels.runtime.artifact import Launch, Operand, TensorMap

LAUNCH = Launch(
    operands=(
        Operand("x", "tensor", "bfloat16", ("n", "512"), strides=("ld", "1")),
        Operand("y", "tensor", "float32", ("n", "64"), written=True),
        Operand("scale", "scalar", "float32"),
    ),
    grid=("ceildiv(n, 64)", "1", "1"),
    block=128,
    tensor_maps=(
        TensorMap(
            "x_map", "x", "BFLOAT16", global_dims=("512", "n"), global_strides=("ld * 2",),
            box=(64, 64), element_strides=(1, 1), swizzle="128B",
        ),
    ),
)


@cute.kernel
def {ID}(
    x_map: cute.CopyAtom, x_coords: cute.Tensor, x: cute.Pointer, y: cute.Pointer, scale: cutlass.Float32,
    n: cutlass.Int32, ld: cutlass.Int32,
):
    memory = cutlass.memory.SmemAllocator()
    tile_bar = memory.allocate_array(cutlass.Int64, 1)
    plain = cute.make_layout((64, 64), stride=(64, 1))
    tile = memory.allocate_tensor(cutlass.BFloat16, plain, 1024, cute.make_swizzle(3, 4, 3))
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    if thread == 0:
        cute.arch.mbarrier_init(tile_bar, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    source = cute.local_tile(x_coords, (64, 64), (None, None))
    into, out_of = cpasync.tma_partition(
        x_map, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), cute.group_modes(source, 0, 2)
    )
    if cute.arch.make_warp_uniform(thread // 32) == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(tile_bar, 64 * 64 * 2)
        cute.copy(x_map, out_of[None, block, 1], into, tma_bar_ptr=tile_bar)
    cute.arch.mbarrier_wait(tile_bar, 0)
    result = cute.make_tensor(y, cute.make_layout((n, 64), stride=(64, 1)))
    for i in cutlass.range_constexpr(32):
        row = block * 64 + i * 2 + thread // 64
        if row < n:
            result[row, thread % 64] = tile[i * 2 + thread // 64, thread % 64].to(cutlass.Float32) * scale


@cute.jit
def program(x: cute.Pointer, y: cute.Pointer, scale: cutlass.Float32, n: cutlass.Int32, ld: cutlass.Int32):
    rows = cute.make_tensor(x, cute.make_layout((1 << 30, 512), stride=(512, 1)))
    plain = cute.make_layout((64, 64), stride=(64, 1))
    layout = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, plain)
    x_map, x_coords = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), rows, layout, (64, 64))
    {ID}(x_map, x_coords, x, y, scale, n, ld).launch(grid=(1, 1, 1), block=(128, 1, 1))
"""


def written(folder, text):
    path = folder / f"{ID}.py"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cutedsl")
    return compile_module(written(folder, SCALE_ROWS), "sm_90a", folder / "out"), folder / "out"


def test_launch_description(compiled):
    artifact, out = compiled
    assert read(out) == artifact
    assert artifact.entry.startswith(ID) and artifact.backend == "cutedsl"
    assert artifact.params == (
        Param("x_map", "tensormap", "x_map"),
        Param("x", "pointer", "x"),
        Param("y", "pointer", "y"),
        Param("scale", "float32", "scale"),
        Param("n", "int32", "n"),
        Param("ld", "int32", "ld"),
    )
    assert artifact.operands[1] == Operand("y", "tensor", "float32", ("n", "64"), written=True)
    assert artifact.dims == {"n": ("x", "shape", 0), "ld": ("x", "stride", 0)}
    assert artifact.block == (128, 1, 1) and 8192 < artifact.dynamic_smem <= 8192 + 1024


def test_resources_and_evidence(compiled):
    artifact, out = compiled
    assert 8 <= artifact.resources.registers < 128 and artifact.resources.barriers == 1
    assert artifact.resources.spill_stores == artifact.resources.spill_loads == artifact.resources.stack == 0
    assert artifact.resources.static_smem == 0 and artifact.evidence["UTMALDG.2D"] == 1
    assert set(json.loads((out / "build.json").read_text())["seconds"]) == {"import", "compile", "sass"}


def test_nothing_names_this_machine(compiled, tmp_path):
    _, out = compiled
    root = str(tmp_path).split("/")[1]
    for name in ("meta.json", "kernel.ptx", "kernel.cubin"):
        content = (out / name).read_bytes()
        for trace in (str(out), f"/{root}/", "site-packages"):
            assert trace.encode() not in content, f"{trace} in {name}"


def test_the_compiled_text_runs(compiled):
    """TMA takes the project's descriptor, not the DSL's: odd rows, a row stride, zero fill."""
    artifact, out = compiled
    x = torch.randn(100, 520).bfloat16()[:, :512]
    y = torch.full((100, 64), torch.nan)
    spec = artifact.tensor_maps[0]
    described = emulator.TensorMap(
        x, box=spec.box, swizzle="128B", dims=[512, 100], strides=[1040], dtype="bf16"
    )
    emulator.launch(
        (out / "kernel.ptx").read_text(), (2, 1, 1), artifact.block, [described, x, y, 0.5, 100, 520],
        dynamic_smem=artifact.dynamic_smem, entry=artifact.entry,
    )  # fmt: skip
    assert torch.equal(y, x[:, 64:128].float() * 0.5)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(1 << 30, 512), stride=(512, 1)", "(n, 512), stride=(512, 1)", "static extents"),
        ("block=128,", "block=256,", "256 threads"),
        ("scale: cutlass.Float32, n: cutlass.Int32, ld: cutlass.Int32):\n    rows",
         "scale: cutlass.Float32, n: cutlass.Int32, pitch: cutlass.Int32):\n    ld = pitch\n    rows",
         "pitch"),
        ("LAUNCH = Launch(", "OTHER = Launch(", "a module with LAUNCH"),
        ("result[row, thread % 64]", "result[row, nowhere]", "nowhere"),
    ],
)  # fmt: skip
def test_refusals(tmp_path, old, new, message):
    assert old in SCALE_ROWS
    with pytest.raises(CompileError, match=message):
        compile_module(written(tmp_path, SCALE_ROWS.replace(old, new)), "sm_90a", tmp_path / "out")
