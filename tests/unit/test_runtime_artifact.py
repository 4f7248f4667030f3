"""meta.json: round trip, hashes, and refusal of anything that a launcher could not trust."""

import importlib
import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from dsl_kernels.errors import ArtifactError
from dsl_kernels.runtime import sources
from dsl_kernels.runtime.artifact import META, Artifact, Operand, Param, Resources, TensorMap, read


def example(**changes):
    values = {
        "variant": "scale__tilelang_sm90a__t",
        "backend": "tilelang",
        "arch": "sm_90a",
        "entry": "scale__tilelang_sm90a__t_kernel",
        "operands": (
            Operand("x", "tensor", "bfloat16", ("n", "64"), ("x_stride", "1")),
            Operand("y", "tensor", "float32", ("n", "64"), None, written=True),
            Operand("scale", "scalar", "float32"),
        ),
        "params": (
            Param("x_desc", "tensormap", "x_desc"),
            Param("y", "pointer", "y"),
            Param("n", "int32", "n"),
            Param("scale", "float32", "scale"),
        ),
        "dims": {"n": ("x", "shape", 0), "x_stride": ("x", "stride", 0)},
        "grid": ("(n + 127) // 128", "1", "1"),
        "block": (128, 1, 1),
        "cluster": (1, 1, 1),
        "dynamic_smem": 65536,
        "cooperative": False,
        "programmatic_launch": False,
        "tensor_maps": (
            TensorMap(
                "x_desc", "x", "BFLOAT16", ("64", "n"), ("x_stride * 2",), (64, 128), (1, 1), swizzle="128B"
            ),
        ),
        "resources": Resources(32, 0, 0, 0, 1, 0, 65536, 0),
        "evidence": {"UTMALDG": 1},
        "toolchain": {"tilelang": "0.1.15"},
    }
    return Artifact(**{**values, **changes})


def test_round_trip_is_exact():
    artifact = example()
    assert Artifact.from_json(artifact.to_json()) == artifact
    assert Artifact.from_json(artifact.to_json()).to_json() == artifact.to_json()
    assert artifact.op == "scale" and artifact.scalars == ("scale",)


def test_seal_and_read_verify_hashes(tmp_path):
    (tmp_path / "kernel.ptx").write_text("ptx")
    (tmp_path / "kernel.cubin").write_bytes(b"cubin")
    sealed = example().seal(tmp_path)
    assert sorted(sealed.files) == ["kernel.cubin", "kernel.ptx"]
    assert read(tmp_path) == sealed

    (tmp_path / "kernel.cubin").write_bytes(b"cubiN")
    with pytest.raises(ArtifactError, match=r"kernel\.cubin.*SHA-256"):
        read(tmp_path)
    assert read(tmp_path, verify=False) == sealed

    (tmp_path / "kernel.cubin").unlink()
    with pytest.raises(ArtifactError, match="no such file"):
        read(tmp_path)


def test_missing_folder_is_an_artifact_error(tmp_path):
    with pytest.raises(ArtifactError, match=r"meta\.json"):
        read(tmp_path / "absent")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 99}, "schema 1"),
        ({"grid": ["missing_dim", "1", "1"]}, "missing_dim"),
        ({"grid": ["__import__('os').getpid()", "1", "1"]}, "expression"),
        ({"block": [0, 1, 1]}, "positive block"),
        ({"dynamic_smem": -1}, "dynamic shared memory"),
        ({"params": [{"name": "p", "kind": "pointer", "source": "nobody"}]}, "source of kind pointer"),
        ({"params": [{"name": "p", "kind": "quaternion", "source": "n"}]}, "parameter kind"),
        ({"params": [{"name": "p", "kind": "int32"}]}, "fields"),
        ({"dims": {"n": ["scale", "shape", 0]}}, "source for dim n"),
        ({"resources": {"registers": 1}}, "fields"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_untrustworthy_meta_is_refused(tmp_path, change, message):
    raw = json.loads(example().to_json())
    (tmp_path / META).write_text(json.dumps({**raw, **change}))
    with pytest.raises(ArtifactError, match=message):
        read(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 1}'])
def test_text_that_is_no_artifact_is_refused(tmp_path, text):
    (tmp_path / META).write_text(text)
    with pytest.raises(ArtifactError):
        read(tmp_path)


def test_tensor_map_must_have_matching_rank():
    bad = TensorMap("x_desc", "x", "BFLOAT16", ("64", "n"), (), (64, 128), (1, 1))
    with pytest.raises(ArtifactError, match="one to five dimensions"):
        example(tensor_maps=(bad,))


def test_modules_that_another_thread_imports_meanwhile_do_not_matter(monkeypatch, tmp_path: Path) -> None:
    """Whether a module is a helper is asked between two steps of the loop, and here changes the table."""
    (path := tmp_path / "module.py").write_text("x = 1\n")
    numbers = itertools.count()

    def asked(place, dsl=None):
        sys.modules[f"imported_meanwhile_{next(numbers)}"] = SimpleNamespace()
        sys.modules.pop("dsl_kernels.device.tilelang.gone", None)
        return place == ("device", "tilelang", "gone")

    monkeypatch.setattr(sources, "is_helper", asked)
    with mock.patch.dict(sys.modules):
        sys.modules["dsl_kernels.device.tilelang.gone"] = SimpleNamespace(__file__=str(path))
        assert sources.load("module_of_a_test", path).x == 1


def test_what_programs_hold_of_leaves_is_imported_once(monkeypatch, tmp_path: Path) -> None:
    """A changed helper is imported again, but programs keep the leaf objects that others know."""
    names = (
        "device.torch.fragment",
        "kernels.lightning_indexer.functions",
        "kernels.lightning_indexer.leaves.walk",
    )
    modules = {name: importlib.import_module(f"dsl_kernels.{name}") for name in names}
    (tmp_path / "module.py").write_text("x = 1\n")
    (changed := tmp_path / "grid.py").write_text("y = 2\n")
    monkeypatch.setattr(sources, "_loaded", {})
    with mock.patch.dict(sys.modules):
        for name in (helpers := ("device.tilelang.grid", "kernels.lightning_indexer.tilelang_sm90")):
            sys.modules[f"dsl_kernels.{name}"] = SimpleNamespace(__file__=str(changed))
        sources.load("module_of_a_test", tmp_path / "module.py")
        assert not {f"dsl_kernels.{name}" for name in helpers} & sys.modules.keys()
        for name, module in modules.items():
            assert importlib.import_module(f"dsl_kernels.{name}") is module
