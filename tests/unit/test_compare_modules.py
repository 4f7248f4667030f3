"""scripts/compare_modules.py: what counts as the same module."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[2] / "scripts" / "compare_modules.py"
PTX = """
.visible .entry kernel__a(.param .u64 kernel__a_param_0)
{
    .reg .b32 %r<3>;
    .loc 1 5 0
    mov.u32 %r1, %tid.x;  // thread
$L__BB0_2:
    add.s32 %r2, %r1, 1;
    @%p1 bra $L__BB0_2;
}
"""


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("compare_modules", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("old", "new"),
    [("%r2", "%r9"), ("$L__BB0_2", "$L__BB7_1"), ("kernel__a", "other__b"), ("// thread", ""),
     (".loc 1 5 0", "")]
)  # fmt: skip
def test_names_lines_and_comments_do_not_count(script: Any, old: str, new: str) -> None:
    assert script.without_names(PTX) == script.without_names(PTX.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"), [("add.s32", "sub.s32"), ("%tid", "%ctaid"), ("%r1, 1", "%r2, 1"), (", 1;", ", 2;")]
)
def test_everything_else_does(script: Any, old: str, new: str) -> None:
    assert script.without_names(PTX) != script.without_names(PTX.replace(old, new))


def test_two_checkouts(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "a": {"op__same": "x", "op__named": "x = 1", "op__changed": "x = 1", "op__gone": ""},
        "b": {"op__same": "x", "op__named": "y = 1", "op__changed": "x = 2"},
    }
    for root, modules in texts.items():
        folder = tmp_path / root / "generated" / "sm_90a" / "op"
        folder.mkdir(parents=True)
        for name, text in modules.items():
            (folder / f"{name}.py").write_text(text)
    asked: list[list[str]] = []

    def compiled(root: Path, names: list[str]) -> dict[str, Any]:
        asked.append(names)
        ptx = {"op__named": PTX, "op__changed": PTX if root.name == "a" else PTX.replace("add", "sub")}
        return {name: {"ptx": ptx[name], "registers": 32, "spills": 0} for name in names}

    monkeypatch.setattr(script, "compiled", compiled)
    rows, count, changed = script.differences(tmp_path / "a", tmp_path / "b", "")
    assert asked == [["op__changed", "op__named"]] * 2
    assert (count, changed) == (4, 2)
    assert rows == [
        ("op__gone", "only in A", "", ""),
        ("op__changed", "PTX", "32 registers, 0 bytes spilled", "32 registers, 0 bytes spilled"),
    ]
