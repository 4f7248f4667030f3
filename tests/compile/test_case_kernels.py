"""The cases' CUDA kernels, compiled and executed on a CPU: results equal the references."""

from __future__ import annotations

import subprocess

import pytest
import torch

from dsl_kernels.errors import ToolchainError
from dsl_kernels.runtime import toolkit
from dsl_kernels_lab.cases import _gather, reduction

np = pytest.importorskip("numpy")
emulator = pytest.importorskip("ptx_emulator")
pytestmark = [pytest.mark.compile, pytest.mark.emulator]


@pytest.fixture(scope="module")
def ptx(tmp_path_factory):
    """Compiles each source to PTX by nvcc, once."""
    try:
        nvcc = toolkit.nvcc()
    except ToolchainError as error:
        pytest.skip(str(error))
    folder, texts = tmp_path_factory.mktemp("cases"), {}

    def compiled(source) -> str:
        if source.name not in texts:
            (folder / f"{source.name}.cu").write_text(source.text)
            out = folder / f"{source.name}.ptx"
            command = [nvcc.path, "-ptx", *source.options("sm_90a"), "-o", out.name, f"{source.name}.cu"]
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
            texts[source.name] = out.read_text()
        return texts[source.name]

    return compiled


@pytest.mark.parametrize("version", reduction.VERSIONS)
@pytest.mark.parametrize("n", [1, 700, 5000])
def test_every_reduction_is_exact(ptx, version, n):
    data = np.random.default_rng(n).integers(0, 2, n).astype(np.float32)
    data[0], total = 1, np.zeros(1, dtype=np.float32)
    emulator.launch(
        ptx(reduction.SOURCE),
        grid=3,
        block=reduction.BLOCK,
        args=[data, total, n],
        entry=f"reduce_{version}",
    )
    assert total[0] == data.sum()


@pytest.mark.parametrize("engine", _gather.ENGINES)
@pytest.mark.parametrize(("depth", "warps"), [(1, 1), (2, 2), (8, 3)])
@pytest.mark.parametrize("rows", [5, 203])
def test_every_gather_adds_up_the_rows_it_was_given(ptx, engine, depth, warps, rows):
    generator = torch.Generator().manual_seed(depth)
    cache = torch.randint(-(2**15), 2**15, (64, 576), generator=generator, dtype=torch.int16)
    ids = torch.randint(64, (rows,), generator=generator, dtype=torch.int32)
    sums = np.zeros(rows, dtype=np.int32)
    emulator.launch(
        ptx(_gather.source(depth)),
        grid=2,
        block=32 * warps,
        args=[cache.numpy(), ids.numpy(), sums, rows],
        entry=f"gather_{engine}",
        dynamic_smem=warps * depth * (_gather.ROW + 8),
    )
    assert sums.tolist() == _gather.word_sums(cache, ids).tolist()
