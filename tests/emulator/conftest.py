"""Optionally run the probes on a GPU instead of in the emulator: see hardware.py."""

import os

import pytest

PROBES = ("test_alu", "test_tma", "test_tensor_core")
#: in other modules, the tests that only check results
RESULTS = {
    "test_im2col": (
        "test_columns_make_a_convolution",
        "test_a_column_begins_anywhere_in_the_box",
        "test_a_mask_follows_the_offsets",
        "test_what_lies_outside_is_filled_with_nan",
        "test_a_store_goes_through_the_box_too",
    ),
    "test_sparse": (
        "test_mma_multiplies_by_the_dense_matrix",
        "test_wgmma_multiplies_by_the_dense_matrix",
        "test_sums_of_integers_saturate_where_it_is_asked_for",
        "test_rows_of_b_that_no_element_meets_are_not_read",
    ),
}


@pytest.fixture(autouse=True)
def _hardware(request, monkeypatch):
    if os.environ.get("EMULATOR_TESTS_ON_HARDWARE") != "1":
        return
    module = request.module.__name__.rsplit(".", 1)[-1]
    checks = module not in PROBES or "report" in request.node.name or "checked" in request.node.name
    if checks and request.node.originalname not in RESULTS.get(module, ()):
        pytest.skip("a test of the emulator's checks")
    from . import hardware

    monkeypatch.setattr(request.module, "launch", hardware.launch)
