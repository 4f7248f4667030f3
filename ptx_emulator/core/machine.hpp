// State of a launch: warps, CTAs, clusters, memories, asynchronous operations.
#pragma once
#include <array>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <unordered_map>

#include "clocks.hpp"
#include "numeric.hpp"

namespace emu {

inline constexpr u64 WIN_SHARED = 0x700000000000, WIN_LOCAL = 0x710000000000, WIN_PARAM = 0x720000000000;
inline constexpr u64 WIN_SIZE = 0x10000000000;
inline constexpr u32 SMEM_RESERVED = 1024, RANK_SHIFT = 24;
inline constexpr int TMEM_LANES = 128, TMEM_COLS = 512;

// Thrown to end execution, after the finding was recorded.
struct Stop {
  std::string why;
};

struct Finding {
  std::string code, message;
  bool error;
  int cta, warp, pc, other_warp, other_pc, other_cta;
};

enum class WaitKind { none, converge, bar, mbar, bulk, cp_async, wgmma, alloc, cluster, pair, registers };
struct Wait {
  WaitKind kind = WaitKind::none;
  u64 a = 0, b = 0, c = 0;
};

// Lanes of a warp that share a program counter.
struct Group {
  int pc;
  u32 mask;
  Wait wait;
  bool timed_out = false;  // a suspended try_wait shall answer false, once
  bool lapped = false;     // the mbarrier completed a whole phase more than the one waited for
  bool overtaken = false;  // a lapped wait shall answer true
};

struct Cta;
struct Cluster;
struct Warp;

// An array of zeros from calloc: pages that nobody touches cost nothing.
template <class T>
class Zeroed {
 public:
  Zeroed() = default;
  explicit Zeroed(size_t n) : items(static_cast<T*>(std::calloc(n, sizeof(T)))) {
    if (!items) throw std::bad_alloc();
  }
  T* data() const { return items.get(); }
  T& operator[](size_t i) const { return items.get()[i]; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> items;
};

// An asynchronous operation in flight. step() does its next part and returns true when it is finished.
struct AsyncOp {
  const char* kind;
  Warp* warp;
  int pc;
  std::shared_ptr<const Clock> fork;
  std::function<bool()> step;
  u64 group = 0;
};
using AsyncRef = std::shared_ptr<AsyncOp>;

// Pipes of a warp, each an actor after the warp itself.
enum Pipe : int { P_WARP, P_TLD, P_TST, P_TC, P_WGMMA, P_CPASYNC, P_COUNT };

struct BulkOp {
  u64 group;
  bool read_done = false, done = false;
  u32 slot = 0, clk = 0;
  int pc = -1;
  bool awaited = false;  // a thread waited for its group: only that orders its reads before the CTA's end
};

struct Counters {
  u64 instructions = 0, by_op[OP_COUNT] = {}, barrier_waits = 0, spins = 0;
};

// A release by some lanes that need not cover everything that the other lanes of their warp had done.
struct Handover {
  u32 at, clk;   // the warp's instruction count, and its clock that an acquirer learns of
  bool whole;    // it covers everything that all lanes did
  u32 upto[32];  // for each lane, the last instruction that it covers
};

struct Warp {
  // What the scheduler looks at most often.
  Cta* cta = nullptr;
  std::vector<Group> groups;
  u32 exited = 0, present = 0;
  bool polled = false;  // the last strong load read nothing new, and nobody wrote there since
  u32 queued = 0;       // asynchronous operations in its queues
  // What look() found last. It holds until the warp or one of its operations steps, or a wake() comes.
  bool moved = true, can_run = false;
  u64 seen_wakes = 0;
  int index = 0;
  u32 actor = 0;  // first of P_COUNT actors
  u64* regs = nullptr;
  std::vector<u32> init;  // per register: the lanes in which every bit was written
  // Per register that some lane wrote only in part: the written bits of each lane.
  std::unordered_map<s64, std::array<u64, 32>> partial;
  std::vector<u8> busy;      // per register: 1 tcgen05.ld pending, 2 D of a wgmma in flight, 3 its A
  std::vector<u32> written;  // per register: icount at the last write by an instruction
  std::vector<u8> local;  // local memory of all lanes; empty until the first access
  Clock clock;
  VC ta;
  std::shared_ptr<const Clock> snapshot;
  std::map<std::pair<u64, int>, Clock> pending_acquire;  // (location, cluster) -> clock a relaxed read saw
  Clock fenced;                                          // what the last release fence covers

