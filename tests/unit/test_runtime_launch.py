"""The launcher against a driver that records its arguments: packed parameters, grid, attributes, errors."""

import ctypes
import struct
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from test_runtime_artifact import example

from dsl_kernels.errors import ArgumentTypeError, ExecutorUnavailableError, InvalidArgumentError, LaunchError
from dsl_kernels.runtime import launch
from dsl_kernels.runtime.artifact import Operand, Param
from dsl_kernels.runtime.driver import Driver, get_driver

real = pytest.importorskip("cuda.bindings.driver")


class FakeDriver:
    """The driver's calls, answered without a GPU. The structures are the real ones, so layouts are tested."""

    def __init__(self, capability=(9, 0), devices=1):
        self.capability, self.count = capability, devices
        self.launches, self.encoded, self.attributes, self.pushed = [], [], [], []
        self.result = real.CUresult.CUDA_SUCCESS
        self.context = {}

    def __getattr__(self, name):
        return getattr(real, name)

    def ok(self, *values):
        return (real.CUresult.CUDA_SUCCESS, *values)

    def cuInit(self, flags):
        return self.ok()

    def cuDeviceGetCount(self):
        return self.ok(self.count)

    def cuDeviceGet(self, device):
        return self.ok(real.CUdevice(device))

    def cuDeviceGetAttribute(self, kind, device):
        return self.ok(self.capability["MINOR" in kind.name])

    def cuDevicePrimaryCtxRetain(self, device):
        return self.ok(real.CUcontext(1000 + int(device)))

    def cuCtxGetCurrent(self):
        return self.ok(real.CUcontext(self.context.get(threading.get_ident(), 0)))

    def cuCtxSetCurrent(self, context):
        self.context[threading.get_ident()] = int(context)
        return self.ok()

    def cuCtxPushCurrent(self, context):
        self.pushed.append(int(context) - 1000)
        return self.ok()

    def cuCtxPopCurrent(self):
        return self.ok(real.CUcontext(0))

    def cuCtxGetDevice(self):
        return self.ok(real.CUdevice(self.context[threading.get_ident()] - 1000))

    def cuLibraryLoadData(self, code, *rest):
        self.code = code
        return self.ok(real.CUlibrary(77))

    def cuLibraryGetKernel(self, library, name):
        self.entry = name
        return self.ok(real.CUkernel(88))

    def cuKernelSetAttribute(self, attribute, value, kernel, device):
        self.attributes.append((attribute.name, value, int(device)))
        return self.ok()

    def cuGetErrorString(self, result):
        return self.ok(b"refused for a test")

    def cuTensorMapEncodeTiled(self, dtype, rank, address, dims, strides, box, steps, *modes):
        self.encoded.append(
            (
                dtype.name,
                rank,
                address,
                [int(d) for d in dims],
                [int(s) for s in strides],
                [m.name for m in modes],
            )
        )
        tensor_map = real.CUtensorMap()
        ctypes.memset(int(tensor_map.getPtr()), len(self.encoded), 128)
        return self.ok(tensor_map)

    def cuLaunchKernelEx(self, config, function, parameters, extra):
        pointers = (ctypes.c_void_p * 4).from_address(parameters)
        raw = [ctypes.string_at(p, size) for p, size in zip(pointers, (128, 8, 4, 4), strict=True)]
        self.launches.append(
            SimpleNamespace(
                grid=(config.gridDimX, config.gridDimY, config.gridDimZ),
                block=(config.blockDimX, config.blockDimY, config.blockDimZ),
                smem=config.sharedMemBytes,
                stream=int(config.hStream),
                attributes=[(a.id.name, a.value) for a in config.attrs][: config.numAttrs],
                early=[
                    a.value.programmaticStreamSerializationAllowed
                    for a in config.attrs
                    if "SERIALIZATION" in a.id.name
                ],
                function=function,
                map=raw[0],
                y=struct.unpack("<Q", raw[1])[0],
                n=struct.unpack("<i", raw[2])[0],
                scale=struct.unpack("<f", raw[3])[0],
                map_aligned=pointers[0] % 64 == 0,
            )
        )
        return (self.result,)


@pytest.fixture
def driver(monkeypatch):
    return use(monkeypatch, FakeDriver())


def use(monkeypatch, fake):
    api = object.__new__(Driver)
    api.api, api.devices, api._contexts = fake, fake.count, {}
    monkeypatch.setattr(launch, "get_driver", lambda: api)
    return fake


def operands(n=300, stride=96):
    base = torch.zeros(n, stride, dtype=torch.bfloat16)
    return {"x": base[:, :64], "y": torch.zeros(n, 64), "scale": 0.5}


