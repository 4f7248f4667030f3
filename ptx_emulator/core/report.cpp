// Findings, the text of a deadlock, the report, and the C interface.
#include "machine.hpp"

#include <cstdio>
#include <type_traits>

namespace emu {

// Builds a text. Not std::ostream: its facets are found by ids of libstdc++, and a process with torch may
// hold two.
struct Text {
  std::string said;
  Text& operator<<(const std::string& s) { return said += s, *this; }
  Text& operator<<(const char* s) { return said += s, *this; }
  template <class T, class = std::enable_if_t<std::is_integral_v<T>>>
  Text& operator<<(T number) { return said += std::to_string(number), *this; }
};

static const char* OP_NAMES[] = {
#define OP(name, ...) #name,
#include "ptx_opcodes.h"
#undef OP
};
static const char* OP_PIPES[] = {
#define OP(name, pipe, ...) #pipe,
#include "ptx_opcodes.h"
#undef OP
};

std::string hex(u64 v) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%llx", static_cast<unsigned long long>(v));
  return std::string("0x") + digits;
}

std::string json_escape(const std::string& s) {
  std::string o;
  for (char c : s) {
    if (c == '"' || c == '\\') o += '\\', o += c;
    else if (c == '\n') o += "\\n";
    else if (u8(c) < 32) o += ' ';
    else o += c;
  }
  return o;
}

void Machine::find(const char* code, bool error, const Warp* w, int pc, const std::string& msg,
                   const Event* other) {
  int other_warp = -1, other_pc = -1, other_cta = -1;
  if (other && other->pc >= 0) {
    other_pc = other->pc;
    if (w) {
      size_t per_cta = w->cta->warps.size() * P_COUNT;
      if (other->actor < w->cta->cluster->slots_first) {
        other_warp = int(other->actor % per_cta / P_COUNT);
        if (size_t rank = other->actor / per_cta;
            other->cluster == w->cta->cluster->index && rank < w->cta->cluster->ctas.size())
          other_cta = w->cta->cluster->ctas[rank]->linear;
      }
    }
  }
  std::string key =
      std::string(code) + ":" + std::to_string(pc) + (error ? ":" + std::to_string(other_pc) : "");
  if (seen[key]++) return;
  // An error is always kept; max_findings bounds the warnings.
  if (error || warnings < cfg.max_findings) {
    findings.push_back(
        {code, msg, error, w ? w->cta->linear : -1, w ? w->index : -1, pc, other_warp, other_pc, other_cta});
  }
  (error ? errors : warnings)++;
  if (error && cfg.stop_first) throw Stop{code};
}

void Machine::fatal(const char* code, const Warp* w, int pc, const std::string& msg) {
  find(code, true, w, pc, msg);
  throw Stop{code};
}

Access Machine::access(Warp& w, int pc, u8 flags) {
  Access a;
  a.clock = &w.clock;
  a.event = shadows.event(w.cta->cluster->index, w.actor, w.clock.hb[w.actor], pc, flags);
  return a;
}

Access Machine::async_access(Warp& w, u32 actor, u32 clk, int pc, const Clock& at, u8 flags) {
  Access a;
  a.clock = &at;
  a.event = shadows.event(w.cta->cluster->index, actor, clk, pc, flags);
  a.async = flags & EV_ASYNC;
  return a;
}