  std::deque<AsyncRef> cp_queue, wgmma_queue, tc_queue[3];
  u64 cp_open = 1, wgmma_open = 1;  // numbers of the groups that are still open
  u32 cp_clk = 1;  // clock of the cp.async pipe: a step for every group and every arrival that covers copies
  std::vector<u32> cp_ended;  // per committed group: the clock of its end
  u64 bulk_open = 1;
  std::vector<std::shared_ptr<BulkOp>> bulk;
  u32 tc_clk = 1, tld_clk = 1, tst_clk = 1;
  u32 wgmma_fence_at = 0;
  std::vector<std::pair<u64, int>> wgmma_regs;  // (group, register that it owns)
  std::vector<int> tld_regs;
  u32 icount = 0;
  int maxnreg = 0;
  // Instructions are counted by icount.
  u32 met[32][32] = {};  // [lane][other]: last instruction of `other` that the lane is ordered after
  u32 all_met = 0;       // last instruction that all lanes are ordered after
  u32 touched[32] = {};  // per lane: last instruction that accessed shared memory
  std::vector<Handover> handovers;  // releases by some lanes, and after each the first release by all
  u32 handed_from = 0;              // handovers before this instruction were dropped
  u32 lagging = 0;                  // lanes that have not synchronised with the lanes that acquired last,
  VC lag;                           // and the warp's clock before that acquire
  std::map<u64, Clock> maps_seen;   // tensor map in memory -> clock at the last acquire fence on it
  std::map<u64, s64> seen_phase;    // mbarrier -> last phase that this warp saw complete
  std::map<int, u64> looked;        // pc of a strong global load -> hash of the values it read last
  u64 cluster_gen = 0;
  u32 cluster_arrived = 0;  // lanes that arrived at the cluster barrier
  u32 streak = 0;
  int last_pc = -1;
  Counters count;
  bool done() const { return (exited & present) == present; }
  const u64* read(s64 r) const {
    static const u64 zeros[32] = {};
    return init[size_t(r)] || written[size_t(r)] ? regs + r * 32 : zeros;
  }
  // For an instruction that writes these lanes.
  u64* write(s64 r, u32 lanes) {
    if (~lanes && !init[size_t(r)] && !written[size_t(r)]) std::fill_n(regs + r * 32, 32, 0);
    return regs + r * 32;
  }
};

// Per byte of shared memory: the warp, lane and instruction of the last store, and of the last read since
// then. Warps count from 1 (0: none); lane 32 stands for several lanes.
struct LaneMark {
  u32 stored_at = 0, read_at = 0;
  u8 stored_warp = 0, read_warp = 0, stored_lane = 0, read_lane = 0;
};

struct Named {  // bar.sync
  u32 expected = 0, arrived = 0;  // threads; expected 0: every live thread of the CTA
  u64 generation = 0;
  Clock cur, last;
  int first_pc = -1;  // an instruction that used this barrier
  u32 red_count = 0, red_and = 1, red_or = 0;
  u32 out_count = 0, out_and = 0, out_or = 0;
  std::vector<std::pair<int, int>> who;
};

struct MBar {
  bool live = false;
  u32 expected = 0, pending = 0;
  s64 tx = 0;
  u64 phase = 0;
  u64 awaited = 0;  // phases whose end a thread waited for; a fresh barrier's "phase -1 is complete" is none
  Clock cur, done;
  int init_pc = -1, init_warp = -1;
  std::set<std::pair<int, int>> arrived, arrived_last;  // (warp, pc)
};

struct Tmem {
  Zeroed<u32> data{TMEM_LANES * TMEM_COLS};
  Zeroed<Shadow> shadow{TMEM_LANES * TMEM_COLS};
  bool touched[TMEM_LANES] = {};  // per lane: some cell's shadow may not be empty
  int owner[TMEM_COLS];           // per column: number of its allocation, or -1
  bool freed[TMEM_COLS];          // per column: it was allocated before
  std::map<int, std::pair<int, int>> blocks;  // number of an allocation -> first column, columns
  std::map<int, int> alloc_pc;
  int next, granted;  // granted: first column of an allocation that the other CTA of the pair made for both
  bool relinquished;
  Tmem() { clear(); }
  // For a new CTA. The content stays, as it may on hardware.
  void clear() {
    for (int lane = 0; lane < TMEM_LANES; lane++)
      if (touched[lane]) std::fill_n(&shadow[size_t(lane * TMEM_COLS)], TMEM_COLS, Shadow());
    std::fill(touched, touched + TMEM_LANES, false);
    std::fill(owner, owner + TMEM_COLS, -1), std::fill(freed, freed + TMEM_COLS, false);
    blocks.clear(), alloc_pc.clear();
    next = 0, granted = -1, relinquished = false;
  }
};

// Registers, shared memory and tensor memory of a CTA. A later CTA takes them over: to clear all of it takes
// longer than most CTAs of a large grid run.
struct CtaMemory {
  static constexpr size_t BLOCK = 4096;
  static constexpr u8 PATTERN = 0xCD;  // so that no kernel finds zeros by luck
  std::unique_ptr<u64[]> registers;  // the first write of a register clears it
  std::vector<u8> smem, used;        // used: per block of shared memory, whether some access reached it
  std::vector<Shadow> shadow;        // per byte of shared memory, as are the marks
  std::vector<LaneMark> marks;
  std::unique_ptr<Tmem> tmem;  // null until some CTA uses it
  CtaMemory(size_t register_words, size_t bytes)
      : registers(new u64[register_words]), smem(bytes, PATTERN), used(bytes / BLOCK + 1), shadow(bytes),
        marks(bytes) {}
  void use(size_t at, size_t n) {
    for (size_t block = at / BLOCK; block <= (at + n - 1) / BLOCK; block++) used[block] = 1;
  }
  void clear() {
    if (tmem) tmem->clear();
    for (size_t block = 0; block < used.size(); block++) {
      if (!used[block]) continue;
      size_t from = block * BLOCK, n = std::min(BLOCK, smem.size() - from);
      std::fill_n(smem.begin() + s64(from), n, PATTERN);
      std::fill_n(shadow.begin() + s64(from), n, Shadow());
      std::fill_n(marks.begin() + s64(from), n, LaneMark());
      used[block] = 0;
    }
  }
};

struct Cta {
  Cluster* cluster = nullptr;
  int linear = 0, rank = 0;
  u32 id[3] = {};
  std::vector<Warp> warps;
  u32 live = 0;  // threads that have not exited
  std::unique_ptr<CtaMemory> memory;
  bool handed = false;  // some warp has handovers
  std::map<u32, MBar> mbars;
  u32 mbars_from = ~0u, mbars_to = 0;  // they are within this part of shared memory
  Named bars[16];
  Tmem* tmem = nullptr;  // null until the CTA uses it
  s64 register_pool = 0;  // registers that setmaxnreg.dec gave back
  bool finished = false;
};

struct PairMeeting {  // the two CTAs of a pair meet in collective tcgen05 instructions
  int arrived = 0;
  u64 generation = 0;
};

struct Cluster {
  std::map<std::pair<int, int>, PairMeeting> meetings;  // (pair, instruction)
  int index = 0;
  std::vector<std::unique_ptr<Cta>> ctas;
  std::vector<AsyncRef> pool;  // asynchronous operations that complete in any order
  size_t actors = 0;
  u32 slots_first = 0, slots_next = 0;
  std::vector<u32> slot_clk;
  // barrier.cluster
  u32 arrived = 0;
  u64 generation = 0;
  Clock cur, last;
  bool finished = false;
  // Cache of Machine::look(); `touched` after a step of a warp or of an asynchronous operation of the
  // cluster.
  bool touched = true;
  std::vector<Warp*> runnable, polling;
  std::vector<std::deque<AsyncRef>*> queues;
};

struct Page {
  Shadow s[4096];
};

struct GlobalRegion {
  Region r;
  std::string name;
  // Per page: the last read of every two bytes. Keeping one reader instead of a set finds an unordered write
  // under some interleaving, if not under every one.
  using Readers = std::array<u32, 2048>;
  std::vector<std::unique_ptr<Readers>> readers;
  std::vector<std::unique_ptr<Page>> pages;
  Readers* readers_of(u64 page, bool make) { return at(readers, page, make); }
  Page* page(u64 number, bool make) { return at(pages, number, make); }

