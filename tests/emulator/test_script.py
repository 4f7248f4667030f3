"""Programs checked with their own mains: memory, streams, graphs, driver launches, and the command."""

import ctypes
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from dsl_kernels.runtime import cache
from ptx_emulator import EmulatorError, LaunchError, UnsupportedInstruction
from ptx_emulator.script import UnsupportedCall, emulated, summary

from .kernels import simple
from .programs import (
    CUTE_ADD,
    CUTE_TMA,
    CUTE_TVM_FFI,
    GLUON_SCALE,
    RACE,
    SCALE,
    TILELANG_CLUSTER,
    TILELANG_GEMM,
    TRITON_GEMM,
)

pytest_plugins = ["pytester"]

DRIVER_MAIN = """
import ctypes, sys
import numpy as np

cuda = ctypes.CDLL("libcuda.so.1")

def ok(status):
    assert status == 0, status

def main(ptx, n):
    ok(cuda.cuInit(0))
    device, context = ctypes.c_int(), ctypes.c_void_p()
    ok(cuda.cuDeviceGet(ctypes.byref(device), 0))
    ok(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    ok(cuda.cuModuleLoadData(ctypes.byref(module), ptx.encode()))
    ok(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"k"))
    x = np.arange(n, dtype=np.float32)
    pointer = ctypes.c_uint64()
    ok(cuda.cuMemAlloc_v2(ctypes.byref(pointer), x.nbytes))
    ok(cuda.cuMemcpyHtoD_v2(pointer, x.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(x.nbytes)))
    count = ctypes.c_uint32(n)
    params = (ctypes.c_void_p * 2)(ctypes.addressof(pointer), ctypes.addressof(count))
    ok(cuda.cuLaunchKernel(function, (n + 63) // 64, 1, 1, 64, 1, 1, 0, None, params, None))
    ok(cuda.cuCtxSynchronize())
    y = np.empty_like(x)
    ok(cuda.cuMemcpyDtoH_v2(y.ctypes.data_as(ctypes.c_void_p), pointer, y.nbytes))
    ok(cuda.cuMemFree_v2(pointer))
    np.testing.assert_array_equal(y, 2 * x)
"""


def driver_main(ptx, n):
    scope = {}
    exec(DRIVER_MAIN, scope)
    scope["main"](ptx, n)


def library():
    return ctypes.CDLL("libcuda.so.1")


class Program:
    """A module's kernel and a buffer, by the driver's calls."""

    def __init__(self, ptx=SCALE, n=32):
        self.cuda, self.n = library(), n
        module, self.function, self.pointer = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        assert not self.cuda.cuModuleLoadData(ctypes.byref(module), ptx.encode())
        assert not self.cuda.cuModuleGetFunction(ctypes.byref(self.function), module, b"k")
        assert not self.cuda.cuMemAlloc_v2(ctypes.byref(self.pointer), 4 * n)
        ones = np.ones(n, np.float32)
        assert not self.cuda.cuMemcpyHtoD_v2(self.pointer, ones.ctypes.data, ones.nbytes)

    def launch(self, stream=0):
        count = ctypes.c_uint32(self.n)
        params = (ctypes.c_void_p * 2)(ctypes.addressof(self.pointer), ctypes.addressof(count))
        assert not self.cuda.cuLaunchKernel(self.function, 1, 1, 1, self.n, 1, 1, 0, stream, params, None)

    def values(self):
        out = np.empty(self.n, np.float32)
        assert not self.cuda.cuMemcpyDtoH_v2(out.ctypes.data, self.pointer, out.nbytes)
        return out

    def handle(self, call, *args):
        value = ctypes.c_void_p()
        assert not getattr(self.cuda, call)(ctypes.byref(value), *args)
        return value


def test_a_program_of_the_drivers_c_interface():
    with emulated("sm_90a", interleavings=4) as session:
        driver_main(SCALE, 100)
    (record,) = session.launches
    assert record.ok and record.source == "cuLaunchKernel" and record.grid == (2, 1, 1)
    assert len(record.reports) == 4 and record.results == 1


