"""`codegen new` writes every file of a kernel, which fails until it is filled in."""

from __future__ import annotations

import ast

import pytest

from codegen.scaffold import scaffold
from codegen.sweep import backends
from dsl_kernels.errors import InvalidArgumentError


def test_files_are_complete_python_that_refuses_to_run(tmp_path) -> None:
    paths = scaffold("dense_gqa", tmp_path)
    assert [p.relative_to(tmp_path).as_posix() for p in paths] == [
        "dsl_kernels/kernels/dense_gqa/__init__.py",
        "dsl_kernels/kernels/dense_gqa/problem.py",
        "dsl_kernels/kernels/dense_gqa/program.py",
        "dsl_kernels/kernels/dense_gqa/policy.py",
        "dsl_kernels/kernels/dense_gqa/leaves.py",
        "dsl_kernels_lab/oracles/dense_gqa.py",
        "tests/kernels/dense_gqa/test_dense_gqa.py",
        "tests/kernels/dense_gqa/leaves_dense_gqa.py",
        *(f"dsl_kernels/kernels/dense_gqa/{backend}.py" for backend in backends()),
    ]
    for path in paths:
        if path.suffix == ".py":
            ast.parse(path.read_text())
    unwritten = {p.stem for p in paths if "NotImplementedError" in p.read_text()}
    assert unwritten == {"dense_gqa", "leaves"}
    # Leaves exist once, by their text: the DSL's file only makes it take part.
    told = [p for p in paths if p.stem in backends()]
    assert told and not any(
        isinstance(n, ast.FunctionDef) for p in told for n in ast.parse(p.read_text()).body
    )


def test_the_kernel_that_is_written_is_in_the_form_of_the_documents(tmp_path) -> None:
    """Names, a channel with two ends, a State, a launch plan and typed leaves; no guard or parity by hand."""
    paths = {p.stem: p.read_text() for p in scaffold("dense_gqa", tmp_path)[:5]}
    program = paths["program"]
    for phrase in (
        "Kernel(Names)",
        "Rows(State, Kernel)",
        "ring: Channel",
        ".producer.acquire(",
        ".reader.wait(",
        "@recorded",
        ".span(",
    ):
        assert phrase in program, phrase
    assert not [
        phrase for phrase in ("Guard", "m.let", "m.var", "name(") if phrase in program.replace("_name(", "")
    ]
    assert "-> LaunchPlan:" in paths["policy"] and '"ctas"' in program
    leaves = ast.parse(paths["leaves"]).body
    arguments = [a for n in leaves if isinstance(n, ast.FunctionDef) for a in n.args.args]
    assert len(arguments) > 4 and all(a.annotation is not None for a in arguments)
    assert not {"thread", "lane", "warp", "threads"} & {a.arg for a in arguments}


@pytest.mark.parametrize("name", ["class", "Sparse", "a-b", "x__y", "_x", "", "sparse_mla"])
def test_unusable_names_are_refused(name: str) -> None:
    from codegen.emit import ROOT

    with pytest.raises(InvalidArgumentError, match="op"):
        scaffold(name, ROOT)
