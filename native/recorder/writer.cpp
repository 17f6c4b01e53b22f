#include "writer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>

#include "segment_file.h"
#include "thin.h"

namespace fleetscope::recorder {
namespace {

Header g_no_header;

struct Segment {
  int fd = -1;
  char* base = nullptr;
  char path[512] = {};
  bool named = false;       // `path` is a file's
  uint64_t rings_used = 0;  // bytes of the rings area given out
  uint32_t epoch = 0;
};
Segment g_segment;
uint32_t g_number = 1;  // of the segment's name: an agent knows by the name that it is another
uint32_t g_epochs = 0;  // segments ever opened in this process and its ancestors
uint64_t g_turn = 1;
Thread* g_threads = nullptr;  // all that live; guarded by g_slots_lock
pthread_key_t g_exit_key;
// Guards g_segment's coming and going against threads without the GIL, and the slots.
pthread_mutex_t g_slots_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t g_names_lock = PTHREAD_MUTEX_INITIALIZER;

// Threads of a plugin that got no ring of their own write here, one at a time. The last sixteen slots are kept for
// Python's threads: a plugin's pool can have hundreds.
constexpr uint32_t kNativeSlots = kSlots - 16;
Thread g_shared;
pthread_mutex_t g_shared_lock = PTHREAD_MUTEX_INITIALIZER;

class Hold {
 public:
  explicit Hold(pthread_mutex_t* lock) : lock_(lock) { pthread_mutex_lock(lock); }
  ~Hold() { pthread_mutex_unlock(lock_); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  pthread_mutex_t* lock_;
};

Header* header() { return g_head.load(std::memory_order_acquire); }
Slot* slot_at(uint32_t i) { return reinterpret_cast<Slot*>(g_segment.base + kSlotsOffset) + i; }
OpenRegion* open_at(uint32_t i) {
  return reinterpret_cast<OpenRegion*>(g_segment.base + kOpenOffset) + uint64_t{i} * kOpenDepth;
}

// A forked child holds the parent's mapping but must not write to it. The gate page is wiped already; this covers
// kernels before 4.14 and drops what would make a later open_segment think that one is open.
void after_fork_in_child() {
  g_gate->word.store(0, std::memory_order_relaxed);
  g_gate->flow.store(0, std::memory_order_relaxed);
  g_threads = nullptr;
  if (t_thread) t_thread->listed = false;
  g_head.store(&g_no_header, std::memory_order_relaxed);
  if (g_segment.base) munmap(g_segment.base, kFileBytes);
  if (g_segment.fd >= 0) close(g_segment.fd);
  g_segment = Segment{};
  g_number = 1;
  g_slots_lock = g_names_lock = g_shared_lock = PTHREAD_MUTEX_INITIALIZER;
  forget_thinned_lock();
  g_shared.epoch = 0;
  forget_steps();
  executions_after_fork();
}

void thread_exits(void* value) {
  Thread* thread = static_cast<Thread*>(value);
  {
    Hold hold(&g_slots_lock);
    // The slot of another epoch lies in a mapping that is gone.
    if (thread->slot && thread->epoch == g_segment.epoch && g_segment.base) {
      thread->slot->depth.store(0, std::memory_order_relaxed);
      thread->slot->state.store(kRetired, std::memory_order_release);
    }
    Thread** at = &g_threads;
    while (*at && *at != thread) at = &(*at)->next;
    if (*at) *at = thread->next;
  }
  t_thread = nullptr;
  delete thread;
}

}  // namespace

bool start_once() {
  static bool done = false;
  if (done) return true;
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  madvise(page, 4096, MADV_WIPEONFORK);
  g_gate = new (page) Gate{};
  pthread_key_create(&g_exit_key, thread_exits);
  pthread_atfork(nullptr, nullptr, after_fork_in_child);
  return done = true;
}

// Before the first segment the gate is an ordinary word that reads 0.
static Gate g_closed_gate;
Gate* g_gate = &g_closed_gate;
__thread Thread* t_thread __attribute__((tls_model("initial-exec"))) = nullptr;
std::atomic<ClockKind> g_clock{ClockKind::kMonotonicRaw};
std::atomic<Header*> g_head{&g_no_header};
void (*g_release)(void*) = nullptr;
std::atomic<uint32_t> g_site_level{1};

// Gives the thread a retired slot, or one of the first `limit` that nobody has had yet.
static void take_slot(Thread* thread, uint32_t epoch, uint32_t limit) {
  Hold hold(&g_slots_lock);  // whoever gives up open regions looks at the threads of the epoch before, too
  thread->epoch = epoch;
  thread->slot = nullptr;
  thread->depth = 0;
  thread->nameless = false;
  thread->native = false;
  thread->link_count = 0;
  thread->asked.store(false, std::memory_order_relaxed);
  if (!thread->listed) {
    thread->listed = true;
    static uint64_t serials = 0;
    thread->serial = ++serials;
    thread->next = g_threads;
    g_threads = thread;
  }
  if (!g_segment.base || epoch != g_segment.epoch) return;  // closed since, by another thread
  Header* head = header();
  uint32_t used = head->slots_used.load(std::memory_order_relaxed);
  Slot* slot = nullptr;
  uint32_t number = 0;
  for (; number < used && number < limit && !slot; ++number) {
    if (slot_at(number)->state.load(std::memory_order_acquire) == kRetired) slot = slot_at(number);
  }
  if (slot) {
    --number;
  } else if (used < limit) {
    uint64_t records = used == 0 ? kFirstRing : kOtherRing;
    uint64_t offset = kRingsOffset + g_segment.rings_used;
    // Pages are taken now, while a refusal is an error code: storing to a page a full tmpfs cannot give is a SIGBUS.
    if (fallocate(g_segment.fd, 0, off_t(offset), off_t(records * sizeof(Record))) == 0) {
      g_segment.rings_used += records * sizeof(Record);
      number = used;
      slot = slot_at(number);
      slot->offset.store(offset, std::memory_order_relaxed);
      slot->capacity.store(records, std::memory_order_relaxed);
    }
  }
  if (!slot) return;
  slot->generation.fetch_add(1, std::memory_order_relaxed);
  slot->tid.store(thread == &g_shared ? 0 : static_cast<uint64_t>(syscall(SYS_gettid)), std::memory_order_relaxed);
  slot->thread_name.store(0, std::memory_order_relaxed);
  slot->depth.store(0, std::memory_order_relaxed);
  slot->state.store(kOwned, std::memory_order_release);
  if (number == used) head->slots_used.store(used + 1, std::memory_order_release);
  thread->slot = slot;
  thread->ring = reinterpret_cast<Record*>(g_segment.base + slot->offset.load(std::memory_order_relaxed));
  thread->open = open_at(number);
  thread->mask = slot->capacity.load(std::memory_order_relaxed) - 1;
  thread->index = slot->commit.load(std::memory_order_relaxed);
  thread->seq = slot->events.load(std::memory_order_relaxed);
  thread->generation = slot->generation.load(std::memory_order_relaxed) & 0xff;
}

static Thread* this_thread() {
  if (!t_thread) {
    t_thread = new (std::nothrow) Thread;
    if (t_thread) pthread_setspecific(g_exit_key, t_thread);
  }
  return t_thread;
}

Thread* register_thread(uint32_t epoch) {
  if (t_thread && t_thread->epoch == epoch) return nullptr;  // asked before and refused
  Thread* thread = this_thread();
  if (!thread) return nullptr;
  take_slot(thread, epoch, kSlots);
  return thread->slot ? thread : nullptr;
}

void append(Thread* thread, uint64_t start, uint32_t name, uint64_t dur, uint64_t arg, uint8_t kind,
            const Argument* args, uint32_t arg_count, uint32_t flags) {
  bool is_long = __builtin_expect(dur >= kDurMask, 0);
  uint64_t records = 1 + arg_count + (is_long ? 1 : 0);
  uint64_t index = thread->index;
  uint64_t seq = thread->seq << 16 | thread->generation;
  Slot* slot = thread->slot;

  slot->reserve.store(index + records, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  auto put = [&](uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    Record* record = &thread->ring[index++ & thread->mask];
    record->start.store(a, std::memory_order_relaxed);
    record->name_dur.store(b, std::memory_order_relaxed);
    record->arg.store(c, std::memory_order_relaxed);
    record->seq_kind.store(d, std::memory_order_relaxed);
  };
  put(start, uint64_t{name} << 40 | (is_long ? kDurMask : dur), arg,
      seq | uint64_t{kind} << 10 | uint64_t{flags & 3} << 8);
  if (is_long) put(start, 0, dur, seq | uint64_t{kLongDuration} << 10);
  for (uint32_t i = 0; i < arg_count; ++i) {
    put(start, uint64_t{args[i].key} << 40, args[i].value, seq | uint64_t{args[i].kind} << 10);
  }
  slot->events.store(thread->seq + 1, std::memory_order_relaxed);
  slot->commit.store(index, std::memory_order_release);
  thread->index = index;
  thread->seq += 1;
}

// A plugin's threads are named by the kernel's name for them, once each name.
static void name_native_thread(uint32_t epoch) {
  struct Known {
    char text[16];
    uint32_t id;
  };
  static Known known[kSlots];
  static uint32_t count = 0, of_epoch = 0;
  char text[16] = {};
  if (syscall(SYS_gettid) == getpid()) {
    memcpy(text, "MainThread", 11);
  } else if (pthread_getname_np(pthread_self(), text, sizeof text) != 0) {
    return;
  }
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  if (pthread_mutex_trylock(&lock) != 0) return;  // a fork left it held, or another first event: the next one names it
  if (of_epoch != epoch) count = 0, of_epoch = epoch;
  uint32_t at = 0;
  while (at < count && memcmp(known[at].text, text, sizeof text) != 0) ++at;
  if (at == count && count < kSlots) {
    memcpy(known[at].text, text, sizeof text);
    known[at].id = add_name(text, uint32_t(strlen(text)));
    ++count;
  }
  if (at < count) name_thread(known[at].id);
  pthread_mutex_unlock(&lock);
}

static Thread* native_thread(uint32_t epoch) {
  Thread* thread = this_thread();
  if (!thread || (thread->epoch == epoch && thread->slot)) return thread;
  take_slot(thread, epoch, kNativeSlots);
  if (!thread->slot) {
    Hold hold(&g_slots_lock);
    thread->epoch = 0;  // Python may still get one for it
    return nullptr;
  }
  thread->nameless = true;
  name_native_thread(epoch);
  return thread;
}

bool append_native(uint32_t epoch, uint64_t start, uint32_t name, uint64_t dur, uint64_t arg, uint8_t kind,
                   const Argument* args, uint32_t arg_count, uint32_t flags) {
  Thread* thread = t_thread;
  if (__builtin_expect(!thread || thread->epoch != epoch || !thread->slot, 0)) thread = native_thread(epoch);
  if (__builtin_expect(thread != nullptr, 1)) {
    append(thread, start, name, dur, arg, kind, args, arg_count, flags);
    return true;
  }
  Hold hold(&g_shared_lock);
  if (g_shared.epoch != epoch) {
    take_slot(&g_shared, epoch, kSlots);
    if (g_shared.slot) g_shared.slot->thread_name.store(add_name("plugin threads", 14), std::memory_order_release);
  }
  if (!g_shared.slot) return count_no_ring(), false;
  append(&g_shared, start, name, dur, arg, kind, args, arg_count, flags);
  return true;
}

// Where in the stack the region to end is: the newest of owner and frame; else the newest of the owner, which an
// ExitStack ends in another frame than it began.
static int place_of(const Thread* thread, const void* owner, const void* frame) {
  int newest = -1;
  for (int at = int(thread->depth) - 1; at >= 0; --at) {
    if (thread->stack[at].owner != owner) continue;
    if (thread->stack[at].frame == frame) return at;
    if (newest < 0) newest = at;
  }
  return newest;
}

const Open* finish_in_the_middle(Thread* thread, const void* owner, const void* frame) {
  int at = place_of(thread, owner, frame);
  if (at < 0) return nullptr;
  thread->ended = thread->stack[at];
  uint32_t depth = thread->depth - 1;
  for (uint32_t i = uint32_t(at); i < depth; ++i) {
    thread->stack[i] = thread->stack[i + 1];
    thread->open[i].start.store(thread->stack[i].start, std::memory_order_relaxed);
    thread->open[i].name.store(uint64_t{thread->stack[i].kind} << 32 | thread->stack[i].name,
                               std::memory_order_relaxed);
  }
  thread->depth = depth;
  thread->slot->depth.store(depth, std::memory_order_release);
  return &thread->ended;
}

void attend(Thread* thread) {
  thread->asked.store(false, std::memory_order_relaxed);
  uint64_t before = thread->drop_before.exchange(0, std::memory_order_acquire);
  const void* owner = thread->drop_owner.exchange(nullptr, std::memory_order_acquire);
  if (owner) finish_in_the_middle(thread, owner, nullptr);
  // A context that is held is left to leak: releasing it takes the GIL.
  while (thread->depth && thread->stack[0].start < before) {
    finish_in_the_middle(thread, thread->stack[0].owner, thread->stack[0].frame);
  }
}

// Regions that never end (a generator nobody closes) would fill the stack for good: the oldest goes, counted.
void give_up_oldest(Thread* thread) {
  Open oldest = thread->stack[0];
  memmove(&thread->stack[0], &thread->stack[1], sizeof(Open) * (kOpenDepth - 1));
  thread->depth = kOpenDepth - 1;
  header()->abandoned.fetch_add(1, std::memory_order_relaxed);
  if (oldest.held && g_release) g_release(oldest.context);
}

Thread* stack_of_native(uint32_t epoch) {
  Thread* thread = native_thread(epoch);
  if (!thread) return nullptr;
  if (!thread->native) {
    Hold hold(&g_slots_lock);  // whoever is in its stack now leaves first
    thread->native = true;
  }
  return thread;
}

Elsewhere finish_elsewhere(uint64_t serial, uint32_t epoch, const void* owner, Open* open, Thread* into) {
  Hold hold(&g_slots_lock);
  for (Thread* thread = g_threads; thread; thread = thread->next) {
    if (thread->serial != serial) continue;
    if (thread->native && thread->epoch == epoch) {
      thread->drop_owner.store(owner, std::memory_order_release);
      thread->asked.store(true, std::memory_order_release);
      return Elsewhere::kThreadGone;
    }
    const Open* ended = thread->epoch == epoch && thread->slot ? finish(thread, owner, nullptr) : nullptr;
    if (ended) *open = *ended;
    if (ended && ended->linked && into) move_links(thread, *ended, into);
    return ended ? Elsewhere::kFound : Elsewhere::kGivenUp;
  }
  return Elsewhere::kThreadGone;
}

void count_abandoned() {
  if (g_segment.base) header()->abandoned.fetch_add(1, std::memory_order_relaxed);
}

// Regions begun while recording was on must not be taken for what their threads are in when it is on again.
static void give_up_open_regions() {
  Hold hold(&g_slots_lock);
  for (Thread* thread = g_threads; thread; thread = thread->next) {
    if (thread == &g_shared || !thread->slot || !g_segment.base || thread->epoch != g_segment.epoch) continue;
    header()->abandoned.fetch_add(thread->slot->depth.load(std::memory_order_relaxed), std::memory_order_relaxed);
    if (thread->native) {
      thread->drop_before.store(counter(), std::memory_order_release);
      thread->asked.store(true, std::memory_order_release);
      thread->slot->depth.store(0, std::memory_order_release);
      continue;
    }
    for (uint32_t i = 0; i < thread->depth; ++i) {
      if (thread->stack[i].held && g_release) g_release(thread->stack[i].context);
    }
    thread->depth = 0;
    thread->slot->depth.store(0, std::memory_order_release);
  }
}

// With g_names_lock.
static uint32_t add_name_held(const char* text, uint32_t bytes) {
  if (!g_segment.base) return 0;
  Header* head = header();
  if (bytes > kNameBytes) {
    bytes = kNameBytes;
    while (bytes && (static_cast<uint8_t>(text[bytes]) & 0xc0) == 0x80) --bytes;  // not within a UTF-8 character
  }
  uint32_t id = head->names_used.load(std::memory_order_relaxed);
  uint32_t at = head->arena_used.load(std::memory_order_relaxed);
  if (id >= kNames || at + bytes > kArenaBytes) {
    head->name_limit.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  memcpy(g_segment.base + kArenaOffset + at, text, bytes);
  NameEntry* entry = reinterpret_cast<NameEntry*>(g_segment.base + kNamesOffset) + id;
  entry->offset.store(at, std::memory_order_relaxed);
  entry->bytes.store(bytes, std::memory_order_relaxed);
  head->arena_used.store(at + bytes, std::memory_order_relaxed);
  head->names_used.store(id + 1, std::memory_order_release);
  return id;
}

OpenResult open_segment(const char* directory) {
  OpenResult result;
  if (!start_once()) return result.error = errno, result.what = "mmap", result;
  if (g_segment.base) {
    memcpy(result.path, g_segment.path, sizeof result.path);
    return result;
  }
  uint64_t ticks = process_start_ticks();
  int fd = directory ? create_named(directory, ticks, g_number, result.path, sizeof result.path)
                     : create_nameless(ticks, g_epochs + 1, result.path, sizeof result.path);
  if (fd < 0) return result.error = errno, result.what = "open", result;
  auto fail = [&](const char* what) {
    result.error = errno;
    result.what = what;
    close(fd);
    if (directory) unlink(result.path);
    return result;
  };
  if (ftruncate(fd, kFileBytes) != 0) return fail("ftruncate");
  // As for the rings: no page may be missing when it is stored to.
  if (fallocate(fd, 0, 0, kRingsOffset) != 0) return fail("fallocate");
  // Nobody, not even this process, can cut what an agent holds.
  if (!directory && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return fail("seal");
  void* base = mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return fail("mmap");
  // The kernel lets go of it when the process ends, however it does: tells a reader in another pid namespace.
  struct flock whole = {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  fcntl(fd, F_SETLK, &whole);

  Clock clock = host_clock();
  g_clock.store(clock.kind, std::memory_order_relaxed);
  Header* head = new (base) Header;
  memset(static_cast<void*>(head), 0, sizeof *head);
  head->abi_version = kAbiVersion;
  head->record_bytes = sizeof(Record);
  head->file_bytes = kFileBytes;
  head->slots = kSlots;
  head->names = kNames;
  head->arena_bytes = kArenaBytes;
  head->open_depth = kOpenDepth;
  head->slots_offset = kSlotsOffset;
  head->marks_offset = kMarksOffset;
  head->open_offset = kOpenOffset;
  head->names_offset = kNamesOffset;
  head->arena_offset = kArenaOffset;
  head->rings_offset = kRingsOffset;
  head->pid = static_cast<uint32_t>(getpid());
  head->clock = clock.kind;
  head->start_ticks = ticks;
  head->period_num = clock.period_num;
  head->period_den = clock.period_den;
  read_boot_id(head->boot_id, sizeof head->boot_id);
  head->anchor = read_anchor(clock.kind, 5);
  head->pid_namespace = pid_namespace();
  head->step.store(-1, std::memory_order_relaxed);
  {
    Hold slots(&g_slots_lock);
    Hold names(&g_names_lock);
    g_segment.fd = fd;
    g_segment.base = static_cast<char*>(base);
    memcpy(g_segment.path, result.path, sizeof g_segment.path);
    g_segment.named = directory != nullptr;
    g_segment.epoch = ++g_epochs;
    g_head.store(head, std::memory_order_release);
    add_name_held("other", 5);  // name 0, before a thread of a plugin comes with its own
  }
  forget_steps();
  // Last: a reader that finds the magic finds everything before it.
  std::atomic_thread_fence(std::memory_order_release);
  memcpy(head->magic, kMagic, sizeof kMagic);
  return result;
}

void close_segment(bool unlink_file) {
  if (!g_segment.base) return;
  set_recording(false);
  header()->closed.store(1, std::memory_order_release);
  if (unlink_file && g_segment.named) {
    unlink(g_segment.path);
    remove_programs(g_segment.path);
  }
  // The mapping stays: a thread between its look at the gate and its store must not find it gone. A process opens few.
  Hold slots(&g_slots_lock);
  Hold names(&g_names_lock);
  close(g_segment.fd);
  g_segment = Segment{};
}

OpenResult renew_segment(const char* directory, bool unlink_file) {
  StepState before = step_state(Pace::kSteps);
  bool recording = gate() != 0;
  close_segment(unlink_file);
  ++g_number;
  OpenResult result = open_segment(directory);
  restore_steps(before);
  if (recording && !result.error) set_recording(true);
  return result;
}

int segment_descriptor() { return g_segment.fd; }

void set_recording(bool on) {
  bool was_on = gate() != 0;
  g_gate->word.store(on && g_segment.base ? g_turn << 32 | g_segment.epoch : 0, std::memory_order_release);
  if (was_on && gate() == 0) give_up_open_regions();
}

void turn_gate() {
  g_turn = (g_turn + 1) & 0xffffffff;
  if (gate()) set_recording(true);
}

bool segment_is_open() { return g_segment.base != nullptr; }
void count_no_ring() {
  Hold hold(&g_slots_lock);
  if (g_segment.base) header()->no_ring.fetch_add(1, std::memory_order_relaxed);
}

bool segment_path(uint32_t epoch, char* path, uint64_t capacity) {
  Hold hold(&g_slots_lock);
  if (!g_segment.base || g_segment.epoch != epoch || capacity < sizeof g_segment.path) return false;
  path[0] = 0;
  if (g_segment.named) memcpy(path, g_segment.path, sizeof g_segment.path);
  return true;
}

void prepare(ClockKind kind) {
  start_once();
  Hold hold(&g_slots_lock);
  if (!g_segment.base) g_clock.store(kind, std::memory_order_relaxed);
}

uint32_t add_name(const char* text, uint32_t bytes) {
  Hold hold(&g_names_lock);
  return add_name_held(text, bytes);
}

void name_thread(uint32_t name) {
  if (t_thread && t_thread->slot) t_thread->slot->thread_name.store(name, std::memory_order_release);
}

}  // namespace fleetscope::recorder