def test_parameters_grid_and_maps_reach_the_driver(driver):
    kernel, given = launch.LoadedKernel(example(), b"cubin"), operands()
    kernel.launch(given, stream=4321)
    kernel.launch(given, {"n": 300, "x_stride": 96}, stream=4321)
    first, second = driver.launches
    assert driver.code == b"cubin" and driver.entry == b"scale__tilelang_sm90a__t_kernel"
    assert (
        first.grid == (3, 1, 1)
        and first.block == (128, 1, 1)
        and first.smem == 65536
        and first.stream == 4321
    )
    assert (first.y, first.n, first.scale) == (given["y"].data_ptr(), 300, 0.5)
    assert first.map == b"\x01" * 128 and first.map_aligned
    assert vars(first) == vars(second), "dims read from the shapes equal dims that were passed"
    assert driver.attributes == [("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", 65536, 0)]
    dtype, rank, address, dims, strides, modes = driver.encoded[0]
    assert (dtype, rank, address) == ("CU_TENSOR_MAP_DATA_TYPE_BFLOAT16", 2, given["x"].data_ptr())
    assert (dims, strides) == ([64, 300], [192])
    assert modes == [
        "CU_TENSOR_MAP_INTERLEAVE_NONE", "CU_TENSOR_MAP_SWIZZLE_128B", "CU_TENSOR_MAP_L2_PROMOTION_NONE",
        "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
    ]  # fmt: skip


def test_map_of_a_vector_has_strides_that_the_driver_takes(driver):
    artifact = example()
    vector = replace(
        artifact.tensor_maps[0],
        global_dims=("n",),
        global_strides=(),
        box=(64,),
        element_strides=(1,),
        swizzle="NONE",
    )
    launch.LoadedKernel(replace(artifact, tensor_maps=(vector,)), b"cubin").launch(operands())
    _, rank, _, dims, strides, _ = driver.encoded[0]
    assert (rank, dims, strides) == (1, [300], [16]), "the driver refuses a null pointer"


def test_tensor_maps_follow_the_address_and_are_reused(driver):
    kernel = launch.LoadedKernel(example(), b"cubin")
    one, two = operands(), operands()
    for given in (one, two, one, two):
        kernel.launch(given)
    assert len(driver.encoded) == 2
    assert [call.map[0] for call in driver.launches] == [1, 2, 1, 2]
    kernel.launch({**one, "x": one["x"][:200]})
    assert len(driver.encoded) == 3 and driver.launches[-1].map[0] == 3


def test_tensor_map_cache_is_bounded(driver, monkeypatch):
    monkeypatch.setattr(launch, "_TENSOR_MAP_LIMIT", 2)
    kernel = launch.LoadedKernel(example(), b"cubin")
    for n in (100, 200, 300, 400):
        kernel.launch(operands(n))
    assert len(kernel._tensor_maps) <= 2 and driver.launches[-1].map[0] == 4