def test_the_result_of_every_interleaving_starts_from_the_same_memory():
    """The kernel doubles in place: if memory were not restored, the second interleaving would quadruple."""
    with emulated(interleavings=6) as session:
        program = Program()
        program.launch()
        assert (program.values() == 2).all()
    assert session.launches[0].results == 1


def test_a_finding_ends_the_program_or_is_collected():
    with (
        pytest.raises(EmulatorError, match=r"launch 0: k \(cuLaunchKernel\).*\[race\]") as raised,
        emulated(),
    ):
        Program(RACE, 64).launch()
    assert raised.value.finding.code == "race"
    with emulated(check="report", interleavings=3) as session:
        Program(RACE, 64).launch()
    assert not session.ok and session.launches[0].codes(errors=True)["race"] == 3
    assert "[race]" in summary(session) and "FAILED" in summary(session)


def test_only_the_devices_memory_may_be_touched():
    host = np.zeros(32, np.float32)
    with emulated() as session, pytest.raises(EmulatorError, match="out-of-bounds-global"):
        program = Program()
        program.pointer = ctypes.c_uint64(host.ctypes.data)
        program.launch()
    assert not session.ok
    with emulated(), pytest.raises(EmulatorError, match="out-of-bounds-global"):  # after it was freed
        program = Program()
        assert not program.cuda.cuMemFree_v2(program.pointer)
        program.launch()


def test_what_the_driver_would_refuse_is_refused():
    with emulated():
        program = Program()
        cuda, out = program.cuda, ctypes.c_void_p()
        assert cuda.cuMemFree_v2(ctypes.c_uint64(12345)) == 1
        assert cuda.cuMemcpyHtoD_v2(program.pointer, np.zeros(64, np.float32).ctypes.data, 256) == 1
        assert cuda.cuMemsetD32_v2(program.pointer, 0, 33) == 1
        assert cuda.cuMemAlloc_v2(ctypes.byref(out), 0) == 1
        assert cuda.cuDeviceGet(ctypes.byref(ctypes.c_int()), 1) == 101
        assert cuda.cuEventRecord(77, 0) == 400 and cuda.cuStreamSynchronize(77) == 400
        assert cuda.cuLaunchKernel(77, 1, 1, 1, 32, 1, 1, 0, None, None, None) == 400
        assert cuda.cuGraphLaunch(77, None) == 1


def test_calls_that_are_not_recorded_are_refused_by_name():
    with emulated():
        with pytest.raises(UnsupportedCall, match="cuMulticastCreate"):
            _ = library().cuMulticastCreate
        module = ctypes.c_void_p()
        with pytest.raises(UnsupportedCall, match="machine code") as raised:
            library().cuModuleLoadData(ctypes.byref(module), b"\x7fELF" + bytes(60))
        assert raised.value.code == "SCRIPT_UNSUPPORTED" and "compute_90a" in raised.value.fix


def test_an_instruction_that_is_not_executed_ends_the_program():
    ptx = simple("tcgen05.shift.cta_group::1.down [%r1];", target="sm_100a")
    with emulated("sm_100a", check="report") as session, pytest.raises(UnsupportedInstruction):
        Program(ptx).launch()
    assert session.launches[0].failure


def test_a_captured_graph_is_executed_at_each_launch_and_not_before():
    with emulated() as session:
        program = Program()
        cuda, stream = program.cuda, program.handle("cuStreamCreate", 0)
        assert not cuda.cuStreamBeginCapture_v2(stream, 0)
        program.launch(stream)
        event = program.handle("cuEventCreate", 0)
        other = program.handle("cuStreamCreate", 0)
        assert not cuda.cuEventRecord(event, stream)
        assert not cuda.cuStreamWaitEvent(other, event, 0)
        program.launch(other)  # joined the capture by the event
        captured = ctypes.c_void_p()
        assert not cuda.cuStreamEndCapture(stream, ctypes.byref(captured))
        executable = program.handle("cuGraphInstantiateWithFlags", captured, 0)
        assert not session.launches and (program.values() == 1).all()
        for factor in (4, 16):
            assert not cuda.cuGraphLaunch(executable, stream)
            assert (program.values() == factor).all()
        program.launch(other)
        assert (program.values() == 32).all()
    assert len(session.launches) == 5


