// placeholder
#include "operand.hpp"
namespace emu {
Flow Exec::wgmma() { unsupported("wgmma"); }
Flow Exec::tcgen() { unsupported("tcgen05"); }
}