 private:
  template <class T>
  T* at(std::vector<std::unique_ptr<T>>& all, u64 number, bool make) const {
    if (all.empty()) {
      if (!make) return nullptr;
      all.resize(size_t(r.size >> 12) + 1);
    }
    auto& p = all[number];
    if (!p && make) p = std::make_unique<T>();
    return p.get();
  }
};

struct HeldOperand;

// A checked range of memory.
struct Loc {
  u8* p = nullptr;
  Shadow* shadow = nullptr;  // shared memory only
  Cta* cta = nullptr;        // shared memory only
  u32 offset = 0;
  GlobalRegion* region = nullptr;
  u64 region_offset = 0;
};

struct Stats {
  u64 global_read = 0, global_written = 0, shared_read = 0, shared_written = 0, async_read = 0,
      async_written = 0;
  u64 tmem_read = 0, tmem_written = 0, bank_conflicts = 0, shared_accesses = 0, mma_flops = 0, async_ops = 0;
  u64 global_sectors = 0;
};

// Coverage of a launch.
struct Reached {
  std::vector<u64> visits;  // per instruction: how often some lane executed it
  std::vector<u8> ways;     // per branch: 1 if some lane took it, plus 2 if some lane did not
  struct Barrier {
    u32 expected = 0;
    u64 phases = 0, awaited = 0;  // maximum over the CTAs
  };
  std::map<std::array<int, 3>, Barrier> barriers;  // kind (0 mbarrier, 1 named), pc, offset or number
};

// How to tell whether an arrival is ordered after the end of the previous phase: by the clock that it
// carries, by its warp's clock (it carries less); or it is known to be (done), or not to be (apart).
enum class PhaseCheck { clock, program, done, apart };

class Machine {
 public:
  Machine(const Config& cfg, const Program& prog, std::vector<u8> params, std::vector<Region> regions,
          std::vector<TensorMapRow> maps, std::vector<s64> choices);
  std::string run();  // returns the report as JSON
  void one_cta_group();

