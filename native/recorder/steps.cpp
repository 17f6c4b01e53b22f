// The newest step, and waiting for one: what device windows are placed by. The same of a program's executions.
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "writer.h"

namespace fleetscope::recorder {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// A long step counts when there are two within 256 steps: a checkpoint of 14 s once in 1 000 steps made windows of 30
// s, whose stops took 1.3 s. Forgotten with a half-life of about 700 steps.
constexpr uint64_t kTogether = 256;

// Written by one thread at a time (steps: under the GIL); read by the window thread at any time.
struct Course {
  std::atomic<int64_t> step{-1};
  std::atomic<uint64_t> start{0};
  std::atomic<uint64_t> count{0};
  std::atomic<uint64_t> period{0};
  std::atomic<uint64_t> longest{0};
  std::atomic<uint64_t> since_compile{0};
  std::atomic<bool> compiled{false};
  std::atomic<int64_t> wanted{INT64_MAX};    // INT64_MAX: nobody waits, and a step costs no system call
  uint64_t candidate = 0, candidate_at = 0;  // the writer's own

  // They were ticks of another clock.
  void forget_times() {
    start.store(0);
    period.store(0);
    longest.store(0);
    candidate = candidate_at = 0;
  }

  void forget() {
    forget_times();
    step.store(-1);
    count.store(0);
    since_compile.store(0);
    wanted.store(INT64_MAX);
  }

  uint64_t longest_with(uint64_t took, uint64_t before, uint64_t begun) {
    before -= before >> 10;
    if (took <= before) return before;
    bool again = candidate && begun - candidate_at <= kTogether;
    uint64_t both = again ? (took < candidate ? took : candidate) : 0;
    if (!again || took > candidate) {  // of two that disagree the longer waits on for its like
      candidate = took;
      candidate_at = begun;
    }
    return both > before ? both : before;
  }

  void begin(int64_t number, uint64_t now) {
    uint64_t last = start.load(kRelaxed), begun = count.load(kRelaxed);
    bool built = compiled.exchange(false, kRelaxed);
    if (begun && last && now > last && !built) {
      uint64_t took = now - last, usual = period.load(kRelaxed);
      period.store(usual ? usual - usual / 16 + took / 16 : took, kRelaxed);
      longest.store(longest_with(took, longest.load(kRelaxed), begun), kRelaxed);
    }
    since_compile.store(built ? 0 : since_compile.load(kRelaxed) + 1, kRelaxed);
    count.store(begun + 1, kRelaxed);
    start.store(now, kRelaxed);
    step.store(number, std::memory_order_release);
  }

  void note_compile() {
    compiled.store(true, kRelaxed);
    since_compile.store(0, kRelaxed);
  }

  // Whether somebody waits for `number`; the wish is granted with that.
  bool grant(int64_t number) {
    if (__builtin_expect(number < wanted.load(kRelaxed), 1)) return false;
    wanted.store(INT64_MAX, std::memory_order_release);
    return true;
  }
};

Course g_steps, g_executions;
std::atomic<bool> g_executing{false};  // a thread writes g_executions
std::atomic<uint32_t> g_followed{0};   // whose they are
std::atomic<uint64_t> g_mark{0}, g_marked_end{0};
std::atomic<int64_t> g_marked{-1};
std::atomic<uint32_t> g_bell{0};

Course& course(Pace pace) { return pace == Pace::kSteps ? g_steps : g_executions; }

void ring() {
  g_bell.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&g_bell), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace

void step_begin(int64_t step, uint64_t now) {
  if (g_steps.step.load(kRelaxed) == step && g_steps.start.load(kRelaxed)) return;  // the same step, annotated twice
  g_steps.begin(step, now);
  Header* head = g_head.load(std::memory_order_acquire);
  head->step_start.store(now, kRelaxed);
  head->step.store(step, std::memory_order_release);
  if (g_steps.grant(step)) ring();
}

void execution_begins(uint32_t whose, int64_t number, uint64_t now) {
  if (g_executing.exchange(true, std::memory_order_acquire)) return;
  bool granted = false;
  if (whose == g_followed.load(kRelaxed) && number > g_executions.step.load(kRelaxed)) {
    g_executions.begin(number, now);
    granted = g_executions.grant(number);
  }
  g_executing.store(false, std::memory_order_release);
  if (granted) ring();
}

void execution_ends(uint32_t whose, int64_t number, uint64_t now) {
  uint64_t mark = g_mark.load(kRelaxed);
  if (__builtin_expect(!mark || now < mark, 1)) return;
  if (g_executing.exchange(true, std::memory_order_acquire)) return;  // the next completion will do
  if (whose == g_followed.load(kRelaxed)) {
    g_marked.store(number, kRelaxed);
    g_marked_end.store(now, kRelaxed);
    g_mark.compare_exchange_strong(mark, 0, std::memory_order_release, kRelaxed);  // else there is a newer one
  }
  g_executing.store(false, std::memory_order_release);
}

void follow_program(uint32_t whose) {
  while (g_executing.exchange(true, std::memory_order_acquire)) sched_yield();
  if (g_followed.exchange(whose, kRelaxed) != whose) {
    g_executions.forget();
    g_mark.store(0, kRelaxed);
    g_marked.store(-1, kRelaxed);
  }
  g_executing.store(false, std::memory_order_release);
}

void executions_after_fork() {
  g_executing.store(false);
  g_followed.store(0);
  g_executions.forget();
}

void forget_steps() { g_steps.forget(); }

void restore_steps(const StepState& before) {
  g_steps.step.store(before.step);
  g_steps.count.store(before.count);
  g_steps.since_compile.store(before.since_compile);
  g_head.load(std::memory_order_acquire)->step.store(before.step, std::memory_order_release);
  while (g_executing.exchange(true, std::memory_order_acquire)) sched_yield();
  g_executions.forget_times();
  g_mark.store(0, kRelaxed);
  g_executing.store(false, std::memory_order_release);
}

void note_compile() {
  g_steps.note_compile();
  g_executions.note_compile();
}

StepState step_state(Pace pace) {
  const Course& of = course(pace);
  return {of.step.load(std::memory_order_acquire),
          of.start.load(kRelaxed),
          of.count.load(kRelaxed),
          of.period.load(kRelaxed),
          of.longest.load(kRelaxed),
          of.since_compile.load(kRelaxed)};
}

bool wait_step(Pace pace, int64_t step, int64_t timeout_ns) {
  Course& of = course(pace);
  uint32_t bell = g_bell.load(std::memory_order_acquire);
  of.wanted.store(step, std::memory_order_seq_cst);
  if (step != INT64_MAX && of.step.load(std::memory_order_seq_cst) >= step) {
    of.wanted.store(INT64_MAX, kRelaxed);
    return true;
  }
  timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&g_bell), FUTEX_WAIT_PRIVATE, bell, &timeout, nullptr, 0);
  // grant() takes the wish back; another step may have begun since.
  bool granted = of.wanted.exchange(INT64_MAX, std::memory_order_acq_rel) == INT64_MAX;
  return step != INT64_MAX && granted;
}

void mark_execution(uint64_t at) {
  g_marked.store(-1, kRelaxed);
  g_mark.store(at, std::memory_order_release);
}

bool marked_execution(int64_t* number, uint64_t* end) {
  if (g_mark.load(std::memory_order_acquire)) return false;
  *number = g_marked.load(kRelaxed);
  *end = g_marked_end.load(kRelaxed);
  return *number >= 0;
}

void wake() { ring(); }

}  // namespace fleetscope::recorder
