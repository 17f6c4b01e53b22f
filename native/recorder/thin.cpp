#include "thin.h"

#include <pthread.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <new>

#include "writer.h"

namespace fleetscope::recorder {
namespace {

pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
Thinned g_names[kThinned];
uint32_t g_count = 0;
uint8_t g_rest = 0;

}  // namespace

uint64_t hash_of_name(const char* text, size_t bytes) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<uint8_t>(text[i])) * 0x100000001b3;
  return hash;
}

bool set_thinned(uint8_t rest, const Thinned* names, uint32_t count) {
  count = std::min(count, kThinned);
  pthread_mutex_lock(&g_lock);
  bool same = rest == g_rest && count == g_count;
  for (uint32_t i = 0; same && i < count; ++i) {
    same = g_names[i].hash == names[i].hash && g_names[i].shift == names[i].shift;
  }
  g_rest = rest;
  g_count = count;
  for (uint32_t i = 0; i < count; ++i) g_names[i] = names[i];
  pthread_mutex_unlock(&g_lock);
  return !same;
}

uint8_t shift_of_name(const char* text, size_t bytes) {
  uint64_t hash = hash_of_name(text, bytes);
  pthread_mutex_lock(&g_lock);
  uint8_t shift = g_rest;
  for (uint32_t i = 0; i < g_count; ++i) {
    if (g_names[i].hash == hash) shift = g_names[i].shift;
  }
  pthread_mutex_unlock(&g_lock);
  return shift;
}

void forget_thinned_lock() { g_lock = PTHREAD_MUTEX_INITIALIZER; }

namespace {

constexpr uint32_t kRing = 1024;
struct Scratch {
  Thread thread;
  Slot slot{};
  OpenRegion open[kOpenDepth];
  Record ring[kRing];
};

// Ticks of a region, the tenth percentile of batches: what a neighbour takes is not ours.
double ticks_of_region(Scratch* scratch, bool unsampled) {
  constexpr int kBatches = 64, kRegions = 64;
  Thread* thread = &scratch->thread;
  double taken[kBatches];
  for (double& ticks : taken) {
    uint64_t begun = counter();
    for (int i = 0; i < kRegions; ++i) {
      begin(thread, {scratch, nullptr, nullptr, 0, 1, kHost, false, unsampled, 0});
      uint64_t now = unsampled ? 0 : counter();
      const Open* open = finish(thread, scratch, nullptr);
      if (!unsampled) append_one(thread, open->start, open->name, now - open->start, 0, open->kind);
    }
    ticks = double(counter() - begun) / kRegions;
  }
  std::nth_element(taken, taken + kBatches / 10, taken + kBatches);
  return taken[kBatches / 10];
}

}  // namespace

RegionCost measure_regions() {
  std::unique_ptr<Scratch> scratch(new (std::nothrow) Scratch);
  if (!scratch) return {};
  Clock clock;  // before a segment is open the counter may be another than the host's
  if (g_clock == host_clock().kind) clock = host_clock();
  scratch->thread.slot = &scratch->slot;
  scratch->thread.open = scratch->open;
  scratch->thread.ring = scratch->ring;
  scratch->thread.mask = kRing - 1;
  double ps = 1e3 * double(clock.period_num) / double(clock.period_den);
  return {uint64_t(ticks_of_region(scratch.get(), false) * ps), uint64_t(ticks_of_region(scratch.get(), true) * ps)};
}

}  // namespace fleetscope::recorder