  // ---- findings
  void find(const char* code, bool error, const Warp* w, int pc, const std::string& msg,
            const Event* other = nullptr);
  [[noreturn]] void fatal(const char* code, const Warp* w, int pc, const std::string& msg);
  void conflict(Conflict c, const Warp& w, int pc, const std::string& what, u32 other, bool write);

  // ---- clocks
  void tick(Warp& w) {
    w.clock.hb[w.actor]++;
    w.snapshot.reset();
  }
  std::shared_ptr<const Clock> fork(Warp& w) {
    if (!w.snapshot) w.snapshot = std::make_shared<Clock>(w.clock);
    return w.snapshot;
  }
  void acquire(Warp& w, const Clock& c) {
    w.clock.join(c);
    w.snapshot.reset();
  }
  // Release to and acquire from a location in memory (atomics, flags).
  static u64 sync_key(const Warp& w, const Loc& l);
  void sync_release(u64 key, Warp& w, const Clock& c) { locations[key][w.cta->cluster->index].join(c); }
  void sync_acquire(u64 key, Warp& w, bool now);
  void acquire_from(Warp& w, int cluster, const Clock& c);
  Access access(Warp& w, int pc, u8 flags = 0);
  Access async_access(Warp& w, u32 actor, u32 clk, int pc, const Clock& at, u8 flags = EV_ASYNC);

  // ---- memory
  Loc resolve(Warp& w, int pc, u64 addr, u64 size, int space, u32 align, const char* what);
  Loc shared_at(Warp& w, int pc, u64 addr, u64 size, u32 align, const char* what);
  Loc global_at(Warp& w, int pc, u64 addr, u64 size, const char* what, bool write);
  void note_read(const Loc& l, u64 n, const Access& a, Warp& w, int pc, const char* what);
  bool follows_all(const Loc& l, u64 n, const Access& a) const;
  void poll(Warp& w, u64 address);
  void wake(u64 address, u64 n);
  void note_write(const Loc& l, u64 n, const Access& a, Warp& w, int pc, const char* what);
  GlobalRegion* region_of(u64 addr);
  TensorMapRow map_at(Warp& w, int pc, u64 address);

