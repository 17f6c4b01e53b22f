#include "state.h"

#include "flights.h"
#include "keeper.h"
#include "session.h"

namespace fleetscope::pjrt {

const fleetscope_recorder_api* g_recorder = nullptr;
uint64_t g_period_num = 1, g_period_den = 1;
std::atomic<bool> g_inherited{false};
std::atomic<uint32_t> g_clients_made{0};
pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
Counts g_counts;

namespace {

void after_fork_in_child() {
  // Locks may have been held by threads that no longer exist.
  g_lock = PTHREAD_MUTEX_INITIALIZER;
  if (g_clients_made.load(std::memory_order_relaxed) != 0) g_inherited.store(true, std::memory_order_relaxed);
  flights_after_fork();
  session_after_fork();
  keeper_after_fork();
}

}  // namespace

void start_state(const fleetscope_recorder_api* recorder) {
  if (g_recorder) return;
  recorder->period(&g_period_num, &g_period_den);  // chooses the counter
  g_recorder = recorder;
  pthread_atfork(nullptr, nullptr, after_fork_in_child);
}

}  // namespace fleetscope::pjrt
