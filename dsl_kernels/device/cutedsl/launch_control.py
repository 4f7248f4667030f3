"""Cluster launch control: a CTA takes over the work of a CTA that has not started."""

import cutlass.cute as cute
from cutlass import Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

# The fence orders this read before the next answer, which the asynchronous proxy writes.
ANSWER = (
    "{ .reg .b128 answer;\n.reg .pred given;\nld.shared.b128 answer, [$1]; fence.proxy.async.shared::cta;\n"
    "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 given, answer;\nmov.b32 $0, -1;\n"
    "@given clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 $0, answer; }"
)


@dsl_user_op
def _ask(target, barrier, *, loc=None, ip=None):
    text = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [$0], [$1];"
    values = [value.ir_value(loc=loc, ip=ip) for value in (target, barrier)]
    llvm.inline_asm(None, values, text, "r,r,~{memory}", has_side_effects=True, loc=loc, ip=ip)


@dsl_user_op
def _answer(source, *, loc=None, ip=None):
    values = [source.ir_value(loc=loc, ip=ip)]
    return Int32(
        llvm.inline_asm(T.i32(), values, ANSWER, "=r,r,~{memory}", has_side_effects=True, loc=loc, ip=ip)
    )


def ask(target, barrier):
    """Ask for a CTA; 16 bytes arrive at `target` and count at the barrier. A whole warp calls it."""
    with cute.arch.elect_one():
        _ask(Int32(target.toint()), Int32(barrier.toint()))


def answer(source):
    """The number of the CTA that an answer gives, or -1."""
    return _answer(Int32(source.toint()))
