"""Small TileLang modules, as a template would render them, and a separate cache for each test."""

import os

import pytest

from dsl_kernels.variants import Variant

pytest.importorskip("tilelang")

SCALE = """
import os
import pathlib
import signal
import time

import tilelang.language as T

PASS_CONFIGS = {{}}
{prelude}

def program():
    n = T.dynamic("n")

    @T.prim_func
    def {id}(x: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32"), scale: T.float32):
        with T.Kernel(T.ceildiv(n, 128), threads=128) as bx:
            for i in T.Parallel(128):
                if bx * 128 + i < n:
                    y[bx * 128 + i] = x[bx * 128 + i] * scale

    return {id}
"""


@pytest.fixture(autouse=True)
def cache_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("DSL_KERNELS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("DSL_KERNELS_DISABLE_JIT", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def make_module(tmp_path):
    """Write a generated module to disk; returns the record that the cache takes."""

    def make(name="scale__tilelang_sm90a__t", prelude="", arch="sm_90a", text=None):
        path = tmp_path / "generated" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text if text is not None else SCALE.format(id=name, prelude=prelude))
        return Variant(name, "scale", "tilelang", arch, {}, path)

    return make


@pytest.fixture
def child_env(cache_dir):
    """The environment of a process that shares this test's cache."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return {**os.environ, "PYTHONPATH": root, "DSL_KERNELS_CACHE_DIR": str(cache_dir)}