def test_cluster_cooperative_and_programmatic_launch_attributes(driver):
    kernel = launch.LoadedKernel(
        example(cluster=(16, 1, 1), cooperative=True, programmatic_launch=True), b"cubin"
    )
    kernel.launch(operands())
    given = dict(driver.launches[0].attributes)
    cluster = given["CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"].clusterDim
    assert (cluster.x, cluster.y, cluster.z) == (16, 1, 1)
    assert given["CU_LAUNCH_ATTRIBUTE_COOPERATIVE"].cooperative == 1
    assert (
        given["CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"].programmaticStreamSerializationAllowed
        == 1
    )
    assert ("CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1, 0) in driver.attributes


@pytest.mark.parametrize("programmatic", [False, True])
def test_a_launch_is_cooperative_only_where_its_ctas_wait_for_each_other(driver, programmatic):
    description = example(cooperative=True, resident="n // 128 - 1", programmatic_launch=programmatic)
    kernel = launch.LoadedKernel(description, b"cubin")
    for n in (128, 256, 128, 384):
        kernel.launch(operands(n))
    kinds = [[name for name, _ in each.attributes] for each in driver.launches]
    rest = ["CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"] * programmatic
    alone, together = rest, [*rest, "CU_LAUNCH_ATTRIBUTE_COOPERATIVE"]
    assert kinds == [alone, together, alone, together]


@pytest.mark.parametrize("cluster", [(1, 1, 1), (2, 1, 1)])
def test_a_launch_begins_early_unless_it_is_told_to_wait(driver, cluster):
    description = example(
        cluster=cluster, cooperative=True, resident="n // 128 - 1", programmatic_launch=True
    )
    kernel, given = launch.LoadedKernel(description, b"cubin"), operands(256)
    sizes = {"n": 256, "x_stride": 96}
    for more in ({}, {"early": 0}, {"early": 1}, {"early": 0}, {}):
        kernel.launch(given, sizes | more)
    assert [each.early for each in driver.launches] == [[1], [0], [1], [0], [1]]
    for each in driver.launches:
        values = dict(each.attributes)
        assert values["CU_LAUNCH_ATTRIBUTE_COOPERATIVE"].cooperative == 1
        if cluster[0] > 1:
            assert values["CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"].clusterDim.x == cluster[0]
    alone = launch.LoadedKernel(example(), b"cubin")
    alone.launch(given, sizes | {"early": 1})
    assert driver.launches[-1].early == [], (
        "a kernel that does not wait for the one before it never begins early"
    )


def test_what_is_loaded_apart_regards_no_other_kernel(driver):
    description = example(
        cluster=(2, 1, 1), cooperative=True, resident="n // 128 - 1", programmatic_launch=True
    )
    with launch.loaded_apart():
        apart = launch.LoadedKernel(description, b"cubin")
    for kernel in (apart, launch.LoadedKernel(description, b"cubin")):
        kernel.launch(operands(256))
    first, second = ([name for name, _ in each.attributes] for each in driver.launches)
    assert first == ["CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"] and len(second) == 3


def test_an_empty_grid_launches_nothing(driver):
    launch.LoadedKernel(example(), b"cubin").launch(operands(0))
    assert driver.launches == []


def test_threads_have_their_own_buffers_and_get_a_context(driver):
    kernel, given = launch.LoadedKernel(example(), b"cubin"), [operands(128 * (i + 1)) for i in range(8)]
    barrier = threading.Barrier(8)

    def work(index):
        barrier.wait()
        for _ in range(50):
            kernel.launch(given[index], stream=index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(driver.launches) == 400 and len(driver.context) == 8
    for call in driver.launches:
        assert call.n == 128 * (call.stream + 1) and call.y == given[call.stream]["y"].data_ptr()


def test_with_several_devices_the_operands_choose(monkeypatch):
    """Also in a thread's first launch, whose current device may be of another architecture."""
    fake = use(monkeypatch, FakeDriver(devices=2))
    fake.cuDeviceGetAttribute = lambda kind, device: fake.ok((8 + int(device)) * ("MAJOR" in kind.name))
    kernel, given = launch.LoadedKernel(example(), b"cubin"), operands()
    with pytest.raises(LaunchError, match="operand x"):
        kernel.launch({})
    given["x"] = SimpleNamespace(
        data_ptr=given["x"].data_ptr, shape=given["x"].shape, stride=given["x"].stride, get_device=lambda: 1
    )
    kernel.launch(given)
    assert set(fake.pushed) == {1} and len(fake.launches) == 1
    assert {device for _, _, device in fake.attributes} == {1}
    assert not fake.context, "the thread's current context is as it was"


def test_another_architecture_is_refused(monkeypatch):
    use(monkeypatch, FakeDriver(capability=(10, 0)))
    with pytest.raises(ExecutorUnavailableError, match=r"sm_90a.*10\.0"):
        launch.LoadedKernel(example(), b"cubin").launch(operands())


def test_a_machine_without_a_driver_is_refused(monkeypatch):
    fake = FakeDriver()
    fake.cuInit = lambda flags: (real.CUresult.CUDA_ERROR_NO_DEVICE,)
    monkeypatch.setattr("cuda.bindings.driver", fake)
    get_driver.cache_clear()
    with pytest.raises(ExecutorUnavailableError, match="CUDA_ERROR_NO_DEVICE"):
        launch.LoadedKernel(example(), b"cubin").launch(operands())
    get_driver.cache_clear()


@pytest.mark.parametrize(
    ("change", "dims", "message"),
    [
        ({"y": None}, None, "operand y"),
        ({"y": ...}, None, "operand y: expected a float32 tensor"),
        ({}, {"n": 4}, "dim x_stride"),
        ({"scale": ...}, None, "scale"),
        ({}, {"n": 1 << 40, "x_stride": 96}, "n: expected a value that fits int32"),
        ({"scale": "big"}, None, "scale: expected a value that fits float32"),
    ],
)
def test_bad_operands_are_named(driver, change, dims, message):
    given = {name: value for name, value in {**operands(), **change}.items() if value is not None}
    with pytest.raises(LaunchError, match=message):
        launch.LoadedKernel(example(), b"cubin").launch(given, dims)
    assert driver.launches == []


def test_a_refusal_of_the_driver_names_the_launch(driver):
    driver.result = real.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(
        LaunchError, match=r"CUDA_ERROR_INVALID_VALUE \(refused for a test\) for grid \(3, 1, 1\)"
    ):
        launch.LoadedKernel(example(), b"cubin").launch(operands())


def test_a_refused_tensor_map_names_the_operand(driver):
    driver.cuTensorMapEncodeTiled = lambda *_: (real.CUresult.CUDA_ERROR_INVALID_VALUE, None)
    with pytest.raises(LaunchError, match="tensor map of x"):
        launch.LoadedKernel(example(), b"cubin").launch(operands())


def test_check_accepts_what_the_kernel_was_built_for():
    launch.LoadedKernel(example(), b"cubin").check(operands())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": None}, LaunchError, "operand x"),
        ({"y": torch.zeros(300, 64, dtype=torch.float16)}, ArgumentTypeError, "float32"),
        ({"y": torch.zeros(300, 65)}, InvalidArgumentError, "shape"),
        ({"y": torch.zeros(64, 300).T}, InvalidArgumentError, "strides"),
        ({"y": torch.zeros(300, 64, device="meta")}, InvalidArgumentError, "device"),
        (
            {"x": torch.zeros(300 * 96 + 1, dtype=torch.bfloat16)[1:].view(300, 96)[:, :64]},
            InvalidArgumentError,
            "multiple of 16",
        ),
        ({"scale": "x"}, ArgumentTypeError, "scale"),
    ],
)
def test_check_names_what_does_not_fit(change, error, message):
    given = {name: value for name, value in {**operands(), **change}.items() if value is not None}
    with pytest.raises(error, match=message):
        launch.LoadedKernel(example(), b"cubin").check(given)


