"""Torch ops, one module an operation.

Arguments they share:
    executor: "cuda", "interpreter" or "emulator". By default cuda for CUDA tensors; CPU tensors need a name.
    variant: id of the variant to run; by default the registry selects.
    arch: architecture whose variants run off the GPU, sm_90a by default; ignored on a GPU.
    workspace: a `Workspace` for launches that may overlap others; by default one per thread, device and stream.
"""

from ._base import clear, preload, selections
from .gqa_forward import gqa_forward
from .lightning_indexer import lightning_indexer, lightning_indexer_prefill
from .merge_entries import merge_entries
from .merge_outputs import merge_outputs
from .resample_trajectories import resample_trajectories
from .sparse_mla import sparse_mla
from .topk_selector import topk_selector
from .window_ids import window_ids
from .workspace import Workspace

__all__ = [
    "Workspace",
    "clear",
    "gqa_forward",
    "lightning_indexer",
    "lightning_indexer_prefill",
    "merge_entries",
    "merge_outputs",
    "preload",
    "resample_trajectories",
    "selections",
    "sparse_mla",
    "topk_selector",
    "window_ids",
]
