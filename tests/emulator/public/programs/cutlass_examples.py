"""CUTLASS's examples for CuTe DSL, each by its own main with its own reference, at sizes that take seconds.

The variable CUTLASS_EXAMPLES names the folder `examples/python/CuTeDSL` of a checkout of CUTLASS.
"""

import os
import runpy
import sys
from pathlib import Path

import torch

HOPPER, BLACKWELL, EXTENDED = "cute/hopper/kernel/", "cute/blackwell/kernel/", "cute_ext/blackwell/"
TUTORIAL, TMA, EFC = (
    "cute/blackwell/tutorial/tutorial_gemm/",
    "cute/blackwell/tutorial/tutorial_tma/",
    "cute/blackwell/efc/",
)
HALF = "--ab_dtype Float16 --c_dtype Float16"
PAIR = "--use_2cta_instrs --mma_tiler_mn 256,128 --cluster_shape_mn 2,1"
#: name -> (file, arguments of its command line)
CALLS = {
    # Ampere's instructions, run on Hopper
    "ampere_elementwise_add":
        ("cute/ampere/kernel/elementwise/elementwise_add.py",
         "--M 64 --N 256 --iterations 1 --warmup_iterations 0"),
    "ampere_elementwise_apply":
        ("cute/ampere/kernel/elementwise/elementwise_apply.py",
         "--M 64 --N 256 --op add --iterations 1 --warmup_iterations 0"),
    "ampere_sgemm":
        ("cute/ampere/kernel/dense_gemm/sgemm.py", "--mnk 128,128,32 --iterations 1 --warmup_iterations 0"),
    "ampere_tensorop_gemm":
        ("cute/ampere/kernel/dense_gemm/tensorop_gemm.py",
         "--mnkl 128,128,128,1 --iterations 1 --warmup_iterations 0"),
    "ampere_flash_attention":
        ("cute/ampere/kernel/attention/flash_attention_v2.py",
         "--batch_size 1 --seqlen_q 128 --seqlen_k 256 --num_head 1 --head_dim 64 --iterations 1 "
         "--warmup_iterations 0"),
    "ampere_flash_attention_causal":
        ("cute/ampere/kernel/attention/flash_attention_v2.py",
         "--batch_size 1 --seqlen_q 256 --seqlen_k 256 --num_head 1 --head_dim 64 --is_causal --iterations "
         "1 --warmup_iterations 0"),
    "ampere_hstu_attention":
        ("cute/ampere/kernel/attention/hstu_attention.py",
         "--batch_size 1 --seqlen_q 128 --seqlen_kv 128 --num_head 1 --head_dim 64 --is_causal"),
    # Hopper
    "hopper_dense_gemm": (HOPPER + "dense_gemm/dense_gemm.py", "--mnkl 256,256,192,1"),
    "hopper_dense_gemm_multicast":
        (HOPPER + "dense_gemm/dense_gemm.py", "--mnkl 256,256,192,1 --cluster_shape_mn 2,1"),
    "hopper_dense_gemm_fp8":
        (HOPPER + "dense_gemm/dense_gemm.py",
         "--mnkl 256,128,256,1 --a_dtype Float8E4M3FN --b_dtype Float8E4M3FN"),
    "hopper_dense_gemm_persistent": (HOPPER + "dense_gemm/dense_gemm_persistent.py", "--mnkl 256,384,192,1"),
    "hopper_dense_gemm_persistent_multicast":
        (HOPPER + "dense_gemm/dense_gemm_persistent.py", "--mnkl 512,256,192,1 --cluster_shape_mn 2,1"),
    "hopper_dense_gemm_fp8_2xacc": (HOPPER + "dense_gemm/dense_gemm_fp8_2xacc.py", "--mnkl 256,256,512,1"),
    "hopper_dense_gemm_fp8_gelu":
        (HOPPER + "dense_gemm/dense_gemm_fp8_gelu_persistent.py", "--mnkl 256,256,256,1"),
    "hopper_grouped_gemm":
        (HOPPER + "grouped_gemm/grouped_gemm.py",
         "--num_groups 2 --problem_sizes_mnkl (128,128,128,1),(128,256,64,1) --iterations 0"),
    "hopper_grouped_gemm_gmem":
        (HOPPER + "grouped_gemm/grouped_gemm.py",
         "--num_groups 2 --problem_sizes_mnkl (128,128,128,1),(128,256,64,1) --tensormap_update_mode GMEM "
         "--iterations 0"),
    "hopper_fmha": (HOPPER + "attention/fmha.py", "--q_shape 1,128,2,128 --k_shape 1,256,2,128"),
    "hopper_fmha_causal":
        (HOPPER + "attention/fmha.py",
         "--q_shape 1,256,1,64 --k_shape 1,256,1,64 --is_causal --is_persistent"),
    "hopper_cta_norm_layer": (HOPPER + "cta_norm/cta_norm.py", "--M 8 --N 1024"),
    "hopper_cta_norm_rms": (HOPPER + "cta_norm/cta_norm.py", "--M 8 --N 1024 --norm_type rms"),
    # Blackwell: dense GEMMs
    "dense_gemm": (BLACKWELL + "dense_gemm/dense_gemm.py", "--mnkl 256,256,256,1"),
    "dense_gemm_two_ctas":
        (BLACKWELL + "dense_gemm/dense_gemm.py", f"--mnkl 512,256,256,1 {HALF} {PAIR} --use_tma_store"),
    "dense_gemm_persistent":
        (BLACKWELL + "dense_gemm/dense_gemm_persistent.py", f"--mnkl 256,512,256,1 {HALF} --use_tma_store"),
    "dense_gemm_persistent_two_ctas":
        (BLACKWELL + "dense_gemm/dense_gemm_persistent.py",
         f"--mnkl 512,256,256,1 {HALF} {PAIR} --use_tma_store"),
    "dense_gemm_persistent_prefetch":
        (BLACKWELL + "dense_gemm/dense_gemm_persistent_prefetch.py",
         f"--mnkl 256,256,256,1 {HALF} --use_tma_store"),
    "dense_gemm_persistent_dynamic":
        (BLACKWELL + "dense_gemm/dense_gemm_persistent_dynamic.py",
         f"--mnkl 256,512,256,1 {HALF} --use_tma_store"),
    "dense_gemm_software_pipeline":
        (BLACKWELL + "dense_gemm/dense_gemm_software_pipeline.py",
         f"--mnkl 256,256,256,1 {HALF} {PAIR} --use_tma_store"),
    "dense_gemm_alpha_beta":
        (BLACKWELL + "dense_gemm/dense_gemm_alpha_beta_persistent.py",
         "--mnkl 256,256,256,1 --ab_dtype Float16 --c_dtype Float16 --d_dtype Float16 --alpha 2.0 "
          "--beta 0.5"),
    # Blackwell: scaled, grouped, mixed
    "blockscaled_gemm_nvfp4":
        (BLACKWELL + "blockscaled_gemm/dense_blockscaled_gemm_persistent.py", "--mnkl 256,256,512,1"),
    "blockscaled_gemm_mxfp8":
        (BLACKWELL + "blockscaled_gemm/dense_blockscaled_gemm_persistent.py",
         "--mnkl 256,256,512,1 --a_dtype Float8E4M3FN --b_dtype Float8E4M3FN --sf_dtype Float8E8M0FNU "
         "--sf_vec_size 32"),
    "blockscaled_gemm_two_ctas":
        (BLACKWELL + "blockscaled_gemm/dense_blockscaled_gemm_persistent.py",
         "--mnkl 512,256,512,1 --mma_tiler_mn 256,128 --cluster_shape_mn 2,1"),
    "blockscaled_gemm_amax":
        (BLACKWELL + "blockscaled_gemm/dense_blockscaled_gemm_persistent_amax.py", "--mnkl 256,256,256,1"),
    "blockscaled_gemm_prefetch":
        (BLACKWELL + "blockscaled_gemm/dense_blockscaled_gemm_persistent_prefetch.py",
         "--mnkl 256,256,512,1"),
    "blockscaled_grouped_gemm":
        (BLACKWELL + "blockscaled_grouped_gemm/grouped_blockscaled_gemm.py",
         "--num_groups 2 --problem_sizes_mnkl (128,128,256,1),(256,128,256,1)"),
    "blockwise_gemm": (BLACKWELL + "blockwise_gemm/blockwise_gemm.py", "--mnkl 256,256,512,1"),
    "blockwise_gemm_contiguous_groups":
        (BLACKWELL + "blockwise_gemm/contiguous_grouped_gemm.py", "--mnkl 256,256,256,2"),
    "blockwise_gemm_masked_groups":
        (BLACKWELL + "blockwise_gemm/masked_grouped_gemm.py", "--mnkl 256,256,256,2"),
    "grouped_gemm":
        (BLACKWELL + "grouped_gemm/grouped_gemm.py",
         "--num_groups 2 --problem_sizes_mnkl (128,128,128,1),(256,128,64,1)"),
    "grouped_gemm_gmem":
        (BLACKWELL + "grouped_gemm/grouped_gemm.py",
         "--num_groups 2 --problem_sizes_mnkl (128,128,128,1),(256,128,64,1) --tensormap_update_mode GMEM"),
    "mixed_input_gemm": (BLACKWELL + "mixed_input_gemm/mixed_input_gemm.py", "--mnkl 256,128,256,1"),
    "grouped_mixed_input_gemm":
        (BLACKWELL + "mixed_input_gemm/grouped_mixed_input_gemm.py", "--mnkl 256,128,256,2"),
    "grouped_mixed_input_gemm_acc_scale":
        (BLACKWELL + "mixed_input_gemm/grouped_mixed_input_gemm_acc_scale.py", "--mnkl 256,128,256,2"),
    "moe_grouped_mm":
        (BLACKWELL + "moe/torch_grouped_mm.py",
         "--tokens 64 --experts 2 --top_k_select 1 --hidden 128 --intermediate 128"),
    # Blackwell: attention, state space, norms
    "fmha": (BLACKWELL + "attention/fmha/fmha.py", "--q_shape 1,256,1,64 --k_shape 1,256,1,64"),
    "fmha_causal":
        (BLACKWELL + "attention/fmha/fmha.py",
         "--q_shape 1,256,2,128 --k_shape 1,256,1,128 --is_causal --is_persistent"),
    "fmha_bwd": (BLACKWELL + "attention/fmha/fmha_bwd.py", "--s_q 128 --s_k 128 --h_q 1 --h_k 1 --d 64"),
    "mla_decode_fp16": (BLACKWELL + "attention/mla/mla_decode_fp16.py", "--seq_len_k 256 --page_size 128"),
    "mla_decode_fp8": (BLACKWELL + "attention/mla/mla_decode_fp8.py", "--seq_len_k 256 --page_size 128"),
    "mamba2_ssd": (BLACKWELL + "attention/mamba2_ssd/mamba2_ssd.py", "--gbehcdln 2,2,2,2,2,64,128,128"),
    "mixed_input_fmha_decode":
        (BLACKWELL + "attention/mixed_input_fmha/mixed_input_fmha_decode.py",
         "--seqlen 256 --heads_q 8 --heads_k 1 --headdim 128 --block_scaledim 128"),
    "mixed_input_fmha_prefill_d256":
        (BLACKWELL + "attention/mixed_input_fmha/mixed_input_fmha_prefill_d256.py",
         "--q_shape 1,1,256,256 --k_shape 1,1,256,256"),
    "rmsnorm": (BLACKWELL + "rmsnorm/rmsnorm.py", "--M 8 --N 1024 --iterations 1 --warmup_iterations 0"),
    # Blackwell: custom epilogues, the extended API, tutorials
    "efc_custom": (EFC + "custom_epilogue_dense_gemm.py", "--mnkl 256,256,256,1"),
    "efc_activation": (EFC + "activation_custom_epilogue_dense_gemm.py", "--mnkl 256,256,256,1"),
    "efc_synthetic": (EFC + "synthetic_custom_epilogue_dense_gemm.py", "--mnkl 256,256,256,1"),
    "extended_memcpy": ("cute_ext/ampere/memcpy_simt_universal_copy.py", ""),
    "extended_dense_gemm": (EXTENDED + "dense_gemm.py", "--mnkl 256,256,256,1"),
    "extended_dense_gemm_ptr_array": (EXTENDED + "dense_gemm_ptr_array.py", "--mnkl 128,128,128,4"),
    "extended_dense_gemm_two_ctas": (EXTENDED + "dense_gemm_2sm.py", ""),
    "extended_dense_gemm_pipeline": (EXTENDED + "dense_gemm_cute_pipeline.py", "--mnkl 256,256,256,1"),
    "extended_block_scaled_gemm": (EXTENDED + "dense_block_scaled_gemm.py", "--mnkl 256,256,256,1"),
    "tutorial_gemm_0": (TUTORIAL + "fp16_gemm_0.py", "--mnk 256,256,256"),
    "tutorial_gemm_1": (TUTORIAL + "fp16_gemm_1.py", "--mnk 256,256,256"),
    "tutorial_gemm_2": (TUTORIAL + "fp16_gemm_2.py", "--mnk 256,256,256"),
    "tutorial_gemm_3": (TUTORIAL + "fp16_gemm_3.py", "--mnk 512,512,256"),
    "tutorial_gemm_3_1": (TUTORIAL + "fp16_gemm_3_1.py", "--mnk 512,512,256"),
    "tutorial_gemm_4": (TUTORIAL + "fp16_gemm_4.py", "--mnk 512,512,256"),
    "tutorial_gemm_5": (TUTORIAL + "fp16_gemm_5.py", "--mnk 512,512,256"),
    "tutorial_gemm_6": (TUTORIAL + "fp16_gemm_6.py", "--mnk 256,512,128"),
    "tutorial_nvfp4_gemm_0": (TUTORIAL + "nvfp4_gemm_0.py", "--mnkl 256,256,256,1"),
    "tutorial_nvfp4_gemm_1": (TUTORIAL + "nvfp4_gemm_1.py", "--mnkl 256,256,256,1"),
    "tutorial_tma_0": (TMA + "tma_v0.py", "--M 256 --N 128 --num_warmup 0 --num_iters 1"),
    "tutorial_tma_1": (TMA + "tma_v1.py", "--M 128 --N 256 --num_warmup 0 --num_iters 1"),
    "tutorial_tma_2": (TMA + "tma_v2.py", "--M 256 --N 128 --num_warmup 0 --num_iters 1"),
}  # fmt: skip
#: examples of single instructions: folder of `experimental/primitives` -> names
PRIMITIVES = {
    "": "async_pipeline bar_warp_sync barrier_cta_red barrier_cta_sync basic_types cp_async_bulk "
    "cp_async_bulk_prefetch "
    "cp_async_mbarrier_arrive_cluster cp_async_mbarrier_arrive_cta cp_async_shared_global "
    "cp_async_shared_global_swizzled "
    "elect_sync ldmatrix_stmatrix mapa mbarrier mbarrier_lifecycle pipeline_software_fill red redux_sync "
    "shfl_sync vote_sync "
    "warp_named_barrier",
    "reduction": (
        "block_smem_reduce cluster_smem_reduce cluster_tmem_reduce thread_vector_reduce warp_vector_reduce"
    ),
    "tcgen05": "1cta_mma_a_from_tmem 1cta_mma_basic 1cta_mma_mn_major 1cta_mma_pipeline 2cta_mma_basic "
    "2cta_mma_blockscale_m128 "
    "2cta_mma_tma_store clusterMxN_2cta_mma mcast_clusterMxN_1cta_mma mcast_clusterMxN_2cta_mma "
    "slicek_m32n8k128 tmem_ld_st "
    "tmem_ld_to_stmatrix_transpose",
    "tma": "tma_1cta_mbarrier tma_load_store tma_load_to_ldmatrix tma_multicast tma_pipeline_count2 "
    "tma_pipeline_pingpong "
    "tma_pipeline_single_warp tma_pipeline_warpspec tma_store tma_swizzle_modes tma_tensormap_replace",
    "tutorial": "06_softmax 10_minimal_tensor_mma_fp8 gemm_M128_N128_Kany_TN_warpspec_multistage",
}
CALLS |= {
    f"primitive_{name}": (f"experimental/primitives/{folder}/{name}.py", "")
    for folder, names in PRIMITIVES.items()
    for name in names.split()
}