// Nothing can run: report which warps wait for what, and which arrived in the previous phase but not in this
// one.
void Machine::deadlock() {
  Text s;
  const Warp* first = nullptr;
  int first_pc = -1, lines = 0;
  s << "no warp can run and nothing asynchronous is in flight";
  for (auto& cl : active)
    for (auto& c : cl->ctas)
      for (auto& w : c->warps)
        for (auto& g : w.groups) {
          if (++lines > 48) continue;
          s << "\n  warp " << w.index << " of CTA " << c->linear << " @pc" << g.pc << "@ ";
          if (!first) first = &w, first_pc = g.pc;
          if (g.wait.kind == WaitKind::bar || g.wait.kind == WaitKind::mbar) {
            if (first_pc < 0 || first->groups[0].wait.kind == WaitKind::converge) first = &w, first_pc = g.pc;
          }
          switch (g.wait.kind) {
            case WaitKind::none: s << "is runnable (it spins without effect), lanes " << hex(g.mask); break;
            case WaitKind::converge:
              s << "waits for lanes " << hex(g.wait.a & ~g.mask) << " to reach the same instruction";
              break;
            case WaitKind::bar: {
              Named& b = c->bars[g.wait.a];
              s << "waits at barrier " << g.wait.a << ": " << b.arrived << " of "
                << (b.expected ? std::to_string(b.expected) : std::string("all"))
                << " threads arrived (warps";
              for (auto& [wi, pc] : b.who) s << " " << wi;
              s << ")";
              break;
            }
            case WaitKind::mbar: {
              MBar& b = cl->ctas[g.wait.a >> 32]->mbars[u32(g.wait.a)];
              s << "waits for the mbarrier at shared offset " << u32(g.wait.a) << " (initialised @pc"
                << b.init_pc << "@), parity " << g.wait.c << ": phase " << b.phase
                << " is incomplete, pending " << b.pending << " of " << b.expected << " arrivals, " << b.tx
                << " transaction bytes";
              if (!b.arrived.empty()) {
                s << "; arrived so far:";
                for (auto& [wi, pc] : b.arrived) s << " warp " << wi % 1000 << " @pc" << pc << "@";
              }
              bool missing = false;
              for (auto& x : b.arrived_last)
                if (!b.arrived.count(x)) {
                  s << (missing ? "," : "; arrived in the phase before but not in this one:") << " warp "
                    << x.first % 1000 << " @pc" << x.second << "@";
                  missing = true;
                }
              break;
            }
            case WaitKind::bulk: s << "waits for bulk groups"; break;
            case WaitKind::cp_async: s << "waits for cp.async groups"; break;
            case WaitKind::wgmma: s << "waits for wgmma groups"; break;
            case WaitKind::alloc: s << "waits for TMEM columns to become free"; break;
            case WaitKind::registers:
              s << "waits in setmaxnreg.inc for " << g.wait.a << " registers; " << c->register_pool
                << " are free of what the CTA got at launch";
              break;
            case WaitKind::pair:
              s << "waits for the other CTA of the pair to execute the same tcgen05 instruction";
              break;
            case WaitKind::cluster: s << "waits at the cluster barrier"; break;
          }
        }
  if (lines > 48) s << "\n  ... and " << lines - 48 << " more";
  fatal("deadlock", first, first_pc, s.said);
}

// PTX ISA: all tcgen05 instructions of a kernel have the same .cta_group, whether or not they run.
void Machine::one_cta_group() {
  int first = -1;
  for (int pc = 0; pc < prog.size; pc++) {
    const Instr& i = prog.code[pc];
    switch (i.op) {
      case OP_tc_alloc: case OP_tc_dealloc: case OP_tc_relinquish: case OP_tc_mma: case OP_tc_cp:
      case OP_tc_commit:
        break;
      default: continue;
    }
    if (first < 0) first = pc;
    if (i.m[0] == prog.code[first].m[0]) continue;
    find("mixed-cta-groups", true, nullptr, pc,
         "cta_group::" + std::to_string(i.m[0]) + " in a kernel whose first tcgen05 instruction @pc" +
             std::to_string(first) + "@ has cta_group::" + std::to_string(prog.code[first].m[0]) +
             "; all of one kernel must have the same");
    return;
  }
}