@pytest.mark.parametrize(("strides", "refused"), [(("d", "1"), False), (("pitch", "1"), True)])
def test_rows_begin_on_aligned_addresses_where_a_call_chooses_their_pitch(strides, refused):
    """If strides follow from the shape, as TileLang records them, the guards refuse a width of 5."""
    x, _, scale = example().operands
    made = example(
        operands=(x, Operand("y", "tensor", "float32", ("n", "d"), strides, written=True), scale),
        dims={**example().dims, "d": ("y", "shape", 1), "pitch": ("y", "stride", 0)},
    )
    kernel = launch.LoadedKernel(made, b"cubin")
    kernel.alignment = {"y": 16}
    given = {**operands(), "y": torch.zeros(300, 5)}
    if not refused:
        kernel.check(given)
        return
    with pytest.raises(
        InvalidArgumentError, match="rows that begin on multiples of 16 bytes; got strides of 20 bytes"
    ):
        kernel.check(given)


def test_a_parameter_may_be_an_expression(driver):
    params = (*example().params[:2], Param("n2", "int32", "n * 2 + 1"), Param("scale", "float32", "scale"))
    launch.LoadedKernel(example(params=params), b"cubin").launch(operands())
    assert driver.launches[0].n == 601


def test_a_refused_tensor_map_does_not_stay_for_the_next_launch(driver):
    kernel, one, two = launch.LoadedKernel(example(), b"cubin"), operands(), operands()
    kernel.launch(one)
    encode, driver.cuTensorMapEncodeTiled = (
        driver.cuTensorMapEncodeTiled,
        lambda *_: (real.CUresult.CUDA_ERROR_INVALID_VALUE, None),
    )
    with pytest.raises(LaunchError, match="tensor map of x"):
        kernel.launch(two)
    driver.cuTensorMapEncodeTiled = encode
    for given in (one, two):
        kernel.launch(given)
    assert [call.map[0] for call in driver.launches] == [1, 1, 2]


def test_names_of_dims_and_operands_do_not_meet_those_of_the_launcher(driver):
    made = example(
        operands=(
            Operand("x", "tensor", "bfloat16", ("d", "64"), ("o", "1")),
            Operand("y", "tensor", "float32", ("d", "64"), None, written=True),
            Operand("stream", "scalar", "float32"),
        ),
        params=(*example().params[:2], Param("n", "int32", "d"), Param("scale", "float32", "stream")),
        dims={"d": ("x", "shape", 0), "o": ("x", "stride", 0)},
        grid=("(d + 127) // 128", "1", "1"),
        tensor_maps=(replace(example().tensor_maps[0], global_dims=("64", "d"), global_strides=("o * 2",)),),
    )
    given = operands()
    given["stream"] = given.pop("scale")
    launch.LoadedKernel(made, b"cubin").launch(given, stream=7)
    (call,) = driver.launches
    assert (call.n, call.scale, call.stream, call.grid) == (300, 0.5, 7, (3, 1, 1))