#: the values of e2m1 by their four bits
E2M1 = torch.tensor([s * x for s in (1.0, -1.0) for x in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)])


def values(x):
    """The rows of a matrix of 8-bit floats, or of 4-bit floats in pairs, in float32."""
    if x.dtype is not torch.float4_e2m1fn_x2:
        return x.float()
    codes = x.view(torch.uint8)
    return E2M1[torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2).long()]


def factors(scales, rows, columns):
    """The scale factors of a matrix, from their order in tensor memory: 128 rows of 4."""
    tall, wide = -(-rows // 128), -(-columns // 4)
    blocks = scales.float().view(tall, wide, 32, 4, 4).transpose(2, 3).reshape(tall, wide, 128, 4)
    return blocks.permute(0, 2, 1, 3).reshape(tall * 128, wide * 4)[:rows, :columns]


def scaled_mm(a, b, scale_a, scale_b, bias=None, out_dtype=None):
    """torch's product of block-scaled matrices, some examples' reference, which torch has for CUDA only."""
    block = 32 if scale_a.dtype is torch.float8_e8m0fnu else 16
    a, b = values(a), values(b.transpose(0, 1))
    a, b = (
        x * factors(s, x.shape[0], x.shape[1] // block).repeat_interleave(block, 1)
        for x, s in ((a, scale_a), (b, scale_b))
    )
    return (a @ b.T).to(out_dtype)


def main():
    torch.manual_seed(0)
    torch._scaled_mm = scaled_mm
    file, arguments = CALLS[sys.argv[1]]
    path = Path(os.environ["CUTLASS_EXAMPLES"]) / file
    sys.argv = [str(path), *arguments.split()]
    sys.path.insert(0, str(path.parent))
    runpy.run_path(str(path), run_name="__main__")


if __name__ == "__main__":
    main()
