// Happens-before: vector clocks, access events, and the shadow word of every byte of memory.
//
// An actor runs in program order: a warp, one of a warp's asynchronous pipes, or a slot that an unordered
// copy borrows. A memory access is an event (actor, clock). The event is ordered before everything that an
// actor does from now on when that actor's vector clock has reached it.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "program.hpp"

namespace emu {

using VC = std::vector<u32>;  // by actor; an empty one stands for zeros

inline void join(VC& a, const VC& b) {
  if (a.size() < b.size()) a.resize(b.size());
  for (size_t i = 0; i < b.size(); i++) a[i] = std::max(a[i], b[i]);
}

// What synchronisation carries: everything that happened before (hb), the part of it that a proxy fence made
// visible to the asynchronous proxy (px), and the part that tcgen05.fence::before_thread_sync released (tc).
// px and tc are empty until some fence fills them.
//
// Each cluster has its own vector clocks. What a cluster learned of others through global memory is in
// `foreign`, by the other cluster's number; the map is shared until it changes.
struct Clock {
  VC hb, px, tc;
  std::shared_ptr<const std::map<int, VC>> foreign;
  Clock() = default;
  explicit Clock(size_t n) : hb(n) {}
  bool empty() const { return hb.empty(); }
  void clear() {  // the vectors keep their memory
    hb.clear(), px.clear(), tc.clear();
    foreign.reset();
  }
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
  // Join the clocks of other clusters; an entry for the cluster `own` goes into hb.
  void learn(const std::map<int, VC>& more, int own) {
    if (auto mine = more.find(own); mine != more.end()) emu::join(hb, mine->second);
    auto new_to_us = [&](auto& of) { return of.first != own && !covers(of.first, of.second); };
    if (std::none_of(more.begin(), more.end(), new_to_us)) return;
    auto next =
        foreign ? std::make_shared<std::map<int, VC>>(*foreign) : std::make_shared<std::map<int, VC>>();
    for (auto& [cluster, vc] : more)
      if (cluster != own && !next->emplace(cluster, vc).second) emu::join(next->at(cluster), vc);
    foreign = next;
  }
  // Is everything of another cluster's clock known already?
  bool covers(int cluster, const VC& vc) const {
    if (!foreign) return false;
    auto it = foreign->find(cluster);
    return it != foreign->end() && std::equal(vc.begin(), vc.end(), it->second.begin(), std::less_equal<>());
  }
  // Is an event of another cluster ordered before this clock?
  bool knows(int cluster, u32 actor, u32 clk) const {
    if (!foreign) return false;
    auto it = foreign->find(cluster);
    return it != foreign->end() && it->second[actor] >= clk;
  }
};

enum EventFlags : u8 {
  EV_ASYNC = 1, EV_ATOMIC = 2, EV_TCGEN = 4, EV_INIT = 8, EV_CPASYNC = 16, EV_ALLOC = 32
};

struct Event {
  u32 actor, clk;
  int pc;
  u8 flags;
  int cluster = 0;
  int16_t swizzle = -1;  // tensor copies: the swizzle span in bytes, 129 for 128 bytes with 32-byte atoms
};

struct Shadow {
  u32 w = 0;  // event of the last write; 0: never written
  u32 r = 0;  // number of the set of reads since then; 0: none
};

// An access, as the checker sees it.
struct Access {
  u32 event = 0;
  const Clock* clock = nullptr;
  const VC* ta = nullptr;  // clock that tcgen05.fence::after_thread_sync covers; null: not a tcgen05 access
  bool either = false;     // tcgen05.dealloc: memory order or tcgen05's fences suffice
  bool async = false;      // through the asynchronous proxy
  // The bytes that a store writes and those that memory holds: unordered stores of the same value are a
  // lesser race.
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
  // Strong operations through the same proxy do not race; nor do reductions of the asynchronous proxy.
  static bool morally_strong(const Event& x, const Event& y) {
    return (x.flags & y.flags & EV_ATOMIC) && !((x.flags ^ y.flags) & EV_ASYNC);
  }
  // Is the recorded event ordered before the access?
  Conflict order(u32 past, const Access& a) const {
    const Event &e = events[past], &me = events[a.event];
    if (e.flags & EV_INIT) return Conflict::none;
    if (e.cluster != me.cluster)
      return morally_strong(e, me) || a.clock->knows(e.cluster, e.actor, e.clk) ? Conflict::none
                                                                                : Conflict::race;
    if (e.actor == me.actor) return Conflict::none;
    if (morally_strong(e, me)) return Conflict::none;
    // PTX ISA, tcgen05, canonical synchronization patterns: the fences order tcgen05 operations across
    // relaxed waits too.
    if (a.ta && (e.flags & EV_TCGEN) && (*a.ta)[e.actor] >= e.clk) return Conflict::none;
    if (a.clock->hb[e.actor] < e.clk) return Conflict::race;
    if (a.async && !(e.flags & EV_ASYNC) && (a.clock->px.empty() || a.clock->px[e.actor] < e.clk))
      return Conflict::proxy;
    if (a.ta && !a.either && (e.flags & EV_TCGEN) && (*a.ta)[e.actor] < e.clk) return Conflict::tcfence;
    return Conflict::none;
  }
  // Is the recorded read ordered before the write? A read through one proxy and a later write through the
  // other need no proxy fence.
  Conflict order_write(u32 read, const Access& write) const {
    Conflict c = order(read, write);
    return c == Conflict::proxy ? Conflict::none : c;
  }
  // Add a read to a set; gives the new set. Reads that are ordered before the new one are dropped.
  u32 add(u32 set, const Access& a) {
    Added& known = added[set % std::size(added)];
    if (known.set == set && known.event == a.event) return known.result;
    const Event me = events[a.event];
    for (u32 i = first[set], end = first[set + 1]; i < end; i++) {
      const u32 e = members[i];
      const Event& old = events[e];
      bool subsumed = old.actor == me.actor || a.clock->hb[old.actor] >= old.clk;
      // Only a read of the same kind replaces a read through the asynchronous proxy or by tcgen05.
      if (!subsumed || ((old.flags ^ me.flags) & (EV_ASYNC | EV_TCGEN | EV_ATOMIC))) members.push_back(e);
    }
    members.push_back(a.event);
    first.push_back(u32(members.size()));
    known = {set, a.event, u32(first.size() - 2)};
    return known.result;
  }
  // How many of the n shadow words, from the first on, are equal to it.
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
  // Record a read of n shadow words; gives the first conflict and its place. keep: false for a read that the
  // same operation's write follows, which would replace it.
  Conflict read(Shadow* s, size_t n, const Access& a, size_t& where, u32& other, bool check_init = true,
                bool keep = true) {
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
  // Would write() find nothing?
  bool follows(const Shadow* s, size_t n, const Access& a) const {
    for (size_t i = 0; i < n; i += alike(s + i, n - i)) {
      if (s[i].w && order(s[i].w, a) != Conflict::none) return false;
      if (any_read(s[i].r, [&](u32 e) { return order_write(e, a) != Conflict::none; })) return false;
    }
    return true;
  }
  Conflict write(Shadow* s, size_t n, const Access& a, size_t& where, u32& other) {
    Conflict bad = Conflict::none, c = Conflict::none;
    u32 lw = ~0u, lr = ~0u;
    auto overwrite = [&](size_t i) {
      if (c == Conflict::none || (bad != Conflict::none && bad != Conflict::same)) return;
      // A pending cp.async, or an asynchronous write before a generic one, may not have landed: values say
      // nothing.
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
          Conflict c = order_write(e, a);
          if (c != Conflict::none && (bad == Conflict::none || bad == Conflict::same))
            bad = c, where = i, other = e;
        }
      }
      if (c != Conflict::none)
        for (size_t k = i + 1; k < end; k++) overwrite(k);
      std::fill(s + i, s + end, Shadow{a.event, 0});
    }
    return bad;
  }
  // Does some read of the set satisfy the predicate?
  template <class F>
  bool any_read(u32 set, F&& is) const {
    for (u32 k = first[set]; k < first[set + 1]; k++)
      if (is(members[k])) return true;
    return false;
  }
  // Forget all sets of reads; no live shadow word may refer to one.
  void forget_sets() {
    members.clear();
    first.assign(2, 0);
    std::fill(std::begin(added), std::end(added), Added{});
  }
  std::vector<Event> events;

 private:
  // Set number `set` has the events members[first[set]] to members[first[set + 1] - 1]; set 0 is empty.
  std::vector<u32> members, first;
  struct Added {
    u32 set = 0, event = 0, result = 0;
  };
  Added added[64];  // cache of add()'s results, indexed by the set's number modulo 64
};

}  // namespace emu