def test_launches_with_attributes_keep_cluster_and_dependence():
    with emulated() as session:
        program = Program()
        attributes = b"".join(
            (name.to_bytes(4, "little") + bytes(4) + b"".join(v.to_bytes(4, "little") for v in value)).ljust(
                72, b"\0"
            )
            for name, value in ((4, (2, 1, 1)), (6, (1,)))
        )
        held = ctypes.create_string_buffer(attributes, len(attributes))
        config = b"".join(n.to_bytes(4, "little") for n in (4, 1, 1, 32, 1, 1, 0, 0)) + bytes(8)
        config += ctypes.addressof(held).to_bytes(8, "little") + (2).to_bytes(8, "little")
        count = ctypes.c_uint32(32)
        params = (ctypes.c_void_p * 2)(ctypes.addressof(program.pointer), ctypes.addressof(count))
        assert not program.cuda.cuLaunchKernelEx(config, program.function, params, None)
    assert session.launches[0].cluster == (2, 1, 1) and session.launches[0].attributes == ("dependent",)


def test_the_tensor_maps_of_the_drivers_call():
    from .test_raw import IN_STRUCT

    with emulated() as session:
        cuda = library()
        x, out = torch.arange(512.0, device="cuda").reshape(16, 32), torch.zeros(512, device="cuda")
        holder = ctypes.create_string_buffer(256 + 64)
        at = -(-ctypes.addressof(holder) // 64) * 64
        ctypes.c_uint64.from_address(at).value = out.data_ptr()
        u64, u32 = ctypes.c_uint64, ctypes.c_uint32
        encode = [
            7,
            2,
            ctypes.c_void_p(x.data_ptr()),
            (u64 * 2)(32, 16),
            (u64 * 1)(128),
            (u32 * 2)(32, 16),
            (u32 * 2)(1, 1),
        ]
        assert not cuda.cuTensorMapEncodeTiled(at + 64, *encode, 0, 0, 0, 0)
        with pytest.raises(LaunchError, match="more than the swizzle span"):
            cuda.cuTensorMapEncodeTiled(at + 64, *encode, 0, 1, 0, 0)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        assert not cuda.cuModuleLoadData(ctypes.byref(module), IN_STRUCT.encode())
        assert not cuda.cuModuleGetFunction(ctypes.byref(function), module, b"k")
        params = (ctypes.c_void_p * 1)(at)
        assert not cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 2048, None, params, None)
        assert torch.equal(out.reshape(16, 32), x)
    assert session.ok


def test_cuda_python():
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    runtime = pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings is not installed")

    def ok(result):
        assert int(result[0]) == 0, result
        return result[1] if len(result) == 2 else result[1:]

    with emulated() as session:
        ok(driver.cuInit(0))
        kind = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        assert ok(driver.cuDeviceGetAttribute(kind, ok(driver.cuDeviceGet(0)))) == 9
        function = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(SCALE.encode())), b"k"))
        x = np.arange(64, dtype=np.float32)
        pointer = ok(runtime.cudaMalloc(x.nbytes))
        ok(
            runtime.cudaMemcpy(
                pointer, x.ctypes.data, x.nbytes, runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
            )
        )
        stream = ok(driver.cuStreamCreate(0))
        args = ((pointer, 64), (ctypes.c_void_p, ctypes.c_uint32))
        ok(driver.cuLaunchKernel(function, 2, 1, 1, 32, 1, 1, 0, stream, args, 0))
        y = np.zeros_like(x)
        ok(driver.cuMemcpyDtoHAsync(y.ctypes.data, pointer, y.nbytes, stream))
        np.testing.assert_array_equal(y, 2 * x)
        assert int(runtime.cudaFree(123)[0]) == 1
        with pytest.raises(UnsupportedCall, match="cuMemAddressReserve"):
            driver.cuMemAddressReserve(1, 0, 0, 0)
    assert session.ok and session.launches[0].source == "cuda.bindings"


