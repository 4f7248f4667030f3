// Happens-before: vector clocks, access events and the shadow word kept for every byte of memory.
//
// An actor is something that runs in program order: a warp, one of a warp's asynchronous pipes, or a slot that
// an unordered copy borrows. A memory access is an event (actor, clock). It is ordered before what an actor does
// now when that actor's clock vector has reached it.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "program.hpp"

namespace emu {

using VC = std::vector<u32>;

inline void join(VC& a, const VC& b) {
  for (size_t i = 0; i < a.size(); i++) a[i] = std::max(a[i], b[i]);
}

// What synchronisation carries: everything that happened before (hb), the part of it that a proxy fence made
// visible to the asynchronous proxy (px), and the part released by tcgen05.fence::before_thread_sync (tc).
//
// Clusters of a launch have clock vectors of their own; what one learned of others through global memory is in
// foreign, by the cluster's number, shared until it changes.
struct Clock {
  VC hb, px, tc;
  std::shared_ptr<const std::map<int, VC>> foreign;
  Clock() = default;
  explicit Clock(size_t n) : hb(n), px(n), tc(n) {}
  bool empty() const { return hb.empty(); }
  void join(const Clock& o) {
    if (o.empty()) return;
    if (empty()) {
      *this = o;
      return;
    }
    emu::join(hb, o.hb);
    emu::join(px, o.px);
    emu::join(tc, o.tc);
    if (o.foreign && o.foreign != foreign) learn(*o.foreign, -1);
  }
  // Take over what is known of other clusters; an entry about the own cluster goes into hb.
  void learn(const std::map<int, VC>& more, int own) {
    auto next = foreign ? std::make_shared<std::map<int, VC>>(*foreign) : std::make_shared<std::map<int, VC>>();
    for (auto& [cluster, vc] : more) {
      if (cluster == own) {
        emu::join(hb, vc);
        continue;
      }
      auto it = next->find(cluster);
      if (it == next->end()) next->emplace(cluster, vc);
      else emu::join(it->second, vc);
    }
    foreign = next;
  }
  // Has an event of another cluster been learned of?
  bool knows(int cluster, u32 actor, u32 clk) const {
    if (!foreign) return false;
    auto it = foreign->find(cluster);
    return it != foreign->end() && it->second[actor] >= clk;
  }
};

enum EventFlags : u8 { EV_ASYNC = 1, EV_ATOMIC = 2, EV_TCGEN = 4, EV_INIT = 8, EV_CPASYNC = 16, EV_ALLOC = 32 };

struct Event {
  u32 actor, clk;
  int pc;
  u8 flags;
  int cluster = 0;
  int16_t swizzle = -1;  // of a tensor copy: the span in bytes, 129 for 32-byte atoms
};

struct Shadow {
  u32 w = 0;  // event of the last write; 0: never written
  u32 r = 0;  // set of reads since then; 0: none
};

// How an access looks to the checker.
struct Access {
  u32 event = 0;
  const Clock* clock = nullptr;
  const VC* ta = nullptr;  // what tcgen05.fence::after_thread_sync covers; null: not a tcgen05 access
  bool either = false;     // of tcgen05.dealloc: ordered by what orders memory, or by tcgen05's fences
  bool async = false;      // through the asynchronous proxy
  // Of a generic store, and what lies there: two stores of one value that nothing orders leave that value.
  const u8 *value = nullptr, *held = nullptr;
};

enum class Conflict { none, same, uninit, race, proxy, tcfence };

class Shadows {
 public:
  Shadows() { reset(); }
  void reset() {
    events.assign(1, Event{0, 0, -1, 0, 0, -1});
    forget_sets();
  }
  u32 event(int cluster, u32 actor, u32 clk, int pc, u8 flags) {
    events.push_back({actor, clk, pc, flags, cluster, -1});
    return u32(events.size() - 1);
  }
  // Strong operations through one proxy do not race. Reductions of the asynchronous proxy are strong among themselves.
  static bool morally_strong(const Event& x, const Event& y) {
    return (x.flags & y.flags & EV_ATOMIC) && !((x.flags ^ y.flags) & EV_ASYNC);
  }
  // Is the recorded event ordered before the access?
  Conflict order(u32 past, const Access& a) const {
    const Event &e = events[past], &me = events[a.event];
    if (e.flags & EV_INIT) return Conflict::none;
    if (e.cluster != me.cluster)
      return morally_strong(e, me) || a.clock->knows(e.cluster, e.actor, e.clk) ? Conflict::none : Conflict::race;
    if (e.actor == me.actor) return Conflict::none;
    if (morally_strong(e, me)) return Conflict::none;
    // PTX ISA, tcgen05, canonical synchronization patterns: its fences order tcgen05 operations across relaxed waits too.
    if (a.ta && (e.flags & EV_TCGEN) && (*a.ta)[e.actor] >= e.clk) return Conflict::none;
    if (a.clock->hb[e.actor] < e.clk) return Conflict::race;
    if (a.async && !(e.flags & EV_ASYNC) && a.clock->px[e.actor] < e.clk) return Conflict::proxy;
    if (a.ta && !a.either && (e.flags & EV_TCGEN) && (*a.ta)[e.actor] < e.clk) return Conflict::tcfence;
    return Conflict::none;
  }
  // The set of reads after adding one; reads that are ordered before the new one are subsumed by it.
  u32 add(u32 set, const Access& a) {
    Added& known = added[set % std::size(added)];
    if (known.set == set && known.event == a.event) return known.result;
    const Event me = events[a.event];
    for (u32 i = first[set], end = first[set + 1]; i < end; i++) {
      const u32 e = members[i];
      const Event& old = events[e];
      bool subsumed = old.actor == me.actor || a.clock->hb[old.actor] >= old.clk;
      // A read by the asynchronous proxy or by tcgen05 is only replaced by one of the same kind.
      if (!subsumed || ((old.flags ^ me.flags) & (EV_ASYNC | EV_TCGEN | EV_ATOMIC))) members.push_back(e);
    }
    members.push_back(a.event);
    first.push_back(u32(members.size()));
    known = {set, a.event, u32(first.size() - 2)};
    return known.result;
  }
  // How many of n shadow words are like the first of them.
  static size_t alike(const Shadow* s, size_t n) {
    auto word = [](const Shadow& x) { return u64(x.r) << 32 | x.w; };
    const u64 like = word(*s);
    size_t i = 1;
    for (; i + 8 <= n; i += 8) {
      u64 differ = 0;
      for (size_t k = 0; k < 8; k++) differ |= word(s[i + k]) ^ like;
      if (differ) break;
    }
    while (i < n && word(s[i]) == like) i++;
    return i;
  }
  // Record a read of n shadow words; returns the first conflict and where it was. A read that its own write follows at
  // once need not be kept: the write takes its place.
  Conflict read(Shadow* s, size_t n, const Access& a, size_t& where, u32& other, bool check_init = true, bool keep = true) {
    Conflict bad = Conflict::none;
    u32 lw = ~0u, lr = ~0u, nr = 0;
    for (size_t i = 0, end; i < n; i = end) {
      end = i + alike(s + i, n - i);
      if (s[i].w != lw) {
        lw = s[i].w;
        Conflict c = lw ? order(lw, a) : (check_init ? Conflict::uninit : Conflict::none);
        if (c != Conflict::none && bad == Conflict::none) bad = c, where = i, other = lw;
      }
      if (!keep) continue;
      if (s[i].r != lr) lr = s[i].r, nr = add(lr, a);
      std::fill(s + i, s + end, Shadow{lw, nr});
    }
    return bad;
  }
  Conflict write(Shadow* s, size_t n, const Access& a, size_t& where, u32& other) {
    Conflict bad = Conflict::none, c = Conflict::none;
    u32 lw = ~0u, lr = ~0u;
    auto overwrite = [&](size_t i) {
      if (c == Conflict::none || (bad != Conflict::none && bad != Conflict::same)) return;
      // Of asynchronous writes only stores to global memory know what they write here, and both have landed.
      bool landed = !(events[lw].flags & (a.async ? EV_CPASYNC : EV_ASYNC | EV_CPASYNC));
      bool same = c == Conflict::race && a.value && a.value[i] == a.held[i] && landed;
      if (!same || bad == Conflict::none) bad = same ? Conflict::same : c, where = i, other = lw;
    };
    for (size_t i = 0, end; i < n; i = end) {
      end = i + alike(s + i, n - i);
      if (s[i].w != lw) {
        lw = s[i].w;
        c = lw ? order(lw, a) : Conflict::none;
      }
      overwrite(i);
      if (s[i].r != lr) {
        lr = s[i].r;
        for (u32 k = first[lr]; k < first[lr + 1]; k++) {
          const u32 e = members[k];
          Conflict c = order(e, a);  // of a read
          // Reading through one proxy before writing through the other needs no proxy fence.
          if (c == Conflict::proxy) c = Conflict::none;
          if (c != Conflict::none && (bad == Conflict::none || bad == Conflict::same)) bad = c, where = i, other = e;
        }
      }
      if (c != Conflict::none)
        for (size_t k = i + 1; k < end; k++) overwrite(k);
      std::fill(s + i, s + end, Shadow{a.event, 0});
    }
    return bad;
  }
  // Does one of the reads of a set satisfy it?
  template <class F>
  bool any_read(u32 set, F&& is) const {
    for (u32 k = first[set]; k < first[set + 1]; k++)
      if (is(members[k])) return true;
    return false;
  }
  // Forget the sets of reads: only once nothing that is alive refers to them.
  void forget_sets() {
    members.clear();
    first.assign(2, 0);
    std::fill(std::begin(added), std::end(added), Added{});
  }
  std::vector<Event> events;

 private:
  // Sets of reads by number: from members[first[set]] to before members[first[set + 1]]; set 0 is empty.
  std::vector<u32> members, first;
  struct Added {
    u32 set = 0, event = 0, result = 0;
  };
  Added added[64];  // what add() gave last, of sets that share a place
};

}  // namespace emu
