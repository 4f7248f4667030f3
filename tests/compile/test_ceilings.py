"""The ceiling kernel, compiled and executed on a CPU: it ends, races nowhere, and copies exactly the rows it was given."""

from __future__ import annotations

import subprocess

import pytest

from dsl_kernels import ceilings
from dsl_kernels.errors import ToolchainError
from dsl_kernels.runtime import toolkit

np = pytest.importorskip("numpy")
emulator = pytest.importorskip("dsl_kernels.emulator")
pytestmark = [pytest.mark.compile, pytest.mark.emulator]


@pytest.fixture(scope="module")
def ptx(tmp_path_factory) -> str:
    try:
        nvcc = toolkit.nvcc()
    except ToolchainError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("ceilings")
    (folder / "k.cu").write_text(ceilings.SOURCE)
    command = [
        nvcc.path,
        "-ptx",
        "-arch=sm_90a",
        "-std=c++17",
        f"-DSTAGES={ceilings.STAGES}",
        "-o",
        "k.ptx",
        "k.cu",
    ]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return (folder / "k.ptx").read_text()


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize(
    ("first", "second", "group", "blocks"),
    [(1024, 128, 16, 2), (656, 0, 28, 3), (8448, 0, 2, 2), (1024, 128, 16, 1)],
    ids=["bf16", "fp8", "pages", "one_block"],
)
def test_every_live_row_is_copied_once(ptx, first, second, group, blocks, seed):
    generator = np.random.default_rng(7)
    rows, held = 203, 64
    ids = generator.integers(0, held, rows).astype(np.int32)
    ids[generator.random(rows) < 0.3] = -1
    caches = [generator.integers(0, 255, (held, max(width, 16)), dtype=np.uint8) for width in (first, second)]
    report = emulator.launch(
        ptx,
        grid=blocks,
        block=32,
        args=[*caches, ids, rows, group, first, first, second, second],
        dynamic_smem=ceilings.STAGES * group * (first + second),
        schedule=None if seed is None else emulator.Schedule.random(seed),
    )
    assert report.stats["async_read"] == int((ids >= 0).sum()) * (first + second)