std::string Machine::run() {
  std::string status = "ok";
  try {
    one_cta_group();
    loop();
    for (auto& cl : active) finish_cluster(*cl);
  } catch (const Stop& s) {
    status = "stopped";
    for (auto& cl : active) {
      note_barriers(*cl);
      for (auto& c : cl->ctas)
        for (auto& w : c->warps) {
          Counters& t = warp_totals[size_t(w.index)];
          t.instructions += w.count.instructions, t.barrier_waits += w.count.barrier_waits,
              t.spins += w.count.spins;
          for (int i = 0; i < OP_COUNT; i++) t.by_op[i] += w.count.by_op[i];
        }
    }
  } catch (const std::exception& e) {
    status = "internal";
    findings.push_back({"internal-error", std::string("the emulator itself failed: ") + e.what(), true, -1,
                        -1, -1, -1, -1, -1});
    errors++;
  }
  return report_json(status);
}

std::string Machine::report_json(const std::string& status) {
  Text s;
  s << "{\"status\":\"" << status << "\",\"instructions\":" << executed - retries << ",\"errors\":" << errors
    << ",\"warnings\":" << warnings << ",\"findings\":[";
  for (size_t i = 0; i < findings.size(); i++) {
    auto& f = findings[i];
    std::string key = f.code + ":" + std::to_string(f.pc) + (f.error ? ":" + std::to_string(f.other_pc) : "");
    s << (i ? "," : "") << "{\"code\":\"" << f.code << "\",\"error\":" << (f.error ? "true" : "false")
      << ",\"message\":\"" << json_escape(f.message) << "\",\"cta\":" << f.cta << ",\"warp\":" << f.warp
      << ",\"pc\":" << f.pc << ",\"other_warp\":" << f.other_warp << ",\"other_pc\":" << f.other_pc
      << ",\"other_cta\":" << f.other_cta << ",\"times\":" << std::max(seen[key], 1) << "}";
  }
  s << "],\"warps\":[";
  for (size_t i = 0; i < warp_totals.size(); i++) {
    auto& t = warp_totals[i];
    s << (i ? "," : "") << "{\"instructions\":" << t.instructions << ",\"barrier_waits\":" << t.barrier_waits
      << ",\"spins\":" << t.spins << ",\"ops\":{";
    bool comma = false;
    for (int k = 0; k < OP_COUNT; k++)
      if (t.by_op[k]) {
        s << (comma ? "," : "") << "\"" << OP_NAMES[k] << "\":" << t.by_op[k];
        comma = true;
      }
    s << "}}";
  }
  std::map<std::string, u64> pipes;
  for (auto& t : warp_totals)
    for (int k = 0; k < OP_COUNT; k++)
      if (t.by_op[k]) pipes[OP_PIPES[k]] += t.by_op[k];
  s << "],\"pipes\":{";
  bool comma = false;
  for (auto& [k, v] : pipes) {
    s << (comma ? "," : "") << "\"" << k << "\":" << v;
    comma = true;
  }
  s << "},\"stats\":{\"global_read\":" << stats.global_read << ",\"global_written\":" << stats.global_written
    << ",\"global_sectors\":" << stats.global_sectors << ",\"shared_read\":" << stats.shared_read
    << ",\"shared_written\":" << stats.shared_written << ",\"async_read\":" << stats.async_read
    << ",\"async_written\":" << stats.async_written << ",\"tmem_read\":" << stats.tmem_read
    << ",\"tmem_written\":" << stats.tmem_written << ",\"bank_conflicts\":" << stats.bank_conflicts
    << ",\"shared_accesses\":" << stats.shared_accesses << ",\"mma_flops\":" << stats.mma_flops
    << ",\"async_ops\":" << stats.async_ops << "},\"choices\":[";
  for (size_t i = 0; i < choice_log.size(); i++) s << (i ? "," : "") << choice_log[i];
  s << "],\"trace\":[";
  for (size_t i = 0; i < trace.size(); i++)
    s << (i ? "," : "") << "[" << trace[i].cta << "," << trace[i].warp << "," << trace[i].pc << ","
      << trace[i].async << "]";
  s << "],\"visits\":[";
  for (size_t i = 0; i < reached.visits.size(); i++) s << (i ? "," : "") << reached.visits[i];
  s << "],\"ways\":[";
  for (size_t i = 0; i < reached.ways.size(); i++) s << (i ? "," : "") << int(reached.ways[i]);
  s << "],\"barriers\":[";
  comma = false;
  for (auto& [key, b] : reached.barriers) {
    s << (comma ? "," : "") << "[" << key[0] << "," << key[1] << "," << key[2] << "," << b.expected << ","
      << b.phases << "," << b.awaited << "]";
    comma = true;
  }
  s << "]}";
  return s.said;
}

