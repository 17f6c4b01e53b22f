#include "clock.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace fleetscope::recorder {

const char* g_clock_source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

namespace {

// Beyond what two clocks of one machine drift apart between two looks: 1 ms and 0.1 %.
constexpr int64_t kSlackNs = 1000000;
constexpr int64_t kSlackPart = 1000;

std::atomic<const Clock*> g_found{nullptr};

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
  if (!read_head(g_clock_source, text, sizeof text)) return 0;
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

// Found once, until look_again(): a second answer would give records of one segment two units.
Clock host_clock() {
  const Clock* known = g_found.load(std::memory_order_acquire);
  return known ? *known : look_again();
}

// What was found before stays where it is: another thread may be reading it, and it changes a few times in a life. The
// kernel's word is enough for a clock that was looked at closely before: on a busy machine each look may be preempted.
Clock look_again() {
  const Clock* known = g_found.load(std::memory_order_acquire);
#if defined(__x86_64__)
  uint64_t rate = known && known->kind == ClockKind::kTsc ? tsc_rate_5khz() : 0;
  if (rate && rate * known->period_num == 200000 * known->period_den) return *known;
#endif
  Clock found = look_for_clock();
  if (known && found.kind == known->kind && found.period_num == known->period_num &&
      found.period_den == known->period_den) {
    return *known;
  }
  const Clock* fresh = new Clock(found);
  g_found.store(fresh, std::memory_order_release);
  return *fresh;
}

const char* clock_fault(const Clock& clock, const Anchor& before, const Anchor& now) {
  int64_t raw_ns = now.raw_before_ns - before.raw_before_ns;
  if (now.counter < before.counter || raw_ns < 0) return "stepped back";
  __int128 ticks = now.counter - before.counter;
  __int128 apart = ticks * __int128(clock.period_num) / __int128(clock.period_den) - raw_ns;
  __int128 width = (now.raw_after_ns - now.raw_before_ns) + (before.raw_after_ns - before.raw_before_ns);
  __int128 slack = kSlackNs + raw_ns / kSlackPart + width;
  return apart > slack || apart < -slack ? "leapt" : nullptr;
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

bool read_bracket(clockid_t id, int tries, Bracket* best) {
  for (int i = 0; i < tries; ++i) {
    timespec value;
    Bracket now;
    now.raw_before_ns = read_ns(CLOCK_MONOTONIC_RAW);
    if (clock_gettime(id, &value) != 0) return false;
    now.raw_after_ns = read_ns(CLOCK_MONOTONIC_RAW);
    now.value_ns = int64_t{value.tv_sec} * 1000000000 + value.tv_nsec;
    if (i == 0 || now.raw_after_ns - now.raw_before_ns < best->raw_after_ns - best->raw_before_ns) *best = now;
  }
  return true;
}

}  // namespace fleetscope::recorder
