// The table of include/fleetscope/recorder.h: regions of C and C++, with or without the GIL.
#include <string.h>

#include <algorithm>
#include <utility>

#include "fleetscope/recorder.h"
#include "thin.h"
#include "writer.h"

namespace fleetscope::recorder {
namespace {

// fleetscope_site.state: what the site was decided by << 32 | on << 31 | shift << 24 | name.
constexpr uint64_t kOn = uint64_t{1} << 31;
uint64_t decided_by(uint64_t gate) { return (gate >> 32 & 0xffff) << 48 | (gate & 0xffff) << 32; }

uint64_t __attribute__((noinline, cold)) decide(fleetscope_site* site, uint64_t gate) {
  uint64_t before = __atomic_load_n(&site->state, __ATOMIC_RELAXED);
  uint32_t name = uint32_t(before) & (kNameLimit - 1);
  bool on = g_site_level.load(std::memory_order_relaxed) >= (site->level ? site->level : 1);
  // Two threads may do this at once: then the name has two ids, and both are right.
  bool same_segment = name && (before >> 32 & 0xffff) == (gate & 0xffff);
  if (on && !same_segment) name = add_name(site->name ? site->name : "unnamed", site->name ? strlen(site->name) : 7);
  uint8_t own = std::min(site->sample, kShiftLimit);
  uint8_t shift = site->name ? std::max(own, shift_of_name(site->name, strlen(site->name))) : own;
  uint64_t state = decided_by(gate) | (on ? kOn : 0) | uint64_t{shift} << 24 | name;
  __atomic_store_n(&site->state, state, __ATOMIC_RELAXED);
  return state;
}

inline uint64_t state_of(fleetscope_site* site, uint64_t gate) {
  uint64_t state = __atomic_load_n(&site->state, __ATOMIC_RELAXED);
  bool holds = ((state ^ decided_by(gate)) & 0xffffffff00000000) == 0;
  return __builtin_expect(holds, 1) ? state : decide(site, gate);
}

inline uint32_t name_in(uint64_t state) { return uint32_t(state) & (kNameLimit - 1); }

// One in 2^shift of its passes leaves a record.
inline uint8_t shift_in(uint64_t state) { return uint8_t(state >> 24 & 0x1f); }

inline bool sampled(fleetscope_site* site, uint8_t shift) {
  if (__builtin_expect(shift == 0, 1)) return true;
  return keeps(__atomic_fetch_add(&site->hits, 1, __ATOMIC_RELAXED), shift, site);
}

uint32_t extras_of(uint8_t shift, uint64_t flow, Argument* extras) {
  uint32_t count = 0;
  if (shift) extras[count++] = {0, kWeight, uint64_t{1} << shift};
  if (flow) extras[count++] = {0, kFlow, flow};
  return count;
}

void begin_native(fleetscope_region* region) {
  uint64_t gate = gate_word();
  fleetscope_site* site = region->site;
  uint64_t state = state_of(site, gate);
  if (uint32_t(gate) == 0 || !(state & kOn)) return;
  Thread* thread = t_thread;
  if (__builtin_expect(!thread || !thread->native || thread->epoch != uint32_t(gate) || !thread->slot, 0)) {
    thread = stack_of_native(uint32_t(gate));
    // A thread without a ring of its own has no stack: its regions are seen when they end.
    if (!thread) return void(region->start = counter());
  }
  uint8_t shift = shift_in(state);
  region->start = begin(thread, {site, region, nullptr, 0, name_in(state), kHost, false, !sampled(site, shift), shift});
}

void end_native(fleetscope_region* region) {
  uint64_t now = counter();
  uint64_t gate = gate_word();
  uint32_t epoch = uint32_t(gate);
  uint64_t start = region->start;
  region->start = 0;
  if (epoch == 0) return;
  fleetscope_site* site = region->site;
  Argument extras[2 + kLinks];
  Thread* thread = t_thread;
  if (__builtin_expect(thread && thread->native && thread->epoch == epoch && thread->slot, 1)) {
    const Open* open = finish(thread, site, region);
    if (!open || open->unsampled) return;  // given up; or one of those that leave no record
    uint32_t count =
        __builtin_expect(open->shift || region->flow, 0) ? extras_of(open->shift, region->flow, extras) : 0;
    if (__builtin_expect(open->linked, 0)) count += take_links(thread, *open, extras + count, kLinks);
    append(thread, start, open->name, now > start ? now - start : 0, running_step(), kHost, extras, count);
    return;
  }
  uint64_t state = state_of(site, gate);
  if (!sampled(site, shift_in(state))) return;
  uint32_t count = extras_of(shift_in(state), region->flow, extras);
  append_native(epoch, start, name_in(state), now > start ? now - start : 0, running_step(), kHost, extras, count, 0);
}

void write_at_once(fleetscope_site* site, uint8_t kind, uint64_t value, uint64_t flow) {
  uint64_t gate = gate_word();
  if (uint32_t(gate) == 0) return;
  uint64_t state = state_of(site, gate);
  // A counter's values have no weight: the governor leaves them alone.
  uint8_t shift = kind == kHost ? shift_in(state) : std::min(site->sample, kShiftLimit);
  if (!(state & kOn) || !sampled(site, shift)) return;
  Argument extras[2];
  uint32_t count = kind == kHost ? extras_of(shift, flow, extras) : 0;
  append_native(uint32_t(gate), counter(), name_in(state), 0, value, kind, extras, count, 0);
}

void instant_native(fleetscope_site* site, uint64_t flow) {
  if (gate()) write_at_once(site, kHost, running_step(), flow);
}
void counter_int_native(fleetscope_site* site, int64_t value) { write_at_once(site, kCounterInt, uint64_t(value), 0); }
void counter_float_native(fleetscope_site* site, double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  write_at_once(site, kCounterFloat, bits, 0);
}

void link_native(uint32_t role, uint32_t context_type, uint64_t context_id) {
  static fleetscope_site here = FLEETSCOPE_SITE("link");
  uint64_t gate = gate_word();
  uint32_t epoch = uint32_t(gate);
  if (epoch == 0 || context_type >= kNameLimit) return;
  Thread* thread = t_thread;
  // As for a begin: others leave the stack and the links of a thread without the GIL alone.
  if (!thread || !thread->native || thread->epoch != epoch || !thread->slot) thread = stack_of_native(epoch);
  for (auto [bit, kind] : {std::pair{FLEETSCOPE_PRODUCES, kProducer}, std::pair{FLEETSCOPE_CONSUMES, kConsumer}}) {
    if (!(role & bit)) continue;
    Argument link = {context_type, uint8_t(kind), context_id};
    if (thread && link_region(thread, nullptr, nullptr, link)) continue;
    uint64_t state = state_of(&here, gate);
    if (state & kOn) append_native(epoch, counter(), name_in(state), 0, running_step(), kHost, &link, 1, 0);
  }
}

fleetscope_recorder_table g_table = {FLEETSCOPE_RECORDER_TABLE_VERSION,
                                     sizeof(fleetscope_recorder_table),
                                     nullptr,
                                     begin_native,
                                     end_native,
                                     instant_native,
                                     counter_int_native,
                                     counter_float_native,
                                     link_native,
                                     new_flow};

}  // namespace

// Once, before anybody can find the table: those who do come from any thread.
bool start_public() {
  if (!start_once()) return false;
  g_table.gate = reinterpret_cast<const uint64_t*>(&g_gate->word);
  return true;
}

}  // namespace fleetscope::recorder

extern "C" __attribute__((visibility("default"))) const fleetscope_recorder_table* fleetscope_recorder_table_v1(void) {
  using namespace fleetscope::recorder;
  return g_table.gate ? &g_table : nullptr;
}
