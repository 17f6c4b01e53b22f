// The toy plugin: what its parts share, and what programs of the tests call.
//
// toy_plugin.cpp is the plugin, toy_events.cpp how its completions come and the log of them, toy_profiler.cpp a
// profiler of its own, toy_caller.cpp a caller as jaxlib is one. Not part of the package.
#pragma once

#include <stdint.h>
#include <time.h>

#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "abi.h"

#define TOY_API extern "C" __attribute__((visibility("default")))

namespace toy {

using namespace fleetscope::pjrt;

// How completions come.
enum Mode : int64_t {
  kInline = 0,       // ready when Execute returns
  kThread = 1,       // from a worker, in order
  kNever = 2,        // not at all
  kHeld = 3,         // when toy_release() is called, from its thread; newest first if `reverse`
  kTwice = 4,        // from a worker, each twice
  kDeviceFails = 5,  // from a worker, with an error
  kExecuteFails = 6,
  kOnReadyFails = 7,  // registration is refused
  kOnReadyLies = 8,   // it is refused, and the callback called all the same
};

struct Options {
  std::atomic<int64_t> mode{kInline}, stall_us{0}, reverse{0}, tsc{0}, hlo_bytes{64}, hlo_stall_us{0}, log{1}, whole{0},
      period_ps{1000};
  int64_t minor = 106, slots = 136, major = 0, size = 0, profiler = 0, nothing = 0, devices = 4, memory = 1, hole = -1,
          edge = 0;
};
extern Options g_options;

inline uint64_t ticks() {
#if defined(__x86_64__)
  if (g_options.tsc.load(std::memory_order_relaxed)) return __rdtsc();
#endif
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_RAW, &now);
  return uint64_t(now.tv_sec) * 1000000000 + uint64_t(now.tv_nsec);
}

// Time this thread spent inside the plugin since it last looked: what the shim costs is the rest.
extern __thread uint64_t t_inside;
struct Inside {
  uint64_t begin = ticks();
  ~Inside() { t_inside += ticks() - begin; }
};

struct ToyError {
  int code;
  std::string message;
};
inline Error* fail(int code, const char* message) { return reinterpret_cast<Error*>(new ToyError{code, message}); }

extern std::atomic<int64_t> g_complaints, g_events_live, g_profiles;

template <class Args>
Args* expect(void* args, size_t least = sizeof(Args)) {
  auto* typed = static_cast<Args*>(args);
  if (typed->struct_size < least) g_complaints.fetch_add(1);
  return typed;
}

// What the plugin itself knows of an execution on a device.
struct Entry {
  uint64_t executable, number;  // number: of this executable's executions, from 0
  uint64_t device;
  uint64_t enqueued;                    // inside Execute
  std::atomic<uint64_t> before, after;  // around the callbacks; 0: not completed
  std::atomic<uint64_t> began{0};       // when the device got to it (from a worker only)
};
extern Entry* g_log;
extern std::atomic<uint64_t> g_logged;
extern uint64_t g_log_size;

struct ToyEvent {
  std::atomic<int> references{1};
  std::mutex lock;
  bool ready = false, failed = false;
  int64_t mode = kInline;
  std::vector<std::pair<void (*)(Error*, void*), void*>> callbacks;
  Entry* entry = nullptr;
};

ToyEvent* make_event(int64_t mode);
void release(ToyEvent* event);
// Completes it as its mode says. The plugin's own reference goes with the completion.
void run(ToyEvent* event);
Error* event_destroy(void* args);
Error* event_on_ready(void* args);

struct ToyDescription {
  int id;
};
struct ToyClient;
struct ToyDevice {
  ToyClient* client;
  ToyDescription description;
};
struct ToyClient {
  std::vector<ToyDevice*> devices;
  std::vector<Device*> pointers;
};
struct ToyLoaded {
  ToyClient* client;
  uint64_t id;
  std::string name;
  std::atomic<uint64_t> runs{0};
};
struct ToyBuffer {
  ToyDevice* device;
};

extern ProfilerExtension g_profiler;

}  // namespace toy

TOY_API const void* GetPjrtApi();
TOY_API void toy_set(const char* name, int64_t value);
// How many of something live, or were counted.
TOY_API int64_t toy_live(const char* what);

TOY_API void toy_log(uint64_t entries);
// Entries from `at` on, seven numbers each; the count of all.
TOY_API uint64_t toy_read_log(uint64_t at, uint64_t count, uint64_t* into);
// Completes what is held; how many.
TOY_API int64_t toy_release(int64_t most);
TOY_API int64_t toy_waiting();

// Through a table, ours or the real one.
TOY_API void* toy_client(const toy::Table* table);
TOY_API void* toy_device(toy::Client* client, int64_t number);
TOY_API void toy_client_destroy(const toy::Table* table, toy::Client* client);
TOY_API void* toy_compile(const toy::Table* table, toy::Client* client, const char* name, int64_t cached);
TOY_API void toy_unload(const toy::Table* table, void* executable);
TOY_API uint64_t toy_id(void* executable);
// Executes `count` times on `devices`; asks for events when `want`, and drops them. `one`: a device to run on instead.
// `cost`, when given: per call, ticks on this thread that were not inside the plugin (all of them if `whole`). How many
// calls failed.
TOY_API int64_t toy_execute(const toy::Table* table, void* executable, int64_t count, int64_t devices, int64_t want,
                            void* one, int64_t size, uint64_t* cost);
// `threads` callers at once, each with an executable of its own.
TOY_API int64_t toy_execute_threads(const toy::Table* table, void** executables, int64_t threads, int64_t count,
                                    int64_t devices, int64_t want);
// One transfer of each kind, `bytes` long: H2D by buffer and by manager, D2H three ways. How many calls failed.
TOY_API int64_t toy_transfer(const toy::Table* table, toy::Client* client, int64_t bytes);
