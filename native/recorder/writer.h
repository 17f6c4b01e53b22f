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
  // turn << 32 | epoch. The epoch is the number of the open segment, 0: off. The turn counts what sites are decided by
  // (levels, categories): one comparison tells a site that its decision still holds.
  std::atomic<uint64_t> word;
  std::atomic<uint64_t> flow;  // the next id of new_flow(); 0: none drawn, as in a child
};
extern Gate* g_gate;

struct Argument {
  uint32_t key;  // name; of a link its context type
  uint8_t kind;  // kArgInt, kArgFloat, kArgName, kProducer, kConsumer
  uint64_t value;
};

// A region a thread has begun. `owner` tells whose it is: ends may come out of order (async, generators).
struct Open {
  const void* owner;
  const void* frame;  // of the `with`: tells regions of one owner apart that tasks of one thread interleave
  void* context;      // the caller's
  uint64_t start;
  uint32_t name;
  uint8_t kind;
  bool held;       // `context` is to be released by the caller when the region ends, through g_release when given up
  bool unsampled;  // in the stack only: leaves no record
  uint8_t shift;   // it is the one of 2^shift passes that does
  bool linked;     // some of its thread's `links` are its
};

// A link that was given to a region while it is open.
struct Linked {
  const void* owner;
  uint64_t start;
  Argument link;
};

struct Thread {
  uint32_t epoch = 0;  // of the segment `slot` lies in; another epoch: not registered
  uint32_t depth = 0;
  Thread* next = nullptr;  // of all that live
  uint64_t serial = 0;     // no two threads of a process have the same
  bool listed = false;
  bool native = false;  // begins regions without the GIL: others leave its stack alone, and ask
  // What others ask of a native thread: to drop a region, or all that began before a tick. Done at its next begin or
  // end.
  std::atomic<bool> asked{false};
  std::atomic<const void*> drop_owner{nullptr};
  std::atomic<uint64_t> drop_before{0};
  bool nameless = false;  // its first record came from native code: Python has not said yet what it calls the thread
  Slot* slot = nullptr;
  Record* ring = nullptr;
  OpenRegion* open = nullptr;
  uint64_t mask = 0;
  uint64_t index = 0;  // next record
  uint64_t seq = 0;    // next event
  uint64_t generation = 0;
  Open stack[kOpenDepth];
  Open ended;  // out of the middle of the stack
  uint32_t link_count = 0;
  Linked links[kLinks];
};

// nullptr when this thread got no ring (counted by the caller through count_no_ring).
Thread* register_thread(uint32_t epoch);
// One pointer of static TLS: the initial-exec model costs nothing, and 8 bytes fit where a library is loaded late.
// __thread, not thread_local: that one is asked at each use whether it has a constructor to run.
extern __thread Thread* t_thread __attribute__((tls_model("initial-exec")));
extern std::atomic<ClockKind> g_clock;  // changes between two segments only, under threads that may be reading it

inline uint64_t gate_word() { return g_gate->word.load(std::memory_order_relaxed); }
inline uint32_t gate() { return uint32_t(gate_word()); }
inline uint64_t counter() { return read_counter(g_clock.load(std::memory_order_relaxed)); }

inline Thread* thread_of(uint32_t epoch) {
  Thread* thread = t_thread;
  if (__builtin_expect(thread != nullptr && thread->epoch == epoch && thread->slot != nullptr, 1)) return thread;
  return register_thread(epoch);
}

// Appends one event and its extras. Durations that do not fit 40 bits get a kLongDuration record. `flags`: 2 bits.
void append(Thread* thread, uint64_t start, uint32_t name, uint64_t dur, uint64_t arg, uint8_t kind,
            const Argument* args, uint32_t arg_count, uint32_t flags = 0);

