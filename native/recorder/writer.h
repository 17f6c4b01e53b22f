// The writing side: one segment a process, one ring a thread, no lock, no allocation and no system call on the path of
// an event but for a thread's first.
#pragma once

#include <cstdint>

#include "clock.h"
#include "layout.h"

namespace fleetscope::recorder {

// Alone on a page that a forked child finds wiped (MADV_WIPEONFORK): a child records nothing, even after a raw clone(),
// until it opens a segment of its own.
struct Gate {
  std::atomic<uint32_t> epoch;  // 0: off; else the number of the open segment
};
extern Gate* g_gate;

struct Argument {
  uint32_t key;  // name
  uint8_t kind;  // kArgInt, kArgFloat, kArgName
  uint64_t value;
};

// A region a thread has begun. `owner` tells whose it is: ends may come out of order (async, generators).
struct Open {
  const void* owner;
  void* context;  // the caller's; handed back by finish(), or by begin() when the region is given up
  uint64_t start;
  uint32_t name;
  uint8_t kind;
  bool held;  // `context` is to be released when the region is over
};

struct Thread {
  uint32_t epoch = 0;  // of the segment `slot` lies in; another epoch: not registered
  uint32_t depth = 0;
  bool nameless = false;  // its first record came from native code: Python has not said yet what it calls the thread
  Slot* slot = nullptr;
  Record* ring = nullptr;
  OpenRegion* open = nullptr;
  uint64_t mask = 0;
  uint64_t index = 0;  // next record
  uint64_t seq = 0;    // next event
  uint64_t generation = 0;
  Open stack[kOpenDepth];
};

// nullptr when this thread got no ring (counted by the caller through count_no_ring).
Thread* register_thread(uint32_t epoch);
// One pointer of static TLS: the initial-exec model costs nothing, and 8 bytes fit where a library is loaded late.
extern thread_local Thread* t_thread __attribute__((tls_model("initial-exec")));
extern ClockKind g_clock;

inline uint32_t gate() { return g_gate->epoch.load(std::memory_order_relaxed); }
inline uint64_t counter() { return read_counter(g_clock); }

inline Thread* thread_of(uint32_t epoch) {
  Thread* thread = t_thread;
  if (__builtin_expect(thread != nullptr && thread->epoch == epoch && thread->slot != nullptr, 1)) return thread;
  return register_thread(epoch);
}

// Appends one event and its extras. Durations that do not fit 40 bits get a kLongDuration record. `flags`: 2 bits.
void append(Thread* thread, uint64_t start, uint32_t name, uint64_t dur, uint64_t arg, uint8_t kind,
            const Argument* args, uint32_t arg_count, uint32_t flags = 0);

// For writers that are no Python (native.h): appends from any thread, in a ring of the thread's own or, when those are
// rare, in the one that such threads share under a lock. False, and counted, when there is no ring at all.
bool append_native(uint32_t epoch, uint64_t start, uint32_t name, uint64_t dur, uint64_t arg, uint8_t kind,
                   const Argument* args, uint32_t arg_count, uint32_t flags);

// Begins a region and returns its start. A full stack gives up its oldest region, which is then in *given_up.
uint64_t begin(Thread* thread, const Open& region, Open* given_up);
// Ends the owner's newest region: true and *open when it was begun on this thread.
bool finish(Thread* thread, const void* owner, Open* open);

// Control. None of these is called on the path of an event.
struct OpenResult {
  int error = 0;  // errno
  const char* what = "";
  char path[512] = {};
};
OpenResult open_segment(const char* directory);
void close_segment(bool unlink_file);
void set_recording(bool on);
bool segment_is_open();
const Header* segment_header();
void count_no_ring();

// The id of a name, 0 when the table is full (counted). Cuts at kNameBytes. From any thread; gives every call a new id.
uint32_t add_name(const char* text, uint32_t bytes);
// The open segment's path into `path`; false when `epoch` is not open.
bool segment_path(uint32_t epoch, char* path, uint64_t capacity);
// Before threads without the GIL look at the gate or the counter: where both lie for good, with no segment open yet.
void prepare(ClockKind kind);
void name_thread(uint32_t name);

// Steps.
struct StepState {
  int64_t step;            // -1 none
  uint64_t start;          // counter at its begin
  uint64_t count;          // steps begun
  uint64_t period;         // ticks, begin to begin, moving average; 0 unknown
  uint64_t longest;        // ticks, slowly forgetting; steps with a compile in them left out
  uint64_t since_compile;  // steps begun since the last compile
};
void step_begin(int64_t step, uint64_t now);
void note_compile();
void forget_steps();
StepState step_state();
// Blocks until a step >= `step` begins (true) or `timeout_ns` passes or wake() is called (false). Call without the GIL.
bool wait_step(int64_t step, int64_t timeout_ns);
void wake();

}  // namespace fleetscope::recorder
