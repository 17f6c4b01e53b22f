#include "clock.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <numeric>

namespace fleetscope::recorder {
namespace {

// The first `capacity` bytes of a file, NUL-terminated; false when it cannot be read.
bool read_head(const char* path, char* text, size_t capacity) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t bytes = read(fd, text, capacity - 1);
  close(fd);
  if (bytes <= 0) return false;
  text[bytes] = 0;
  return true;
}

#if defined(__x86_64__)
// The kernel's own figure of the TSC's rate, in units of 5 kHz, or 0. Where the TSC keeps time, BogoMIPS is not
// measured but computed from it (lpj = tsc_khz * 1000 / HZ), so every process of a boot reads the same: a period that
// processes measured for themselves would differ between them, and with it the durations.
uint64_t tsc_rate_5khz() {
  char text[8192];
  if (!read_head("/sys/devices/system/clocksource/clocksource0/current_clocksource", text, sizeof text)) return 0;
  if (strncmp(text, "tsc\n", 4) != 0) return 0;
  if (!read_head("/proc/cpuinfo", text, sizeof text)) return 0;
  const char* flags = strstr(text, "constant_tsc");
  const char* found = strstr(text, "bogomips");
  if (!flags || !strstr(text, "nonstop_tsc") || !found) return 0;
  found = strchr(found, ':');
  if (!found) return 0;
  char* end = nullptr;
  unsigned long long whole = strtoull(found + 1, &end, 10);
  if (!end || end[0] != '.' || whole == 0 || whole > 100000) return 0;
  unsigned long long hundredths = strtoull(end + 1, nullptr, 10);
  return whole * 100 + (hundredths % 100);
}
#endif

}  // namespace

// One look at the claim: 200 us bound the true rate to about 0.1 %; a BogoMIPS that means something else is far off. A
// thread that is preempted between two reads sees a wrong rate, so it looks again.
static Clock look_for_clock() {
  Clock clock;
#if defined(__x86_64__)
  uint64_t rate = tsc_rate_5khz();
  for (int tries = 0; rate && tries < 5; ++tries) {
    int64_t raw0 = read_ns(CLOCK_MONOTONIC_RAW);
    uint64_t tsc0 = __rdtsc();
    int64_t raw1;
    do raw1 = read_ns(CLOCK_MONOTONIC_RAW);
    while (raw1 - raw0 < 200000);
    double measured = double(__rdtsc() - tsc0) / double(raw1 - raw0);  // ticks a ns
    double stated = double(rate) * 5e3 / 1e9;
    if (measured > stated * 0.95 && measured < stated * 1.05) {
      uint64_t num = 200000, den = rate, divisor = std::gcd(num, den);
      return {ClockKind::kTsc, num / divisor, den / divisor};
    }
  }
#endif
  return clock;
}

// Found once a process: a second answer would give records of one process two units.
Clock host_clock() {
  static const Clock clock = look_for_clock();
  return clock;
}

Anchor read_anchor(ClockKind kind, int tries) {
  Anchor best{};
  for (int i = 0; i < tries; ++i) {
    Anchor now;
    now.raw_before_ns = read_ns(CLOCK_MONOTONIC_RAW);
    now.counter = static_cast<int64_t>(read_counter(kind));
    now.realtime_ns = read_ns(CLOCK_REALTIME);
    now.raw_after_ns = read_ns(CLOCK_MONOTONIC_RAW);
    if (i == 0 || now.raw_after_ns - now.raw_before_ns < best.raw_after_ns - best.raw_before_ns) best = now;
  }
  return best;
}

}  // namespace fleetscope::recorder
