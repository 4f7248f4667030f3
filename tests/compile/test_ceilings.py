"""The ceiling kernels, executed on a CPU: they end, have no races, and fetch exactly the given rows."""

from __future__ import annotations

import subprocess

import pytest

from dsl_kernels.errors import ToolchainError
from dsl_kernels.runtime import toolkit
from dsl_kernels_lab.timing import calibrate
from dsl_kernels_lab.timing.ceilings import METHODS
from dsl_kernels_lab.timing.cuda import SHARED_LIMIT

np = pytest.importorskip("numpy")
emulator = pytest.importorskip("ptx_emulator")
pytestmark = [pytest.mark.compile, pytest.mark.emulator]


@pytest.fixture(scope="module")
def ptx(tmp_path_factory) -> str:
    try:
        nvcc = toolkit.nvcc()
    except ToolchainError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("ceilings")
    (folder / "k.cu").write_bytes(calibrate.SOURCE.read_bytes())
    defines = [f"-D{name}={value}" for name, value in calibrate.DEFINES.items()]
    command = [nvcc.path, "-ptx", "-arch=sm_90a", "-std=c++17", *defines, "-o", "k.ptx", "k.cu"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return (folder / "k.ptx").read_text()


SETTINGS = [calibrate.SETTINGS[i] for i in (0, 3, 5, 9, 12, 13)]


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.method + ("_lists" if s.lists else ""))
@pytest.mark.parametrize(
    ("first", "second", "rows", "sms", "length"),
    [
        (1024, 128, 203, 1, 0),
        (656, 0, 203, 2, 0),
        (8448, 0, 40, 1, 0),
        (16, 0, 203, 1, 0),
        (1024, 128, 7, 3, 0),
        (1024, 128, 320, 2, 64),
        (656, 0, 768, 3, 128),
    ],
    ids=["bf16", "fp8", "pages", "chunk", "few", "lists", "long_lists"],
)
def test_every_live_row_is_fetched_once(ptx, setting, first, second, rows, sms, length, seed):
    generator = np.random.default_rng(7)
    held = 64
    ids = generator.integers(0, held, rows).astype(np.int32)
    ids[generator.random(rows) < 0.3] = -1
    caches = [generator.integers(0, 255, (held, max(width, 16)), dtype=np.uint8) for width in (first, second)]
    name, group, blocks, threads, shared = setting.launch(first + second, rows, sms)
    stretch = setting.stretch(group, threads, length)
    assert bool(stretch) == (setting.lists and length > 0)
    tail = {
        "gather_bulk": [512 if setting.method == "bulk_pieces" else max(first, second)],
        "gather_async": [stretch],
        "gather_loads": [stretch, np.zeros(1, np.uint32)],
    }
    report = emulator.launch(
        ptx,
        entry=name,
        grid=min(blocks * sms, -(-rows // (stretch or group))),
        block=threads,
        args=[*caches, ids, rows, group, first, second, first, second, *tail[name]],
        dynamic_smem=shared,
        interleaving=None if seed is None else emulator.Interleaving.random(seed),
    )
    assert report.ok, report
    live = int((ids >= 0).sum()) * (first + second)
    moved = (
        report.stats["global_read"] - 4 * rows if setting.method == "loads" else report.stats["async_read"]
    )
    assert moved == live


def test_every_method_is_tried_within_the_shared_memory_of_an_sm():
    assert {setting.method for setting in calibrate.SETTINGS} == set(METHODS)
    for setting in calibrate.SETTINGS:
        for row_bytes in calibrate.ROW_BYTES:
            for rows in (100, 1 << 20):
                _, group, blocks, threads, shared = setting.launch(row_bytes, rows, 132)
                assert 1 <= group <= 32 and threads <= 1024
                assert blocks * shared <= 227 << 10 and shared <= SHARED_LIMIT