  // ---- barriers
  MBar& mbar(Warp& w, int pc, u64 addr, const char* what, u32* offset = nullptr, Cta** owner = nullptr);
  MBar& use_mbar(Warp& w, int pc, u64 addr, const char* what, u32* offset = nullptr, Cta** owner = nullptr);
  void mbar_arrive(MBar& b, Warp& w, int pc, u32 n, const Clock* c, PhaseCheck check = PhaseCheck::clock);
  void mbar_tx(MBar& b, s64 delta, const Clock* c);
  void mbar_settle(MBar& b);

  // ---- async
  void launch_async(std::deque<AsyncRef>& q, AsyncRef op);
  void launch_pool(Cluster& c, AsyncRef op);
  u32 take_slot(Cluster& c, u32& clk);
  void progress() { last_progress = executed; }
  // Progress that may end the wait of a warp other than the one that made it.
  void wake() {
    wakes++;
    progress();
  }

  const Config cfg;
  const Program prog;
  std::vector<u8> params;
  std::vector<std::unique_ptr<GlobalRegion>> regions;
  std::map<u64, TensorMapRow> maps;
  Shadows shadows;
  std::vector<std::shared_ptr<HeldOperand>> held_operands;  // operand.cpp
  size_t next_held = 0;
  std::map<u64, std::map<int, Clock>> locations;  // location -> cluster -> clock that it released there
  Stats stats;
  Reached reached;
  void note_mbar(u32 offset, const MBar& b);
  std::vector<Finding> findings;
  u64 executed = 0, retries = 0, last_progress = 0;  // `executed` includes retries of waiting instructions
  u64 last_end = 0;                                  // `executed` when a cluster last ended
  std::unordered_map<u64, std::vector<Warp*>> watched;  // block of global memory -> warps that polled it
  u64 wakes = 0;  // calls of wake()
  std::mt19937_64 rng;

  // ---- scheduler
  s64 cancel_cluster();  // take the next cluster that has not started; -1: there is none
  void cluster_origin(s64 index, s64* id) const;
  std::vector<std::unique_ptr<Cluster>> active;
  std::vector<std::unique_ptr<CtaMemory>> spare;  // of CTAs that ended
  // What collect_async() found: queues, and the pools' operations by place.
  std::vector<std::deque<AsyncRef>*> async_queues;
  std::vector<std::pair<Cluster*, size_t>> async_pool;
  // The last events: an instruction of a warp, or a part of an asynchronous operation that the warp issued.
  struct TraceEvent {
    int cta, warp, pc, async;
  };
  std::deque<TraceEvent> trace;
  void note_event(const Warp& w, int pc, bool async);
  std::vector<s64> choices, choice_log;
  u64 clock_now() const { return executed; }

 private:
  friend struct Exec;
  void start_cluster();
  void note_barriers(Cluster& c);
  void finish_cluster(Cluster& c);
  void compact();
  void loop();
  bool runnable(Warp& w);
  bool ready(Warp& w, Group& g);
  int pick_group(Warp& w);
  bool step(Warp& w);
  void collect_async();
  void look(Cluster& c);
  void run_async(size_t k);
  bool run_one_async(std::deque<AsyncRef>& q);
  bool run_pool(Cluster& c, size_t i);
  void deadlock();
  std::string report_json(const std::string& status);
  u64 choose(u64 n);
  s64 next_cluster = 0, total_clusters = 0;
  GlobalRegion* last_region = nullptr;
  std::map<std::string, int> seen;
  std::vector<Counters> warp_totals;
  s64 errors = 0, warnings = 0;  // distinct findings, whether kept or not
  int idle_rounds = 0;
  u64 idle_progress = 0;
};

u64 reduce_value(int op, int ty, u64 old, u64 x);
bool named_complete(const Cta& c, const Named& b);
void named_release(Named& b);
bool cluster_complete(const Cluster& cl);
// Does a queue still hold an operation of this group or an earlier one?
inline bool pending_group(const std::deque<AsyncRef>& q, u64 group) {
  for (auto& op : q)
    if (op->group <= group) return true;
  return false;
}

// One instruction of one group of lanes.
enum class Flow { next, jumped, wait };
struct Exec {
  Machine& M;
  Cta& c;
  Warp& w;
  Group& g;
  const Instr& in;
  const Operand* o;
  int pc;
  u32 mask;  // executing lanes (guard applied)
  bool copying = false, pending = false;  // a move may read a register whose tcgen05.ld is pending

