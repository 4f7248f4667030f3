"""Programs as a kernel author writes them, with their own mains and references, for `emulate --script`."""

from .kernels import simple

SCALE = simple(
    "mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.u32 %r1, %r2, %r3, %r1;\n"
    "ld.param.u32 %r4, [n]; setp.ge.u32 %p1, %r1, %r4; @%p1 bra DONE;\n"
    "mul.wide.u32 %d1, %r1, 4; ld.param.u64 %d2, [p0]; add.u64 %d2, %d2, %d1;\n"
    "ld.global.f32 %f1, [%d2]; add.f32 %f1, %f1, %f1; st.global.f32 [%d2], %f1;\nDONE:",
    ".param .u64 p0, .param .u32 n",
)
# Each warp writes a word and reads the other's, with no barrier in between.
RACE = simple(
    ".shared .align 4 .b8 s[8];\nmov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; shl.b32 %r3, %r2, 2; "
    "mov.u32 %r4, s; add.u32 %r5, %r4, %r3;\n"
    "setp.ne.u32 %p1, %r1, 0; mov.u32 %r6, 0;\n@!%p1 st.shared.v2.u32 [%r4], {%r6, %r6};\nbar.sync 0;\n"
    "and.b32 %r6, %r1, 31; setp.ne.u32 %p1, %r6, 0;\n@!%p1 st.shared.u32 [%r5], %r2;\n"
    "xor.b32 %r3, %r3, 4; add.u32 %r5, %r4, %r3;\n@%p1 bra DONE;\nld.shared.u32 %r7, [%r5];\n"
    "ld.param.u64 %d1, [p0]; mul.wide.u32 %d2, %r2, 4; add.u64 %d1, %d1, %d2; "
    "st.global.u32 [%d1], %r7;\nDONE:"
)

CUTE_ADD = """
import sys
import torch
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import from_dlpack


@cute.kernel
def kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * 64 + t
    if i < cute.size(a.shape):
        c[i] = a[i] + b[i]


@cute.jit
def add(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    kernel(a, b, c).launch(grid=((cute.size(a.shape) + 63) // 64, 1, 1), block=(64, 1, 1))


def main(n):
    a = torch.arange(n, dtype=torch.float32, device="cuda")
    b, c = torch.ones(n).cuda(), torch.zeros(n, device="cuda")
    tensors = [from_dlpack(x).mark_layout_dynamic() for x in (a, b, c)]
    compiled = cute.compile(add, *tensors)
    compiled(*tensors)
    torch.testing.assert_close(c, a + b)
    c.zero_()
    add(*tensors)
    torch.testing.assert_close(c.cpu(), (a + b).cpu())
    print("PASS")


if __name__ == "__main__":
    main(int(sys.argv[1]))
"""

# The same kernel through TVM's FFI, which takes torch's tensors and refuses those that do not match the
# compilation.
CUTE_TVM_FFI = (
    CUTE_ADD.split("def main")[0]
    + """
@cute.jit
def scaled(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, blocks: cutlass.Int32 = 2):
    kernel(a, b, c).launch(grid=(blocks, 1, 1), block=(64, 1, 1))


a = torch.arange(100, dtype=torch.float32, device="cuda")
b, c = torch.ones(100).cuda(), torch.zeros(100, device="cuda")
fake = [from_dlpack(x, enable_tvm_ffi=True) for x in (a, b, c)]
for function in (add, scaled):
    c.zero_()
    compiled = cute.compile(function, *fake, options="--enable-tvm-ffi")
    compiled(a, b, c)
    torch.testing.assert_close(c, a + b)
for wrong in (c.half(), c.cpu()):
    try:
        compiled(a, b, wrong)
    except (ValueError, TypeError) as error:
        print("refused:", str(error).splitlines()[0])
compiled(a, b, c, blocks=int(sys.argv[1]))
print("PASS")
"""
)

# The copy engine loads a tile into the 128-byte swizzle and stores it; the DSL's host code writes both
# descriptors.
CUTE_TMA = """
import torch
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import from_dlpack

M, N = 64, 64


@cute.kernel
def kernel(load: cute.CopyAtom, source: cute.Tensor, store: cute.CopyAtom, target: cute.Tensor, \
layout: cute.ComposedLayout):
    t, _, _ = cute.arch.thread_idx()
    bx, by, _ = cute.arch.block_idx()
    smem = cutlass.memory.SmemAllocator()
    tile = smem.allocate_tensor(cutlass.Float16, layout.outer, 1024, layout.inner)
    barrier = smem.allocate_array(cutlass.Int64, 1)
    if t == 0:
        cute.arch.mbarrier_init(barrier, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    g = cute.local_tile(source, (M, N), (bx, by))
    h = cute.local_tile(target, (M, N), (bx, by))
    sa, ga = cpasync.tma_partition(load, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), \
cute.group_modes(g, 0, 2))
    sb, gb = cpasync.tma_partition(store, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), \
cute.group_modes(h, 0, 2))
    if t < 32:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, M * N * 2)
        cute.copy(load, ga, sa, tma_bar_ptr=barrier)
    cute.arch.mbarrier_wait(barrier, 0)
    if t < 32:
        cute.copy(store, sb, gb)
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.jit
def move(a: cute.Tensor, b: cute.Tensor):
    atom = cute.nvgpu.warpgroup.make_smem_layout_atom(cute.nvgpu.warpgroup.SmemLayoutAtomKind.K_SW128, \
cutlass.Float16)
    layout = cute.tile_to_shape(atom, (M, N), (0, 1))
    load, source = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), a, layout, (M, N))
    store, target = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), b, layout, (M, N))
    kernel(load, source, store, target, layout).launch(grid=(a.shape[0] // M, a.shape[1] // N, 1), \
block=(64, 1, 1))


a = torch.randn(128, 128, device="cuda").half()
b = torch.zeros_like(a)
move(from_dlpack(a, assumed_align=16), from_dlpack(b, assumed_align=16))
assert torch.equal(a, b), (a - b).abs().max()
print("PASS")
"""

