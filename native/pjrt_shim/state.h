// What all parts of the shim share: the recorder, the lock of everything that is not hot, and what a fork does to it.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "layout.h"
#include "native.h"

namespace fleetscope::pjrt {

using recorder::kCounterInt;
using recorder::kD2H;
using recorder::kDevice;
using recorder::kDone;
using recorder::kFailed;
using recorder::kH2D;
using recorder::kLaunch;
using recorder::kLoad;
using recorder::kUnload;

// Set once, before the first plugin is wrapped.
extern const fleetscope_recorder_api* g_recorder;
extern uint64_t g_period_num, g_period_den;  // nominal nanoseconds a tick

// A child of a process that had a client: a plugin does not survive a fork, so everything is forwarded, no lock taken.
extern std::atomic<bool> g_inherited;
// Clients made in this process (not its ancestors); a fork with none leaves the child fresh.
extern std::atomic<uint32_t> g_clients_made;

// 0: forward only.
inline uint32_t recording() {
  return __builtin_expect(g_inherited.load(std::memory_order_relaxed), 0) ? 0 : g_recorder->epoch();
}

// Programs, devices, clients, what waits for the keeper. Never held while a plugin is called.
extern pthread_mutex_t g_lock;
class Hold {
 public:
  explicit Hold(pthread_mutex_t* lock = &g_lock) : lock_(lock) { pthread_mutex_lock(lock); }
  ~Hold() { pthread_mutex_unlock(lock_); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  pthread_mutex_t* lock_;
};

// Totals since the process began; written as COUNTER records when they change.
struct Counts {
  std::atomic<uint64_t> errors{0};        // calls and executions that the plugin reported as failed
  std::atomic<uint64_t> refused{0};       // plugins that run unwrapped
  std::atomic<uint64_t> twice{0};         // completions told more than once
  std::atomic<uint64_t> untracked{0};     // executions whose completion could not be asked for
  std::atomic<uint64_t> hlo_left_out{0};  // programs whose HLO was not written
};
extern Counts g_counts;

// A name's id in the open segment, kept per epoch: the table has 8 192 entries.
class Name {
 public:
  uint32_t in(uint32_t epoch, const char* text, uint64_t bytes) {
    uint64_t known = value_.load(std::memory_order_relaxed);
    if (__builtin_expect(uint32_t(known >> 32) == epoch, 1)) return uint32_t(known);
    uint32_t id = g_recorder->name(epoch, text, bytes);
    value_.store(uint64_t{epoch} << 32 | id, std::memory_order_relaxed);
    return id;
  }
  void forget() { value_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};  // epoch << 32 | id
};

inline bool write(uint32_t epoch, uint8_t kind, uint64_t start, uint64_t dur, uint32_t name, uint64_t arg,
                  uint8_t flags = 0, const fleetscope_argument* arguments = nullptr, uint32_t count = 0) {
  fleetscope_record record = {start, dur, arg, name, kind, flags, count, arguments};
  return g_recorder->write(epoch, &record) != 0;
}

void start_state(const fleetscope_recorder_api* recorder);  // idempotent

}  // namespace fleetscope::pjrt
