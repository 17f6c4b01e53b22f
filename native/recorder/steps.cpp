// The newest step, and waiting for one: what device windows are placed by.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "writer.h"

namespace fleetscope::recorder {
namespace {

// Written by whatever thread begins a step, under the GIL; read by the window thread without it.
std::atomic<int64_t> g_step{-1};
std::atomic<uint64_t> g_start{0};
std::atomic<uint64_t> g_count{0};
std::atomic<uint64_t> g_period{0};
std::atomic<uint64_t> g_longest{0};
std::atomic<uint64_t> g_since_compile{0};
std::atomic<bool> g_compiled{false};
std::atomic<int64_t> g_wanted{INT64_MAX};  // INT64_MAX: nobody waits, and a step costs no system call
std::atomic<uint32_t> g_bell{0};

void ring() {
  g_bell.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&g_bell), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

// A long step counts when there are two within 256 steps: a checkpoint of 14 s once in 1 000 steps made windows of 30
// s, whose stops took 1.3 s. Forgotten with a half-life of about 700 steps.
constexpr uint64_t kTogether = 256;
uint64_t g_candidate = 0, g_candidate_at = 0;  // under the GIL, as step_begin is

uint64_t longest_with(uint64_t took, uint64_t longest, uint64_t count) {
  longest -= longest >> 10;
  if (took <= longest) return longest;
  bool again = g_candidate && count - g_candidate_at <= kTogether;
  uint64_t both = again ? (took < g_candidate ? took : g_candidate) : 0;
  if (!again || took > g_candidate) {  // of two that disagree the longer waits on for its like
    g_candidate = took;
    g_candidate_at = count;
  }
  return both > longest ? both : longest;
}

}  // namespace

void step_begin(int64_t step, uint64_t now) {
  constexpr auto relaxed = std::memory_order_relaxed;
  uint64_t before = g_start.load(relaxed);
  if (g_step.load(relaxed) == step && before) return;  // the same step, annotated twice
  bool compiled = g_compiled.exchange(false, relaxed);
  if (g_count.load(relaxed) && now > before) {
    uint64_t took = now - before;
    if (!compiled) {
      uint64_t period = g_period.load(relaxed);
      g_period.store(period ? period - period / 16 + took / 16 : took, relaxed);
      g_longest.store(longest_with(took, g_longest.load(relaxed), g_count.load(relaxed)), relaxed);
    }
  }
  g_since_compile.store(compiled ? 0 : g_since_compile.load(relaxed) + 1, relaxed);
  g_count.fetch_add(1, relaxed);
  g_start.store(now, relaxed);
  g_step.store(step, std::memory_order_release);
  if (segment_is_open()) {
    Header* head = const_cast<Header*>(segment_header());
    head->step_start.store(now, relaxed);
    head->step.store(step, std::memory_order_release);
  }
  if (__builtin_expect(step >= g_wanted.load(relaxed), 0)) {
    g_wanted.store(INT64_MAX, std::memory_order_release);
    ring();
  }
}

void forget_steps() {
  g_step.store(-1);
  g_start.store(0);
  g_count.store(0);
  g_period.store(0);
  g_longest.store(0);
  g_candidate = g_candidate_at = 0;
  g_since_compile.store(0);
  g_wanted.store(INT64_MAX);
}

void note_compile() {
  g_compiled.store(true, std::memory_order_relaxed);
  g_since_compile.store(0, std::memory_order_relaxed);
}

StepState step_state() {
  constexpr auto relaxed = std::memory_order_relaxed;
  return {g_step.load(std::memory_order_acquire),
          g_start.load(relaxed),
          g_count.load(relaxed),
          g_period.load(relaxed),
          g_longest.load(relaxed),
          g_since_compile.load(relaxed)};
}

bool wait_step(int64_t step, int64_t timeout_ns) {
  uint32_t bell = g_bell.load(std::memory_order_acquire);
  g_wanted.store(step, std::memory_order_seq_cst);
  if (step != INT64_MAX && g_step.load(std::memory_order_seq_cst) >= step) {
    g_wanted.store(INT64_MAX, std::memory_order_relaxed);
    return true;
  }
  timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&g_bell), FUTEX_WAIT_PRIVATE, bell, &timeout, nullptr, 0);
  // step_begin() takes the wish back when it is granted; another step may have begun since.
  bool granted = g_wanted.exchange(INT64_MAX, std::memory_order_acq_rel) == INT64_MAX;
  return step != INT64_MAX && granted;
}

void wake() { ring(); }

}  // namespace fleetscope::recorder
