"""Torch ops, one module an operation.

Arguments that all ops share:
    executor: "cuda", "interpreter" or "emulator". CUDA tensors take "cuda" by default; CPU tensors need a
        name.
    variant: the id of the variant to run; by default the registry selects one.
    arch: the architecture whose variants run on the CPU, "sm_90a" by default; ignored on a GPU.
    workspace: a `Workspace` for launches that may overlap others; by default one per thread, device and
        stream.
"""

from ..kernels.gqa_forward.op import gqa_forward
from ..kernels.lightning_indexer.op import lightning_indexer, lightning_indexer_prefill
from ..kernels.merge_entries.op import merge_entries, merge_peer_entries
from ..kernels.merge_outputs.op import merge_outputs, merge_peer_outputs
from ..kernels.resample_trajectories.op import resample_trajectories
from ..kernels.sparse_mla.op import sparse_mla
from ..kernels.topk_selector.op import topk_selector
from ..kernels.window_ids.op import window_ids
from ._base import clear, preload, selections
from .workspace import Workspace

__all__ = [
    "Workspace",
    "clear",
    "gqa_forward",
    "lightning_indexer",
    "lightning_indexer_prefill",
    "merge_entries",
    "merge_outputs",
    "merge_peer_entries",
    "merge_peer_outputs",
    "preload",
    "resample_trajectories",
    "selections",
    "sparse_mla",
    "topk_selector",
    "window_ids",
]