TILELANG_GEMM = """
import torch
import tilelang
import tilelang.language as T


@tilelang.autotune(configs=[{"tile": 64, "pass_configs": {}}, {"tile": 32}])
@tilelang.jit(out_idx=[-1])
def matmul(m, n, k, tile=64):
    @T.prim_func
    def main(a: T.Tensor((m, k), "float16"), b: T.Tensor((n, k), "float16"), c: T.Tensor((m, n), "float16")):
        with T.Kernel(T.ceildiv(n, 64), T.ceildiv(m, 64), threads=128) as (bx, by):
            sa = T.alloc_shared((64, tile), "float16")
            sb = T.alloc_shared((64, tile), "float16")
            sums = T.alloc_fragment((64, 64), "float32")
            T.clear(sums)
            for i in T.Pipelined(T.ceildiv(k, tile), num_stages=2):
                T.copy(a[by * 64, i * tile], sa)
                T.copy(b[bx * 64, i * tile], sb)
                T.gemm(sa, sb, sums, transpose_B=True)
            T.copy(sums, c[by * 64, bx * 64])

    return main


def check(m, n, k):
    kernel = matmul(m, n, k)
    a, b = torch.randn(m, k, device="cuda").half(), torch.randn(n, k, device="cuda").half()
    torch.testing.assert_close(kernel(a, b), (a.float() @ b.float().T).half(), rtol=1e-2, atol=1e-2)


if __name__ == "__main__":
    check(128, 64, 192)
    check(64, 128, 64)  # another module with a kernel of the same name
    print("PASS")
"""

TRITON_GEMM = """
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.autotune(configs=[triton.Config({"BK": 32}), triton.Config({"BK": 64})], key=["K"])
@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i, j = tl.program_id(0), tl.program_id(1)
    rm, rn, rk = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    sums = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :])
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
        sums = tl.dot(x, y, sums)
    tl.store(c + rm[:, None] * N + rn[None, :], sums.to(tl.float16))


@triton.jit
def move(source, target, BM: tl.constexpr, BN: tl.constexpr):
    i = tl.program_id(0)
    target.store([i * BM, 0], source.load([i * BM, 0]) * 2)


def main():
    a, b = torch.randn(64, 64, device="cuda").half(), torch.randn(64, 64, device="cuda").half()
    c = torch.empty(64, 64, device="cuda", dtype=torch.float16)
    matmul[(2, 2)](a, b, c, 64, 64, 64, BM=32, BN=32)
    torch.testing.assert_close(c, (a.float() @ b.float()).half(), rtol=1e-2, atol=1e-2)
    d = torch.zeros_like(a)
    move[(2,)](TensorDescriptor.from_tensor(a, [32, 64]), TensorDescriptor.from_tensor(d, [32, 64]), BM=32, \
BN=64)
    assert torch.equal(d, 2 * a)
    print(triton.testing.do_bench(lambda: matmul[(2, 2)](a, b, c, 64, 64, 64, BM=32, BN=32)))
    print("PASS")


if __name__ == "__main__":
    main()
"""

GLUON_SCALE = """
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def scale(x, y, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    gl.store(y + at, gl.load(x + at, mask=at < n) * 3, mask=at < n)


x = torch.arange(300, dtype=torch.float32, device="cuda")
y = torch.zeros_like(x)
scale[(2,)](x, y, 300, BLOCK=256, num_warps=4)
assert torch.equal(y, 3 * x)
print("PASS")
"""

TILELANG_CLUSTER = """
import torch
import tilelang
import tilelang.language as T


@tilelang.jit(out_idx=[-1])
def double(n):
    @T.prim_func
    def main(a: T.Tensor((n,), "float32"), b: T.Tensor((n,), "float32")):
        with T.Kernel(n // 128, threads=128, cluster_dims=2) as bx:
            for i in T.Parallel(128):
                b[bx * 128 + i] = 2 * a[bx * 128 + i]

    return main


a = torch.randn(512, device="cuda")
torch.testing.assert_close(double(512)(a), 2 * a)
"""