def test_torchs_device_is_told_apart_from_the_host():
    with emulated("sm_100a", sms=7) as session:
        assert torch.cuda.is_available() and torch.cuda.get_device_capability() == (10, 0)
        assert torch.cuda.get_device_properties(0).multi_processor_count == 7
        assert torch.device(0) == torch.device("cuda", 0)
        host = torch.zeros(4)
        device = host.to("cuda")
        device += 1
        assert (host == 0).all() and device.is_cuda and not host.is_cuda and str(device.device) == "cuda:0"
        back = device.cpu()
        back += 1
        assert (device == 1).all() and not back.is_cuda
        for made in (
            device[1:],
            device * 2,
            torch.empty_like(device),
            device.view(2, 2),
            torch.ones(2, device="cuda"),
        ):
            assert made.is_cuda
        assert torch.nn.Linear(2, 2).cuda().weight.is_cuda
        assert {device.data_ptr(), made.data_ptr()} <= {r.memory[0] for r in session.memory.regions()}
        assert host.data_ptr() not in {r.memory[0] for r in session.memory.regions()}
    assert not torch.cuda.is_available() or torch.cuda.get_device_name() != session.device.name
    assert not torch.zeros(2).is_cuda


def test_torchs_tensors_lie_where_the_gpus_allocator_would_put_them():
    """A tensor map in memory needs 128-byte alignment, but torch's CPU allocator aligns to 64."""
    with emulated("sm_90a"):
        host, back = torch.arange(7), torch.zeros(5)
        seen = back.numpy()
        leaf = torch.randn(5, device="cuda", requires_grad=True)
        made = [
            torch.empty(3, 5, device="cuda"),
            torch.ones(3, device="cuda").to(torch.float8_e4m3fn),
            torch.randn(4, 6, device="cuda").t().contiguous(),
            host.cuda(),
            leaf.exp(),
        ]
        assert not any(t.data_ptr() % 512 for t in made)
        assert made[0].shape == (3, 5)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            profile.step()
        assert not list(profile.key_averages()) and not profile.key_averages().table(
            sort_by="cuda_time_total"
        )
        torch.testing.assert_close(made[4].log().detach(), leaf.detach())
        made[4].sum().backward()
        torch.testing.assert_close(leaf.grad, made[4].detach())
        # Views stay views, and tensors that share the host's memory still do.
        row = made[0][1:]
        assert row.data_ptr() - made[0].data_ptr() == 20
        back.copy_(leaf.detach())
        assert (seen == leaf.detach().numpy()).all()


def test_a_backward_pass_makes_its_tensors_on_the_device():
    """torch leaves the mode that distinguishes devices before a backward pass, which allocates itself."""
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return 2 * x

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            seen.extend([dy, torch.empty(4, device=x.device), torch.empty_like(x)])
            return 2 * dy

    with emulated() as session:
        for leave in (lambda y, x: y.sum().backward(), lambda y, x: torch.autograd.grad(y.sum(), x)):
            x = torch.ones(4, device="cuda", requires_grad=True)
            leave(Double.apply(x), x)
            assert len(seen) == 3 and all(t.is_cuda for t in seen)
            assert {t.data_ptr() for t in seen} <= {r.memory[0] for r in session.memory.regions()}
            seen.clear()
        host = torch.ones(4, requires_grad=True)
        Double.apply(host).sum().backward()
        assert not any(t.is_cuda for t in seen)


