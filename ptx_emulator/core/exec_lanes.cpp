// Lanes of one warp: what each lane is ordered after, and what a lane that arrives or waits for its warp
// passes on.
#include "machine.hpp"

namespace emu {

// Lanes of a warp are threads: only synchronisation orders what one lane does before what another does.
// bar.warp.sync is synchronisation; shfl, vote and elect are not: of these instructions the PTX ISA says only
// of bar.warp.sync that it orders memory among the participating threads.

// Is the lane not ordered after instruction `at` of the other lane? Lane 32 stands for every executing lane,
// and `other` 32 for every other lane.
bool Exec::apart(u32 lane, u32 other, u32 at) const {
  if (at <= w.all_met) return false;
  LANES(lane < 32 ? 1u << lane : mask, mine) {
    if (other < 32) {
      if (other != mine && w.met[mine][other] < at) return true;
    } else {
      for (u32 k = 0; k < 32; k++)
        if (k != mine && (w.present >> k & 1) && w.met[mine][k] < at) return true;
    }
  }
  return false;
}

// Check an access to shared memory against earlier accesses of other lanes, and record it. Lane 32: all
// executing lanes.
void Exec::note_lane(const Loc& l, u64 n, u32 lane, const u8* value, const char* what) {
  if (l.cta != &c) return;
  if (c.handed) check_handover(l, n, lane, !value, value, what);
  if (lane < 32 ? w.lagging >> lane & 1 : w.lagging & mask) check_lag(l, n, lane, !value, what);
  LANES(lane < 32 ? 1u << lane : mask, mine) w.touched[mine] = w.icount;
  LaneMark* marks = c.memory->marks.data() + l.offset;
  u8 self = u8(w.index + 1);
  bool conflict = false, reads = !value;
  // Bytes that were accessed together have equal marks; most accesses are to such bytes alone.
  auto like = [](const LaneMark& x, const LaneMark& y) { return !std::memcmp(&x, &y, sizeof x); };
  bool alike = !std::memcmp(marks, marks + 1, size_t(n - 1) * sizeof *marks);
  for (u64 i = 0; i < (alike ? 1 : n) && !conflict; i++) {
    LaneMark& m = marks[i];
    if (m.stored_at <= w.all_met && m.read_at <= w.all_met) continue;
    if (reads && i && like(m, marks[i - 1])) continue;
    bool clash = m.stored_warp == self && m.stored_at < w.icount && apart(lane, m.stored_lane, m.stored_at);
    bool late = !reads && m.read_warp == self && m.read_at < w.icount && apart(lane, m.read_lane, m.read_at);
    conflict = (clash || late) && (reads || std::memcmp(value + i, l.p + i, alike ? n : 1));
  }
  if (conflict)
    M.find("lane-race", M.cfg.strict_races != 0, &w, pc,
           std::string(what) + " of shared byte " + std::to_string(l.offset) + " by lane " +
               std::to_string(lane) + " is not ordered after an earlier " + (reads ? "store" : "access") +
               " by another lane of the warp: no bar.warp.sync lies between");
  // Where several lanes store the same value by one instruction, the first one's mark stands for all.
  bool first_of_all = marks->stored_at != w.icount || marks->stored_warp != self;
  if (!reads && first_of_all) std::fill(marks, marks + n, LaneMark{w.icount, 0, self, 0, u8(lane), 0});
  for (u64 i = 0; i < n && reads; i++) {
    LaneMark& m = marks[i];
    const LaneMark before = m;
    if (m.read_at <= w.all_met) {
      m.read_at = w.icount, m.read_warp = self, m.read_lane = u8(lane);
    } else if (m.read_warp != self || m.read_lane == lane || !apart(lane, m.read_lane, m.read_at)) {
      m.read_at = w.icount, m.read_warp = self, m.read_lane = u8(lane);
    } else {
      m.read_at = w.icount, m.read_lane = 32;
    }
    const LaneMark after = m;
    if (alike) std::fill(marks + i + 1, marks + n, after), i = n;
    while (i + 1 < n && like(marks[i + 1], before)) marks[++i] = after;
  }
}

void Exec::note_lanes_read(const Loc& l, u64 n, u32 lanes, const char* what) {
  if (l.cta != &c) return;
  LaneMark* marks = c.memory->marks.data() + l.offset;
  u8 self = u8(w.index + 1);
  // Without a recent store by this warp there is nothing to check, and of several lanes no one stands out.
  bool plain = (lanes & (lanes - 1)) && !c.handed && !(w.lagging & lanes);
  for (u64 i = 0; i < n && plain; i++)
    plain = marks[i].stored_warp != self || marks[i].stored_at <= w.all_met;
  if (!plain) {
    LANES(lanes, lane) note_lane(l, n, lane, nullptr, what);
    return;
  }
  LANES(lanes, lane) w.touched[lane] = w.icount;
  for (u64 i = 0; i < n; i++) marks[i].read_at = w.icount, marks[i].read_warp = self, marks[i].read_lane = 32;
}

// The lanes have synchronised with all other lanes of the warp.
void Exec::lanes_met(u32 lanes) {
  w.lagging &= ~lanes;
  if (lanes == (w.present & ~w.exited)) w.all_met = w.icount;
  else LANES(lanes, l) std::fill(w.met[l], w.met[l] + 32, w.icount);
}

// upto[k]: the last instruction of lane k that some of `lanes` is ordered after. True if this covers every
// access of the other lanes to shared memory.
bool Exec::know_others(u32 lanes, u32* upto) const {
  bool all = true;
  for (u32 k = 0; k < 32; k++) {
    upto[k] = w.icount;
    if ((lanes | w.exited) >> k & 1 || !(w.present >> k & 1)) continue;
    upto[k] = w.all_met;
    LANES(lanes, l) upto[k] = std::max(upto[k], w.met[l][k]);
    all &= w.touched[k] <= upto[k];
  }
  return all;
}

// The lanes release, at the warp's clock clk, their own accesses and those of other lanes that they are
// ordered after. So a lane that arrives for its warp needs a bar.warp.sync before.
void Exec::released(u32 lanes, u32 clk) {
  u32 live = w.present & ~w.exited;
  bool whole = (lanes & live) == live;
  if (whole && (w.handovers.empty() || w.handovers.back().whole)) return;
  Handover h{w.icount, clk, whole, {}};
  h.whole |= know_others(lanes, h.upto);
  if (h.whole && (w.handovers.empty() || w.handovers.back().whole)) return;
  if (w.handovers.size() >= 64) {  // drop the older half: earlier accesses are no longer checked
    w.handed_from = w.handovers[w.handovers.size() / 2].at + 1;
    w.handovers.erase(w.handovers.begin(), w.handovers.begin() + s64(w.handovers.size() / 2 + 1));
  }
  w.handovers.push_back(h);
  c.handed = true;
}

// A lane issues an asynchronous copy that reads or writes shared memory: it must be ordered after the
// accesses of the other lanes of its warp and of other warps.
void Exec::check_issue(Loc l, u64 n, u32 lane, bool reads, const char* what) {
  if (l.cta != &c) return;
  if (c.handed) check_handover(l, n, lane, reads, nullptr, what);
  if (met_others(lane)) return;
  const LaneMark* marks = c.memory->marks.data() + l.offset;
  u8 self = u8(w.index + 1);
  for (u64 i = 0; i < n; i++) {
    const LaneMark& m = marks[i];
    if (i && !std::memcmp(&m, &marks[i - 1], sizeof m)) continue;
    bool stored = m.stored_warp == self && apart(lane, m.stored_lane, m.stored_at);
    if (!stored && !(!reads && m.read_warp == self && apart(lane, m.read_lane, m.read_at))) continue;
    M.find("lane-race", M.cfg.strict_races != 0, &w, pc,
           std::string(what) + " of shared byte " + std::to_string(l.offset + i) + ", issued by lane " +
               std::to_string(lane) + ", is not ordered after an earlier " + (stored ? "store" : "load") +
               " by another lane of the warp: no bar.warp.sync lies between");
    return;
  }
}

// Does what this warp acquired from another warp cover the access of each of that warp's lanes, or only those
// of the lanes that arrived? value: the stored bytes; null for reads, and for copies, whose bytes are not
// known yet.
void Exec::check_handover(const Loc& l, u64 n, u32 lane, bool reads, const u8* value, const char* what) {
  const LaneMark* marks = c.memory->marks.data() + l.offset;
  auto left_out = [&](u8 number, u32 by, u32 at) {
    if (!number || number == w.index + 1) return false;
    const Warp& other = c.warps[size_t(number - 1)];
    if (other.handovers.empty() || at < other.handed_from || other.handovers.back().at < at) return false;
    u32 known = w.clock.hb[other.actor];
    bool part = false;
    for (size_t i = other.handovers.size(); i-- > 0 && other.handovers[i].at >= at;) {
      const Handover& h = other.handovers[i];
      if (h.clk > known) continue;
      bool covers = h.whole;
      if (!covers && by < 32) covers = h.upto[by] >= at;
      if (!covers && by == 32) covers = *std::min_element(h.upto, h.upto + 32) >= at;
      if (covers) return false;
      part = true;
    }
    return part;
  };
  for (u64 i = 0; i < n; i++) {
    const LaneMark& m = marks[i];
    if (i && !std::memcmp(&m, &marks[i - 1], sizeof m)) continue;
    if (value && value[i] == l.p[i]) continue;
    bool stored = left_out(m.stored_warp, m.stored_lane, m.stored_at);
    if (!stored && !(!reads && left_out(m.read_warp, m.read_lane, m.read_at))) continue;
    u32 by = stored ? m.stored_lane : m.read_lane;
    M.find("lane-race", M.cfg.strict_races != 0, &w, pc,
           std::string(what) + " of shared byte " + std::to_string(l.offset + i) + " by lane " +
               std::to_string(lane) + " is not ordered after an earlier " + (stored ? "store" : "load") +
               " by " + (by < 32 ? "lane " + std::to_string(by) : "several lanes") + " of warp " +
               std::to_string((stored ? m.stored_warp : m.read_warp) - 1) +
               ": another lane of that warp arrived for it, and no bar.warp.sync lies before the arrival");
    return;
  }
}

// Some lanes acquire: the others lag until they synchronise with these. If lanes lag already, only they are
// tracked.
void Exec::acquires(u32 lanes) {
  u32 live = w.present & ~w.exited;
  if ((lanes & live) == live) {
    w.lagging = 0;
  } else if (w.lagging) {
    w.lagging &= ~lanes;
  } else {
    w.lagging = live & ~lanes;
    w.lag = w.clock.hb;
  }
}

// Was it only other lanes of this warp that waited for the earlier access of these bytes?
void Exec::check_lag(const Loc& l, u64 n, u32 lane, bool reads, const char* what) {
  u32 missed = 0;  // the event that the lane did not wait for
  auto late = [&](u32 event) {
    const Event& e = M.shadows.events[event];
    bool own = e.actor - w.actor < P_COUNT || e.cluster != c.cluster->index || (e.flags & EV_INIT);
    if (!own && w.clock.hb[e.actor] >= e.clk && w.lag[e.actor] < e.clk) missed = event;
    return missed != 0;
  };
  u32 last_w = 0, last_r = 0;
  for (u64 i = 0; i < n && !missed; i++) {
    const Shadow& s = l.shadow[i];
    if (s.w && s.w != last_w) late(last_w = s.w);
    if (!reads && !missed && s.r != last_r) M.shadows.any_read(last_r = s.r, late);
  }
  if (!missed) return;
  const Event e = M.shadows.events[missed];
  M.find("lane-race", M.cfg.strict_races != 0, &w, pc,
         std::string(what) + " of shared byte " + std::to_string(l.offset) + " by lane " +
             std::to_string(lane < 32 ? lane : u32(first())) +
             " is not ordered after an earlier access: other lanes of the warp waited for it, and no "
             "bar.warp.sync lies after their wait",
         &e);
}

}  // namespace emu
