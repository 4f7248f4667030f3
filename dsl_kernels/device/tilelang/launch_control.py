"""Cluster launch control: a CTA takes over the work of a CTA that has not started."""

import tilelang.language as T

# The fence orders this read before the next answer, which the asynchronous proxy writes.
SOURCE = r"""
namespace launch_control {
__device__ __forceinline__ unsigned place(const void* pointer) { return unsigned(__cvta_generic_to_shared(pointer)); }
__device__ __forceinline__ void ask(const void* target, const void* barrier) {
  if (cute::elect_one_sync())
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%1], 16;\n"
                 "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%0], [%1];"
                 :: "r"(place(target)), "r"(place(barrier)) : "memory");
}
__device__ __forceinline__ int answer(const void* source) {
  int found;
  asm volatile("{ .reg .b128 answer;\n.reg .pred given;\nld.shared.b128 answer, [%1]; fence.proxy.async.shared::cta;\n"
               "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 given, answer;\nmov.b32 %0, -1;\n"
               "@given clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %0, answer; }"
               : "=r"(found) : "r"(place(source)) : "memory");
  return found;
}
}  // namespace launch_control
"""  # noqa: E501


def ask(target, slot, barrier):
    """Ask for a CTA; 16 bytes arrive at `target` and count at the barrier. A whole warp calls it."""
    return T.call_extern(
        "handle", "launch_control::ask", T.address_of(target[slot, 0]), T.address_of(barrier)
    )


def answer(source, slot):
    """The number of the CTA that an answer gives, or -1."""
    return T.call_extern("int32", "launch_control::answer", T.address_of(source[slot, 0]))