// As append(), of one that has no extras.
inline __attribute__((always_inline)) void append_one(Thread* thread, uint64_t start, uint32_t name, uint64_t dur,
                                                      uint64_t arg, uint8_t kind) {
  if (__builtin_expect(dur >= kDurMask, 0)) return append(thread, start, name, dur, arg, kind, nullptr, 0);
  uint64_t index = thread->index, seq = thread->seq;
  Slot* slot = thread->slot;
  slot->reserve.store(index + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  Record* record = &thread->ring[index & thread->mask];
  record->start.store(start, std::memory_order_relaxed);
  record->name_dur.store(uint64_t{name} << 40 | dur, std::memory_order_relaxed);
  record->arg.store(arg, std::memory_order_relaxed);
  record->seq_kind.store(seq << 16 | uint64_t{kind} << 10 | thread->generation, std::memory_order_relaxed);
  slot->events.store(seq + 1, std::memory_order_relaxed);
  slot->commit.store(index + 1, std::memory_order_release);
  thread->index = index + 1;
  thread->seq = seq + 1;
}

// For writers that are no Python (native.h): appends from any thread, in a ring of the thread's own or, when those are
// rare, in the one that such threads share under a lock. False, and counted, when there is no ring at all.
bool append_native(uint32_t epoch, uint64_t start, uint32_t name, uint64_t dur, uint64_t arg, uint8_t kind,
                   const Argument* args, uint32_t arg_count, uint32_t flags);

// The calling thread with a stack of its own for regions without the GIL; nullptr when it writes to the shared ring.
Thread* stack_of_native(uint32_t epoch);
// What begin() and finish() rarely do.
void __attribute__((cold)) attend(Thread* thread);
void __attribute__((cold)) give_up_oldest(Thread* thread);
const Open* finish_in_the_middle(Thread* thread, const void* owner, const void* frame);

// Begins a region and returns its start. A full stack gives up its oldest region. Inline, as finish() and append_one():
// three calls were 4 of the 33 ns of a `with`.
inline __attribute__((always_inline)) uint64_t begin(Thread* thread, const Open& region) {
  if (__builtin_expect(thread->asked.load(std::memory_order_relaxed), 0)) attend(thread);
  if (__builtin_expect(thread->depth == kOpenDepth, 0)) give_up_oldest(thread);
  uint64_t now = counter();
  uint32_t depth = thread->depth;
  thread->stack[depth] = region;
  thread->stack[depth].start = now;
  thread->open[depth].start.store(now, std::memory_order_relaxed);
  thread->open[depth].name.store(uint64_t{region.kind} << 32 | region.name, std::memory_order_relaxed);
  thread->depth = depth + 1;
  thread->slot->depth.store(depth + 1, std::memory_order_release);
  return now;
}

// Ends the owner's newest region, of that frame if there is one: what it was, until the next begin() or finish(); or
// nullptr when it was not begun on this thread.
inline __attribute__((always_inline)) const Open* finish(Thread* thread, const void* owner, const void* frame) {
  if (__builtin_expect(thread->asked.load(std::memory_order_relaxed), 0)) attend(thread);
  uint32_t depth = thread->depth;
  if (__builtin_expect(depth == 0 || thread->stack[depth - 1].owner != owner || thread->stack[depth - 1].frame != frame,
                       0)) {
    return finish_in_the_middle(thread, owner, frame);
  }
  thread->depth = depth - 1;
  thread->slot->depth.store(depth - 1, std::memory_order_release);
  return &thread->stack[depth - 1];
}

// As finish(), of a region that another thread began. Under the GIL, as all of these. Its links move to `into`.
enum class Elsewhere { kFound, kGivenUp, kThreadGone };
Elsewhere finish_elsewhere(uint64_t serial, uint32_t epoch, const void* owner, Open* open, Thread* into);
void count_abandoned();
// Releases the context of a region that is given up because recording ends; set once, by whoever holds contexts.
extern void (*g_release)(void* context);

// Of sites; those above it record nothing.
extern std::atomic<uint32_t> g_site_level;
// The gate's page and what a fork does to it: false without memory. First under the GIL, before anybody else asks.
bool start_once();
// And the table of the public header (public.cpp).
bool start_public();

// Links (links.cpp). Gives one to the region of `owner`, nullptr: to the newest that the thread is in, of `frame` if
// there is one; false when there is none that leaves a record, or it has enough of them.
bool link_region(Thread* thread, const void* owner, const void* frame, const Argument& link);
// Takes out what link_region() gave to `open`, at most `room`; returns how many.
uint32_t take_links(Thread* thread, const Open& open, Argument* into, uint32_t room);
void move_links(Thread* from, const Open& open, Thread* into);
// A 63-bit id no other call on earth is likely to give: consecutive from a random begin, which a child draws anew.
uint64_t new_flow();

// Control. None of these is called on the path of an event.
struct OpenResult {
  int error = 0;  // errno
  const char* what = "";
  char path[512] = {};
};
// In `directory`; nullptr: without a name, sealed, for an agent that is handed its descriptor.
OpenResult open_segment(const char* directory);
void close_segment(bool unlink_file);
// Another segment for the same process, when its clock is another than before; the old one stays for the agent unless
// `unlink_file`. What is open is given up; recording and the count of steps go on.
OpenResult renew_segment(const char* directory, bool unlink_file);
// Of the open segment, for the agent; -1: none.
int segment_descriptor();
// Off: regions that are open are given up and counted; what ends when recording is on again was not seen to begin.
void set_recording(bool on);
// What sites are decided by has changed.
void turn_gate();
bool segment_is_open();
// Of the newest segment, an empty one before the first: never nullptr, because a thread without the GIL may look while
// another closes it. Mappings stay.
extern std::atomic<Header*> g_head;
inline const Header* segment_header() { return g_head.load(std::memory_order_acquire); }
// What a record that is no step says of the step it ended in.
inline uint64_t running_step() { return uint64_t(segment_header()->step.load(std::memory_order_relaxed) + 1); }
void count_no_ring();

// The id of a name, 0 when the table is full (counted). Cuts at kNameBytes. From any thread; gives every call a new id.
uint32_t add_name(const char* text, uint32_t bytes);
// The open segment's path into `path`, empty for one without a name; false when `epoch` is not open.
bool segment_path(uint32_t epoch, char* path, uint64_t capacity);
// Before threads without the GIL look at the gate or the counter: where both lie for good, with no segment open yet.
void prepare(ClockKind kind);
void name_thread(uint32_t name);

// Steps, and executions of one program that stand for them where a job of several ranks has none.
struct StepState {
  int64_t step;            // -1 none
  uint64_t start;          // counter at its begin
  uint64_t count;          // begun, seen by us
  uint64_t period;         // ticks, begin to begin, moving average; 0 unknown
  uint64_t longest;        // ticks, slowly forgetting; steps with a compile in them left out
  uint64_t since_compile;  // begun since the last compile
};
enum class Pace : uint32_t { kSteps, kExecutions };
void step_begin(int64_t step, uint64_t now);
// Of the program followed, from any thread, without a lock: of two threads at once the second's is not seen, and
// numbers that come late are not taken. `whose`: another number than follow_program() was given last changes nothing.
void execution_begins(uint32_t whose, int64_t number, uint64_t now);
void execution_ends(uint32_t whose, int64_t number, uint64_t now);
void follow_program(uint32_t whose);  // 0: none. Forgets what was seen of another.
void note_compile();
void forget_steps();
void executions_after_fork();
StepState step_state(Pace pace);
// In a new segment: where counting goes on. Times were ticks of another clock.
void restore_steps(const StepState& before);
// Blocks until a step >= `step` begins (true) or `timeout_ns` passes or wake() is called (false). Call without the GIL.
bool wait_step(Pace pace, int64_t step, int64_t timeout_ns);
// The first execution that ends at or after tick `at`, once there is one: what ranks compare their counts by. Its end,
// because hosts may be many launches ahead of their devices, each as many as it likes.
void mark_execution(uint64_t at);
bool marked_execution(int64_t* number, uint64_t* end);
void wake();

}  // namespace fleetscope::recorder