// Is every index in the program within its bounds?
static bool well_formed(const Program& p, const Config& cfg, s64 operand_count, s64 target_count) {
  auto below = [](s64 i, s64 end) { return i >= 0 && i < end; };
  for (s64 i = 0; i < p.size; i++) {
    const Instr& in = p.code[i];
    if (!below(in.op, OP_COUNT) || !below(in.ty, TY_COUNT) || !below(in.ty2, TY_COUNT)) return false;
    if (in.guard >= cfg.registers || in.count < 0 || !below(in.first, operand_count + 1) ||
        in.count > operand_count - in.first)
      return false;
    if (in.op == OP_bra && !below(in.m[0], p.size + 1)) return false;
    if (in.op == OP_brx && (!below(in.m[0], target_count) || !below(in.m[1], target_count - in.m[0] + 1)))
      return false;
    for (s64 k = 0; k < in.count; k++) {
      const Operand& x = p.ops(in)[k];
      bool slot = x.kind == K_REG || x.kind == K_NOTPRED || x.kind == K_ADDR32 || x.kind == K_ADDR64;
      if (slot && !below(x.a, cfg.registers)) return false;
    }
  }
  for (s64 i = 0; i < target_count; i++)
    if (!below(p.targets[i], p.size + 1)) return false;
  return p.size > 0 && cfg.registers >= SR_COUNT && below(cfg.smem_end, 1 << RANK_SHIFT) &&
         cfg.local_bytes >= 0;
}

}  // namespace emu

extern "C" {

// Run one launch. Returns the report as JSON, to be released with emu_free; or null when the program or the
// configuration is malformed, or when memory runs out. No exception crosses this interface.
char* emu_launch(const int64_t* config, int64_t config_len, const int64_t* code, int64_t code_len,
                 const int64_t* operands, int64_t operand_count, const int64_t* targets, int64_t target_count,
                 const uint8_t* params, int64_t params_len, const int64_t* regions, int64_t region_count,
                 const int64_t* maps, int64_t map_count, const int64_t* choices, int64_t choice_count) try {
  using namespace emu;
  Config cfg;
  if (config_len != int64_t(sizeof(Config) / 8)) return nullptr;
  std::memcpy(&cfg, config, sizeof cfg);
  Program prog{reinterpret_cast<const Instr*>(code), code_len, reinterpret_cast<const Operand*>(operands),
               targets};
  if (!well_formed(prog, cfg, operand_count, target_count)) return nullptr;
  auto* r = reinterpret_cast<const Region*>(regions);
  auto* t = reinterpret_cast<const TensorMapRow*>(maps);
  Machine m(cfg, prog, std::vector<u8>(params, params + params_len), std::vector<Region>(r, r + region_count),
            std::vector<TensorMapRow>(t, t + map_count), std::vector<s64>(choices, choices + choice_count));
  std::string s = m.run();
  char* out = static_cast<char*>(std::malloc(s.size() + 1));
  if (out) std::memcpy(out, s.c_str(), s.size() + 1);
  return out;
} catch (...) {
  return nullptr;
}

void emu_free(char* p) { std::free(p); }

int64_t emu_row_sizes(int which) {
  using namespace emu;
  return which == 0 ? sizeof(Config) / 8 : which == 1 ? sizeof(TensorMapRow) / 8 : sizeof(Instr) / 8;
}
}