  Flow run();
  // operands
  struct Val {
    const u64* v;
    u32 valid;      // lanes in which every bit was written
    s64 slot = -1;  // the register: other lanes may have written a part of its bits
    u64 buf[32];
    u64 operator[](int i) const { return v[i]; }
  };
  void get(int i, Val& out, bool must = false, const char* what = "operand");
  u64 uniform(int i, const char* what);  // value of the first executing lane; all lanes must agree
  u64 lead(int i, const char* what);     // value of the first executing lane
  u64* dst(int i, u32 valid);            // null for the sink; marks lanes written
  bool has(int i) const { return i < in.count && o[i].kind != K_NONE; }
  void need(u32 valid, const char* what, int i);
  // Uninitialised state is tracked bit by bit, as far as the operation allows.
  u64 known(const Val& v, u32 l) const;      // written bits of a lane's value
  u32 known_low(const Val& v, int n) const;  // lanes in which the low n bits were written
  u64 known_result(u32 l, const Val* const* v, int sources) const;
  u64 known_conversion(u32 l, const Val* v, int values, const Val& random) const;
  u64 halves_known(u32 l, const Val* v, int n, int from, int to) const;
  void mark(int i, const u64* known);  // after dst(i): which bits of the result count as written
  int first() const { return __builtin_ctz(mask); }
  void complete_loads();
  [[noreturn]] void unsupported(const std::string& why);
  void aligned();  // an error unless all live lanes of the warp execute this instruction

  void alu();
  void cvt();
  bool usual_conversion(const Val* v, int values, u64* d);
  void setp();
  void carry();
  void ints();
  void floats();
  void packed();
  bool usual_pairs(const Val* a, u64* d);
  Flow control();
  Flow warp_op();
  void load();
  void store();
  bool store_range(const u64* addr, const u8 (*values)[64], int total, Access acc);
  u8* local_at(u32 lane, u64 addr, u64 size);
  void note_lane(const Loc& l, u64 n, u32 lane, const u8* value, const char* what);  // value: null for a read
  void note_lanes_read(const Loc& l, u64 n, u32 lanes, const char* what);  // the same place for all of them
  void lanes_met(u32 lanes);
  bool apart(u32 lane, u32 other, u32 at) const;
  bool know_others(u32 lanes, u32* upto) const;
  void released(u32 lanes, u32 clk);
  void released(u32 lanes) { released(lanes, w.clock.hb[w.actor]); }
  void acquires(u32 lanes);
  void check_handover(const Loc& l, u64 n, u32 lane, bool reads, const u8* value, const char* what);
  void check_issue(Loc l, u64 n, u32 lane, bool reads, const char* what);
  bool met_others(u32 lane) const {
    u32 upto[32];
    return know_others(1u << lane, upto);
  }
  void check_lag(const Loc& l, u64 n, u32 lane, bool reads, const char* what);
  void lanes_agree(const u64* addr, const Val* v, int n, int space);
  void atomic();
  void cp_async();
  void matrix();
  void matrix8();
  Flow barrier();
  Flow mbarrier();
  void fences();
  void launch_control();
  void mma();
  Flow wgmma();
  Flow bulk();
  void tma();
  void tensormap();
  void acquire_map();
  Flow tcgen();
  void tc_mma();
  struct Scaling {
    int block = 0;  // elements of K that share a scale factor; 0: no scaling
    int id_a = 0, id_b = 0;
    bool e8m0 = false;
  };
  Scaling scaling(u32 idesc);
  void tc_ldst();
  void tc_commit();
  void tc_copy();
};

// Is at + size <= end? Addresses come from the program, so the sum may wrap around.
inline bool within(u64 at, u64 size, u64 end) { return at <= end && size <= end - at; }

std::string json_escape(const std::string& s);
std::string hex(u64 v);

}  // namespace emu
