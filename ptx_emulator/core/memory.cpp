// Address resolution, and the checks of every access.
#include <algorithm>

#include "machine.hpp"

namespace emu {

GlobalRegion* Machine::region_of(u64 addr) {
  auto inside = [&](GlobalRegion* r) { return addr >= u64(r->r.base) && addr < u64(r->r.base + r->r.size); };
  if (last_region && inside(last_region)) return last_region;
  for (auto& r : regions)
    if (inside(r.get())) return last_region = r.get();
  return nullptr;
}

Loc Machine::global_at(Warp& w, int pc, u64 addr, u64 size, const char* what, bool write) {
  GlobalRegion* r = region_of(addr);
  if (!r || size > u64(r->r.base + r->r.size) - addr) {
    std::string near;
    for (auto& x : regions) {
      if (addr + size > u64(x->r.base) && addr < u64(x->r.base + x->r.size) + 65536 &&
          addr + 65536 > u64(x->r.base))
        near += "; argument '" + x->name + "' covers " + hex(u64(x->r.base)) + " to " +
                hex(u64(x->r.base + x->r.size));
    }
    fatal("out-of-bounds-global", &w, pc,
          std::string(what) + " of " + std::to_string(size) + " bytes at " + hex(addr) +
              " is outside every argument" + near);
  }
  if (write && !r->r.writable)
    fatal("write-to-read-only", &w, pc,
          std::string(what) + " writes to '" + r->name + "', which is read-only");
  Loc l;
  l.region_offset = addr - u64(r->r.base);
  l.p = reinterpret_cast<u8*>(r->r.host) + l.region_offset;
  l.region = r;
  return l;
}

Loc Machine::shared_at(Warp& w, int pc, u64 addr, u64 size, u32 align, const char* what) {
  u64 rank = addr >> RANK_SHIFT & 0xFF, off = addr & 0xFFFFFF;
  Cluster& cl = *w.cta->cluster;
  if (addr >> 32 || rank >= cl.ctas.size())
    fatal("out-of-bounds-shared", &w, pc,
          std::string(what) + " at shared address " + hex(addr) + ": no such CTA in the cluster");
  Cta* c = cl.ctas[rank].get();
  if (off < SMEM_RESERVED || !within(off, size, u64(cfg.smem_end)))
    fatal("out-of-bounds-shared", &w, pc,
          std::string(what) + " of " + std::to_string(size) + " bytes at shared offset " +
              std::to_string(off) + " is outside the CTA's shared memory [" + std::to_string(SMEM_RESERVED) +
              ", " + std::to_string(cfg.smem_end) + ")");
  if (off & (align - 1))
    fatal("misaligned", &w, pc,
          std::string(what) + " at shared offset " + std::to_string(off) + " needs alignment " +
              std::to_string(align));
  if (c->finished && c != w.cta)
    fatal("dsmem-after-exit", &w, pc,
          std::string(what) + " reaches the shared memory of CTA rank " + std::to_string(rank) +
              ", which has exited");
  Loc l;
  l.offset = u32(off);
  c->memory->use(off, size);
  l.p = c->memory->smem.data() + off;
  l.shadow = c->memory->shadow.data() + off;
  l.cta = c;
  return l;
}

Loc Machine::resolve(Warp& w, int pc, u64 addr, u64 size, int space, u32 align, const char* what) {
  if (space == 0) {
    if (addr >= WIN_SHARED && addr < WIN_SHARED + WIN_SIZE) space = 2, addr -= WIN_SHARED;
    else if (addr >= WIN_LOCAL && addr < WIN_LOCAL + WIN_SIZE) space = 4, addr -= WIN_LOCAL;
    else if (addr >= WIN_PARAM && addr < WIN_PARAM + WIN_SIZE) space = 3, addr -= WIN_PARAM;
    else space = 1;
  }
  if (space == 2 || space == 5) return shared_at(w, pc, addr, size, align, what);
  if (addr & (align - 1))
    fatal("misaligned", &w, pc,
          std::string(what) + " at address " + hex(addr) + " needs alignment " + std::to_string(align));
  if (space == 1) return global_at(w, pc, addr, size, what, false);
  Loc l;
  if (space == 3) {
    if (!within(addr, size, params.size()))
      fatal("out-of-bounds-param", &w, pc,
            std::string(what) + " at parameter offset " + std::to_string(addr) + " of " +
                std::to_string(params.size()));
    l.p = params.data() + addr;
  } else {
    fatal("unsupported", &w, pc, "local memory is addressed lane by lane; this form does not reach it");
  }
  return l;
}

void Machine::note_read(const Loc& l, u64 n, const Access& a, Warp& w, int pc, const char* what) {
  size_t at = 0;
  u32 other = 0;
  if (l.shadow) {
    Conflict k = shadows.read(l.shadow, n, a, at, other);
    if (k != Conflict::none)
      conflict(k, w, pc, std::string(what) + " of shared byte " + std::to_string(l.offset + at), other,
               false);
    return;
  }
  if (!l.region) return;
  for (u64 done = 0; done < n;) {
    u64 o = l.region_offset + done, part = std::min<u64>(n - done, 4096 - (o & 4095));
    if (part > 1 && l.region->r.writable) {
      auto& readers = *l.region->readers_of(o >> 12, true);
      u64 from = ((o & 4095) + 1) / 2, to = ((o & 4095) + part) / 2;
      std::fill(readers.begin() + long(from), readers.begin() + long(to), a.event);
    }
    if (Page* page = l.region->page(o >> 12, false)) {
      u32 lw = 0;
      for (u64 i = 0; i < part; i++) {
        u32 e = page->s[(o & 4095) + i].w;
        if (!e || e == lw) continue;
        lw = e;
        Conflict k = shadows.order(e, a);
        if (k == Conflict::race || k == Conflict::proxy) {
          conflict(k, w, pc,
                   std::string(what) + " of global '" + l.region->name + "' byte " + std::to_string(o + i), e,
                   false);
          return;
        }
      }
    }
    done += part;
  }
}

void Machine::note_write(const Loc& l, u64 n, const Access& a, Warp& w, int pc, const char* what) {
  size_t at = 0;
  u32 other = 0;
  if (l.shadow) {
    // Ordinary data written over a live mbarrier destroys it.
    bool near = l.offset < l.cta->mbars_to && l.offset + n > l.cta->mbars_from;
    auto it = near ? l.cta->mbars.upper_bound(u32(l.offset + n - 1)) : l.cta->mbars.begin();
    if (it != l.cta->mbars.begin() && (--it)->second.live && it->first + 8 > l.offset)
      find("mbarrier-overwritten", true, &w, pc,
           std::string(what) + " overwrites the mbarrier at shared offset " + std::to_string(it->first));
    Conflict k = shadows.write(l.shadow, n, a, at, other);
    if (k != Conflict::none)
      conflict(k, w, pc, std::string(what) + " of shared byte " + std::to_string(l.offset + at), other, true);
    return;
  }
  if (!l.region) return;
  wake(u64(l.region->r.base) + l.region_offset, n);
  for (u64 done = 0; done < n;) {
    u64 o = l.region_offset + done, part = std::min<u64>(n - done, 4096 - (o & 4095));
    if (auto* readers = l.region->readers_of(o >> 12, false)) {
      u32 last = 0;
      for (u64 i = ((o & 4095) + 1) / 2; i < ((o & 4095) + part) / 2; i++) {
        u32 e = (*readers)[i];
        (*readers)[i] = 0;
        if (!e || e == last) continue;
        last = e;
        if (shadows.order(e, a) == Conflict::race)
          conflict(Conflict::race, w, pc,
                   std::string(what) + " of global '" + l.region->name + "' byte " +
                       std::to_string((o & ~u64(4095)) + 2 * i),
                   e, true);
      }
    }
    Page* page = l.region->page(o >> 12, true);
    Access here = a;
    if (a.value) here.value = a.value + done, here.held = a.held + done;
    Conflict k = shadows.write(page->s + (o & 4095), part, here, at, other);
    if (k == Conflict::same || k == Conflict::race || k == Conflict::proxy)
      conflict(k, w, pc,
               std::string(what) + " of global '" + l.region->name + "' byte " + std::to_string(o + at),
               other, true);
    done += part;
  }
}

// Is a write to this range of global memory ordered after every access so far?
bool Machine::follows_all(const Loc& l, u64 n, const Access& a) const {
  for (u64 done = 0; done < n;) {
    u64 o = l.region_offset + done, part = std::min<u64>(n - done, 4096 - (o & 4095)), from = o & 4095;
    u32 last = 0;
    if (auto* readers = l.region->readers_of(o >> 12, false))
      for (u64 i = (from + 1) / 2; i < (from + part) / 2; i++) {
        u32 e = (*readers)[i];
        if (e != last && e && shadows.order(e, a) == Conflict::race) return false;
        last = e;
      }
    if (Page* page = l.region->page(o >> 12, false); page && !shadows.follows(page->s + from, part, a))
      return false;
    done += part;
  }
  return true;
}

// A warp that repeats a load of global memory and reads the same polls: it need not run until somebody writes
// there.
static const int WATCHED_BITS = 9;

void Machine::poll(Warp& w, u64 address) {
  auto& warps = watched[address >> WATCHED_BITS];
  if (std::find(warps.begin(), warps.end(), &w) == warps.end()) warps.push_back(&w);
  w.polled = true;
}

void Machine::wake(u64 address, u64 n) {
  if (watched.empty()) return;
  for (u64 k = address >> WATCHED_BITS; k <= (address + n - 1) >> WATCHED_BITS; k++) {
    auto it = watched.find(k);
    if (it == watched.end()) continue;
    for (Warp* w : it->second) w->polled = false, w->cta->cluster->touched = true;
    watched.erase(it);
  }
}

u64 Machine::sync_key(const Warp& w, const Loc& l) {
  if (l.region) return u64(l.region->r.base) + l.region_offset;
  return u64(1) << 63 | u64(w.cta->cluster->index) << 40 | u64(l.cta->rank) << 32 | l.offset;
}

void Machine::acquire_from(Warp& w, int cluster, const Clock& c) {
  int own = w.cta->cluster->index;
  if (cluster == own) {
    acquire(w, c);
    return;
  }
  if (!w.clock.covers(cluster, c.hb)) w.clock.learn({{cluster, c.hb}}, own);
  if (c.foreign) w.clock.learn(*c.foreign, own);
  w.snapshot.reset();
}

void Machine::sync_acquire(u64 key, Warp& w, bool now) {
  auto it = locations.find(key);
  if (it == locations.end()) return;
  for (auto& [cluster, c] : it->second) {
    if (now) acquire_from(w, cluster, c);
    else w.pending_acquire[{key, cluster}].join(c);
  }
}

void Machine::conflict(Conflict k, const Warp& w, int pc, const std::string& what, u32 other, bool write) {
  const Event e = other ? shadows.events[other] : Event{0, 0, -1, 0, 0, -1};
  switch (k) {
    case Conflict::none: return;
    case Conflict::same:
      // PTX ISA, memory consistency model: a data race, but either order of the two stores leaves the same
      // value. Compilers let several warps store the same constant.
      find("same-value-race", cfg.strict_races != 0, &w, pc,
           what + " is not ordered after an earlier store of the same value", &e);
      return;
    case Conflict::uninit: find("uninit-memory", true, &w, pc, what + ", which nothing has written"); return;
    case Conflict::proxy:
      if (e.flags & EV_ALLOC) {
        // The PTX ISA does not say through which proxy tcgen05.alloc writes the address (its section on
        // tcgen05 memory consistency names the proxy of mma and cp only), and Triton reuses the word in this
        // way in every kernel.
        find("missing-proxy-fence-alloc", cfg.strict_fences != 0, &w, pc,
             what + " through the asynchronous proxy, after tcgen05.alloc with no fence.proxy.async between",
             &e);
        return;
      }
      if (e.flags & EV_CPASYNC) {
        // Public kernels that are known to work omit this fence, among them CUTLASS's cp.async main loops.
        find("missing-proxy-fence-cp-async", cfg.strict_fences != 0, &w, pc,
             what + " through the asynchronous proxy, after a cp.async with no fence.proxy.async between",
             &e);
        return;
      }
      find("missing-proxy-fence", true, &w, pc,
           what +
               " through the asynchronous proxy, after a write through the generic proxy with no "
               "fence.proxy.async between",
           &e);
      return;
    case Conflict::tcfence:
      find("missing-tcgen05-fence", cfg.strict_fences != 0, &w, pc,
           what + " is synchronised but lacks tcgen05.fence::before_thread_sync or ::after_thread_sync", &e);
      return;
    case Conflict::race:
      find("race", true, &w, pc,
           what +
               (write ? " is not ordered after an earlier access" : " is not ordered after the write of it"),
           &e);
      return;
  }
}

}  // namespace emu
