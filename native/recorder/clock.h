// The counter that stamps records: rdtsc where the kernel itself keeps time by the TSC, else CLOCK_MONOTONIC_RAW.
#pragma once

#include <time.h>

#include <cstdint>

#include "layout.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace fleetscope::recorder {

struct Clock {
  ClockKind kind = ClockKind::kMonotonicRaw;
  uint64_t period_num = 1;
  uint64_t period_den = 1;
};

inline int64_t read_ns(clockid_t id) {
  timespec now;
  clock_gettime(id, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

// Not serialising: rdtscp or a fence doubles the price (10.8 -> 22 ns) and regions shorter than 100 ns are not the
// point.
inline uint64_t read_counter(ClockKind kind) {
#if defined(__x86_64__)
  if (__builtin_expect(kind == ClockKind::kTsc, 1)) return __rdtsc();
#endif
  (void)kind;
  return static_cast<uint64_t>(read_ns(CLOCK_MONOTONIC_RAW));
}

// What this boot of this host offers; the same answer for every process of it, until the kernel changes its mind.
Clock host_clock();

// As host_clock(), found anew: the kernel may have stopped to trust the TSC since. Later calls of host_clock() say so
// too.
Clock look_again();

// Where the kernel says what it keeps time by; a test puts its own file there.
extern const char* g_clock_source;

// What happened to a clock between two readings of it: nullptr, or why what was stamped before and what will be stamped
// have no common line: "stepped back" (a VM was restored), "leapt" (it was stopped, or moved to another machine).
const char* clock_fault(const Clock& clock, const Anchor& before, const Anchor& now);

// The tightest of `tries` brackets of counter and REALTIME between two reads of MONOTONIC_RAW.
Anchor read_anchor(ClockKind kind, int tries);

// A clock of the system between two reads of MONOTONIC_RAW, ns.
struct Bracket {
  int64_t raw_before_ns;
  int64_t value_ns;
  int64_t raw_after_ns;
};

// The tightest of `tries` brackets of any clock that clock_gettime knows; false where it does not.
bool read_bracket(clockid_t id, int tries, Bracket* best);

}  // namespace fleetscope::recorder