def test_what_torch_compile_decorates_runs_as_it_is():
    """In a process of its own, as torch reads its settings once."""
    program = """
import torch
from ptx_emulator.script import emulated

with emulated():
    @torch.compile
    def twice(x):
        return 2 * x

    assert twice(torch.ones(4, device="cuda")).is_cuda
    torch._dynamo.trace_rules.get_torch_obj_rule_map()
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_torchs_graphs_repeat_kernels_and_torch_calls():
    with emulated() as session:
        program = Program()
        x = torch.ones(32, device="cuda")
        program.pointer = ctypes.c_uint64(x.data_ptr())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x.add_(1)
            program.launch(torch.cuda.current_stream().cuda_stream)
            y = x * 10
        assert (x == 1).all() and not session.launches
        graph.replay()
        assert (x == 4).all() and (y == 40).all()
        graph.replay()
        assert (x == 10).all() and (y == 100).all()


def test_everything_is_put_back():
    before = (ctypes.CDLL.__init__, torch.cuda.is_available, torch.Generator, torch.cuda.Event)
    with pytest.raises(ZeroDivisionError), emulated():
        _ = 1 / 0
    assert before == (ctypes.CDLL.__init__, torch.cuda.is_available, torch.Generator, torch.cuda.Event)
    with emulated(), pytest.raises(LaunchError, match="cannot be nested"), emulated():
        pass
    with pytest.raises(LaunchError, match="neither"), emulated(check="no"):
        pass


def emulate(*args, cwd):
    command = [sys.executable, "-W", "ignore", "-m", "dsl_kernels", "emulate", *args]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def test_the_command_runs_a_program_and_gives_it_its_arguments(tmp_path):
    (tmp_path / "helper.py").write_text(f"PTX = {SCALE!r}\n")
    (tmp_path / "p.py").write_text(
        DRIVER_MAIN + "\nfrom helper import PTX\nprint(sys.argv[1:])\n"
        "if __name__ == '__main__': main(PTX, int(sys.argv[sys.argv.index('--seed') + 1]))\n"
    )
    done = emulate(
        "--interleavings",
        "3",
        "--json",
        "--coverage",
        "--script",
        str(tmp_path / "p.py"),
        "--seed",
        "70",
        "-h",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(done.stdout)
    assert (
        data["ok"] and data["launches"][0]["grid"] == [2, 1, 1] and data["launches"][0]["interleavings"] == 3
    )
    assert "nothing is translated" in data["purpose"]
    (reached,) = data["coverage"]
    assert reached["kernel"] == "k" and 0 < reached["executed"] <= reached["instructions"]
    assert "['--seed', '70', '-h']" in done.stderr
    done = emulate("--coverage", "--script", str(tmp_path / "p.py"), "--seed", "70", cwd=tmp_path)
    assert "What all launches of k reached together: " in done.stdout
    done = emulate("--script", str(tmp_path / "p.py"), cwd=tmp_path)  # its main fails without the option
    assert done.returncode == 1 and "'--seed' is not in list" in done.stderr
    assert emulate(cwd=tmp_path).returncode == 2
    missing = emulate("--script", "none.py", cwd=tmp_path)
    assert missing.returncode == 2 and "INVALID_ARGUMENT" in missing.stderr


def test_the_command_fails_with_the_program_s_kernels(tmp_path):
    (tmp_path / "p.py").write_text(DRIVER_MAIN + f"\ntry: main({RACE!r}, 64)\nexcept AssertionError: pass\n")
    done = emulate("--script", "p.py", cwd=tmp_path)
    assert done.returncode == 1 and "[race]" in done.stdout and "under Interleaving" in done.stdout


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_a_cute_dsl_program(tmp_path, arch):
    (tmp_path / "p.py").write_text(CUTE_ADD)
    done = emulate("--arch", arch, "--interleavings", "4", "--script", "p.py", "100", cwd=tmp_path)
    assert done.returncode == 0 and "PASS" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("4 interleavings") == 2 and "grid (2, 1, 1)" in done.stdout


@pytest.mark.compile
def test_a_cute_dsl_program_behind_tvms_ffi(tmp_path):
    pytest.importorskip("tvm_ffi")
    (tmp_path / "p.py").write_text(CUTE_TVM_FFI)
    done = emulate("--interleavings", "2", "--script", "p.py", "2", cwd=tmp_path)
    assert done.returncode == 0 and "PASS" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("refused: Mismatched") == 2, done.stdout
    assert done.stdout.count("grid (2, 1, 1)") == 3
    # An error raised by a launch passes through the FFI.
    done = emulate("--interleavings", "2", "--script", "p.py", "0", cwd=tmp_path)
    assert done.returncode == 1 and "EMULATOR_LAUNCH" in done.stdout + done.stderr, done.stdout + done.stderr


@pytest.mark.compile
def test_a_cute_dsl_program_with_descriptors_that_its_host_code_writes(tmp_path):
    (tmp_path / "p.py").write_text(CUTE_TMA)
    done = emulate("--interleavings", "4", "--script", "p.py", cwd=tmp_path)
    assert done.returncode == 0 and "PASS" in done.stdout, done.stdout + done.stderr
    # Without the wait for the store's reads the CTA may exit too early; without the barrier's wait the tile
    # is stale.
    (tmp_path / "q.py").write_text(CUTE_TMA.replace("    cute.arch.mbarrier_wait(barrier, 0)\n", ""))
    done = emulate("--interleavings", "4", "--script", "q.py", cwd=tmp_path)
    assert done.returncode == 1 and "[race]" in done.stdout, done.stdout + done.stderr


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_a_tilelang_program(tmp_path, arch):
    (tmp_path / "p.py").write_text(TILELANG_GEMM)
    done = emulate("--arch", arch, "--interleavings", "3", "--json", "--script", "p.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(done.stdout)
    assert "PASS" in done.stderr and data["ok"]
    grids = [row["grid"] for row in data["launches"]]
    assert [1, 2, 1] in grids and [2, 1, 1] in grids
    assert data["notes"]["autotuners take their first configuration"] == 2


@pytest.mark.compile
def test_a_tilelang_program_of_clusters(tmp_path):
    (tmp_path / "p.py").write_text(TILELANG_CLUSTER)
    done = emulate("--interleavings", "2", "--json", "--script", "p.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (launch,) = json.loads(done.stdout)["launches"]
    assert launch["grid"] == [4, 1, 1] and launch["cluster"] == [2, 1, 1]


@pytest.mark.compile
def test_what_a_tilelang_kernel_does_wrong_keeps_its_type(tmp_path):
    """TVM re-raises errors of Python functions as other types."""
    (tmp_path / "p.py").write_text(
        TILELANG_GEMM.split("if __name__")[0]
        + "from ptx_emulator import EmulatorError\n"
        + "from ptx_emulator.script import emulated\n"
        + "with emulated('sm_90a', instruction_limit=100):\n    try: check(64, 64, 64)\n"
        + "    except EmulatorError as error: print('caught', error.finding.code)\n"
    )
    done = subprocess.run([sys.executable, "p.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "caught instruction-limit" in done.stdout, done.stdout + done.stderr


@pytest.mark.sample(2)
@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("program", ["triton", "gluon"])
def test_a_triton_program(tmp_path, arch, program):
    pytest.importorskip("triton", reason="triton is not installed: `pip install triton`")
    (tmp_path / "p.py").write_text(TRITON_GEMM if program == "triton" else GLUON_SCALE)
    done = emulate("--arch", arch, "--interleavings", "3", "--json", "--script", "p.py", cwd=tmp_path)
    assert done.returncode == 0 and "PASS" in done.stderr, done.stdout + done.stderr
    data = json.loads(done.stdout)
    assert data["ok"] and {row["source"] for row in data["launches"]} == {"Triton"}
    if program == "triton":
        assert [row["kernel"] for row in data["launches"]] == ["matmul", "move", "matmul"]


@pytest.fixture
def kept_core(monkeypatch):
    """Under pytester's own home the core would be built again."""
    monkeypatch.setenv("DSL_KERNELS_CACHE_DIR", str(cache.cache_root()))


