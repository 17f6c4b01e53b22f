// Loops of benchmarks/recorder_native.py. Each returns the nanoseconds of `count` passes.
#include <time.h>
#include <x86intrin.h>

#include <atomic>
#include <cstdint>

#include "fleetscope/recorder.h"

namespace {

struct alignas(32) Record {
  std::atomic<uint64_t> field[4];
};
Record ring[8192];
uint64_t index = 0;

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_RAW, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

template <class Body>
int64_t timed(int64_t count, Body body) {
  int64_t begin = now_ns();
  for (int64_t i = 0; i < count; ++i) {
    asm volatile("" ::: "memory");
    body();
  }
  return now_ns() - begin;
}

}  // namespace

extern "C" int64_t empty(int64_t count) {
  return timed(count, [] {});
}

// The bare cost: two reads of the counter and one 32-byte record.
extern "C" int64_t floor_of_region(int64_t count) {
  return timed(count, [] {
    uint64_t start = __rdtsc();
    asm volatile("" ::: "memory");
    uint64_t end = __rdtsc();
    Record& record = ring[index++ & 8191];
    record.field[0].store(start, std::memory_order_relaxed);
    record.field[1].store(end - start, std::memory_order_relaxed);
    record.field[2].store(1, std::memory_order_relaxed);
    record.field[3].store(index, std::memory_order_release);
  });
}

extern "C" int64_t region(int64_t count) {
  return timed(count, [] { FLEETSCOPE_SCOPE("region"); });
}
