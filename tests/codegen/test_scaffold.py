"""`codegen new` writes every file of a kernel, and what it writes fails until it is filled in."""

from __future__ import annotations

import ast

import pytest

from codegen.scaffold import scaffold
from codegen.sweep import backends
from dsl_kernels.errors import InvalidArgumentError


def test_files_are_complete_python_that_refuses_to_run(tmp_path) -> None:
    paths = scaffold("dense_gqa", tmp_path)
    assert [p.relative_to(tmp_path).as_posix() for p in paths] == [
        "dsl_kernels/problems/dense_gqa.py",
        "dsl_kernels/programs/dense_gqa.py",
        "dsl_kernels/policies/dense_gqa.py",
        "dsl_kernels/device/torch/dense_gqa.py",
        "tests/numerics/test_dense_gqa.py",
        "tests/numerics/leaves_dense_gqa.py",
        *(f"dsl_kernels/device/{backend}/dense_gqa.py" for backend in backends()),
    ]
    for path in paths:
        if path.suffix == ".py":
            ast.parse(path.read_text())
    assert all(
        "NotImplementedError" in p.read_text()
        for p in paths
        if not {"programs", "policies", "tests"} & set(p.parts)
    )


@pytest.mark.parametrize("name", ["class", "Sparse", "a-b", "x__y", "_x", "", "sparse_mla"])
def test_unusable_names_are_refused(name: str) -> None:
    from codegen.emit import ROOT

    with pytest.raises(InvalidArgumentError, match="op"):
        scaffold(name, ROOT)