def test_pytest_checks_the_launches_of_tests(pytester, kept_core):
    pytester.makepyfile(
        programs=f"SCALE = {SCALE!r}\nRACE = {RACE!r}\n" + DRIVER_MAIN,
        test_it="""
import pytest, torch
from programs import RACE, SCALE, main

@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_right():
    main(SCALE, 100)

@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_wrong():
    main(RACE, 64)
""",
    )
    plugin = ("-p", "no:cacheprovider", "-p", "ptx_emulator.pytest_plugin")
    done = pytester.runpytest_subprocess(*plugin, "--emulate", "--emulator-interleavings", "2")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*[[]race[]]*", "*2 launches were checked, 1 failed*"])


def test_the_fixture_checks_one_test(pytester, kept_core):
    pytester.makepyfile(
        programs=f"SCALE = {SCALE!r}\n" + DRIVER_MAIN,
        test_it="""
import pytest

@pytest.mark.emulated_arch("sm_100a")
def test_fixture(emulated_device):
    from programs import SCALE, main
    main(SCALE, 100)
    assert emulated_device.device.capability == (10, 0) and len(emulated_device.launches) == 1
""",
    )
    plugin = ("-p", "no:cacheprovider", "-p", "ptx_emulator.pytest_plugin")
    pytester.runpytest_subprocess(*plugin).assert_outcomes(passed=1)
