// Links between regions: who made what somebody else goes on with. A link follows the record of its region, which is
// written when the region ends; until then it is kept with the thread.
#include <sys/random.h>

#include "writer.h"

namespace fleetscope::recorder {
namespace {

bool belongs(const Linked& linked, const Open& open) {
  return linked.owner == open.owner && linked.start == open.start;
}

// Links of regions that were given up stay behind.
void drop_stale(Thread* thread) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < thread->link_count; ++i) {
    bool open = false;
    for (uint32_t at = 0; at < thread->depth && !open; ++at) open = belongs(thread->links[i], thread->stack[at]);
    if (open) thread->links[kept++] = thread->links[i];
  }
  thread->link_count = kept;
}

bool keep(Thread* thread, const Linked& linked) {
  if (thread->link_count == kLinks) drop_stale(thread);
  if (thread->link_count == kLinks) return false;
  thread->links[thread->link_count++] = linked;
  return true;
}

}  // namespace

bool link_region(Thread* thread, const void* owner, const void* frame, const Argument& link) {
  Open* found = nullptr;
  for (uint32_t at = thread->depth; at-- > 0;) {
    Open* open = &thread->stack[at];
    if (owner && open->owner != owner) continue;
    if (!found) found = open;
    // Tasks of one thread lie in its stack in the order in which they began: the caller's own frame tells.
    if (frame && open->frame == frame) {
      found = open;
      break;
    }
  }
  if (!found || found->unsampled || !keep(thread, {found->owner, found->start, link})) return false;
  return found->linked = true;
}

uint32_t take_links(Thread* thread, const Open& open, Argument* into, uint32_t room) {
  uint32_t taken = 0, kept = 0;
  for (uint32_t i = 0; i < thread->link_count; ++i) {
    if (!belongs(thread->links[i], open)) {
      thread->links[kept++] = thread->links[i];
    } else if (taken < room) {
      into[taken++] = thread->links[i].link;
    }
  }
  thread->link_count = kept;
  return taken;
}

void move_links(Thread* from, const Open& open, Thread* into) {
  Argument links[kLinks];
  uint32_t count = take_links(from, open, links, kLinks);
  for (uint32_t i = 0; i < count; ++i) keep(into, {open.owner, open.start, links[i]});
}

uint64_t new_flow() {
  constexpr uint64_t kMask = ~uint64_t{0} >> 1;  // positive wherever it is read as int64
  std::atomic<uint64_t>& next = g_gate->flow;
  uint64_t begin = next.load(std::memory_order_relaxed);
  if (__builtin_expect(begin == 0, 0)) {
    uint64_t drawn = 0;
    if (getrandom(&drawn, sizeof drawn, GRND_NONBLOCK) != sizeof drawn) drawn = counter() * 0x9E3779B97F4A7C15u;
    drawn = (drawn & kMask) | 1;  // 0 is none
    next.compare_exchange_strong(begin, drawn, std::memory_order_relaxed);
  }
  uint64_t id = next.fetch_add(1, std::memory_order_relaxed) & kMask;
  return id ? id : new_flow();
}

}  // namespace fleetscope::recorder
