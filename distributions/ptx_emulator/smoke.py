"""Whether an installed wheel works: one kernel under three interleavings, right and then out of bounds."""

import numpy as np

import ptx_emulator
from ptx_emulator import EmulatorError, PtxEmulatorError, interleavings, launch, launch_each

SCALE = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p0)
{
.reg .b32 %r<2>;
.reg .f32 %f<2>;
.reg .b64 %d<3>;
mov.u32 %r1, %tid.x;
mul.wide.u32 %d1, %r1, 4;
ld.param.u64 %d2, [p0];
add.u64 %d2, %d2, %d1;
ld.global.f32 %f1, [%d2];
add.f32 %f1, %f1, %f1;
st.global.f32 [%d2], %f1;
ret;
}
"""


def main() -> None:
    if not ptx_emulator.build.PREBUILT.is_file():
        raise SystemExit("the wheel has no core")
    x = np.arange(32, dtype=np.float32)
    for report in launch_each(SCALE, 1, 32, [x], interleavings=interleavings(3)):
        if not report.ok or not np.array_equal(x, 2 * np.arange(32)):
            raise SystemExit(f"wrong: {report}\n{x}")
    try:
        launch(SCALE, 1, 64, [x])
    except EmulatorError as error:
        if error.finding.code != "out-of-bounds-global" or not isinstance(error, PtxEmulatorError):
            raise
    else:
        raise SystemExit("an access out of bounds was not seen")


if __name__ == "__main__":
    main()
