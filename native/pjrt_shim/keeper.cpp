#include "keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <deque>

#include "clients.h"
#include "state.h"

namespace fleetscope::pjrt {
namespace {

constexpr int64_t kTurnNs = 1000000000;  // memory is read, and a new segment noticed, once a second
constexpr size_t kWaitingBytes = 64 << 20;
// How long a thread that destroys what the keeper is asking about waits for the answer: a plugin takes ~30 ms a MB of
// HLO. One that hangs in it would otherwise hang the program.
constexpr int64_t kAnswerNs = 60000000000;
// After somebody had to wait the keeper takes no next program for so long: those who unload one unload more, and each
// would wait for the one that is being read by then.
constexpr int64_t kRestNs = 200000000;

struct Written {
  std::string path;
  size_t bytes;
};

struct Keeper {
  pthread_cond_t wake;
  pthread_cond_t idle;
  bool running = false;
  bool ending = false;
  bool owes = false;
  bool dropping = false;     // programs of clients unknown, outside the lock
  Client* inside = nullptr;  // whose plugin is being asked something now
  uint64_t handing = 0;      // the load whose description is being asked for its HLO
  bool awaited = false;      // a thread waits until it is out of something
  timespec rest = {0, 0};    // no next program before
  uint32_t epoch = 0;        // the segment that knows everything
  std::deque<Waiting> harvest;
  std::vector<Written> written;
  size_t waiting_bytes = 0;
  uint64_t told[5] = {};

  Keeper() {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&wake, &attributes);
    pthread_cond_init(&idle, &attributes);
  }
};
Keeper* g_keeper = new Keeper;

timespec in_ns(int64_t ns) {
  timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  ns += at.tv_nsec;
  at.tv_sec += ns / 1000000000;
  at.tv_nsec = ns % 1000000000;
  return at;
}

bool before(const timespec& a, const timespec& b) {
  return a.tv_sec < b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec < b.tv_nsec);
}

void write_counters(uint32_t epoch) {
  static Name names[5];
  const struct {
    const char* name;
    const std::atomic<uint64_t>* value;
  } all[5] = {{"pjrt_errors", &g_counts.errors},
              {"pjrt_refused_wraps", &g_counts.refused},
              {"pjrt_completions_twice", &g_counts.twice},
              {"pjrt_untracked", &g_counts.untracked},
              {"pjrt_hlo_left_out", &g_counts.hlo_left_out}};
  for (int i = 0; i < 5; ++i) {
    uint64_t value = all[i].value->load(std::memory_order_relaxed);
    if (value == g_keeper->told[i]) continue;
    g_keeper->told[i] = value;
    write(epoch, kCounterInt, g_recorder->now(), 0, names[i].in(epoch, all[i].name, strlen(all[i].name)), value);
  }
}

// Under g_lock, when it has come out of a plugin: who waits for that looks again, and gets its rest.
void came_out() {
  if (g_keeper->awaited) g_keeper->rest = in_ns(kRestNs);
  g_keeper->awaited = false;
  pthread_cond_broadcast(&g_keeper->idle);
}

// What the segment does not know: devices and programs; in a new one, totals too.
void announce(uint32_t epoch, std::deque<Waiting>* old) {
  announce_devices(epoch);
  std::deque<Waiting> current;
  for (Waiting& program : g_keeper->harvest) (program.epoch == epoch ? current : *old).push_back(std::move(program));
  g_keeper->harvest = std::move(current);
  std::vector<Waiting> live;
  announce_programs(epoch, &live);
  for (Waiting& program : live) g_keeper->harvest.push_back(std::move(program));
  g_keeper->owes = false;
  if (g_keeper->epoch == epoch) return;
  g_keeper->written.clear();
  g_keeper->waiting_bytes = 0;
  memset(g_keeper->told, 0, sizeof g_keeper->told);
  g_keeper->epoch = epoch;
}

// Called without the lock, `inside` set.
void read_memory(uint32_t epoch, DeviceSeen* seen) {
  MemoryStatsArgs args = {};
  args.struct_size = sizeof args;  // more than any version has: a plugin looks at no more than it knows
  args.device = seen->device;
  seen->memory_told = seen->plugin->ask(kDeviceMemoryStats, &args);
  if (!seen->memory_told) return;
  char name[64];
  uint64_t now = g_recorder->now();
  int length = snprintf(name, sizeof name, "pjrt_memory_bytes_in_use/%d", seen->ordinal);
  static Name in_use[kUnknownDevice], limit[kUnknownDevice];
  write(epoch, kCounterInt, now, 0, in_use[seen->ordinal].in(epoch, name, size_t(length)), uint64_t(args.bytes_in_use));
  if (!args.limit.set) return;
  length = snprintf(name, sizeof name, "pjrt_memory_bytes_limit/%d", seen->ordinal);
  write(epoch, kCounterInt, now, 0, limit[seen->ordinal].in(epoch, name, size_t(length)), uint64_t(args.limit.value));
}

void read_memories(uint32_t epoch) {
  for (size_t i = 0; i < devices_seen().size() && !g_keeper->ending; ++i) {
    DeviceSeen seen = devices_seen()[i];
    if (!seen.client || !seen.memory_told || seen.ordinal == kUnknownDevice) continue;
    g_keeper->inside = seen.client;
    pthread_mutex_unlock(&g_lock);
    read_memory(epoch, &seen);
    pthread_mutex_lock(&g_lock);
    g_keeper->inside = nullptr;
    came_out();
    if (i < devices_seen().size() && devices_seen()[i].device == seen.device) {
      devices_seen()[i].memory_told = seen.memory_told;
    }
  }
}

bool write_file(const std::string& folder, uint64_t load, const char* bytes, size_t size, Written* written) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return false;
  std::string part = folder + "/." + std::to_string(load);
  written->path = folder + "/" + std::to_string(load) + ".pb";
  written->bytes = size;
  int file = open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return false;
  bool whole = true;
  for (size_t at = 0; at < size && whole;) {
    ssize_t done = ::write(file, bytes + at, size - at);
    whole = done > 0;
    if (whole) at += size_t(done);
  }
  whole = close(file) == 0 && whole && rename(part.c_str(), written->path.c_str()) == 0;
  if (!whole) unlink(part.c_str());
  return whole;
}

// Room for `size` more bytes beside the segment, after looking at what the agent has taken.
bool room_for(size_t size) {
  if (g_keeper->waiting_bytes + size <= kWaitingBytes) return true;
  std::vector<Written> still;
  g_keeper->waiting_bytes = 0;
  for (Written& file : g_keeper->written) {
    if (access(file.path.c_str(), F_OK) != 0) continue;
    g_keeper->waiting_bytes += file.bytes;
    still.push_back(std::move(file));
  }
  g_keeper->written = std::move(still);
  return g_keeper->waiting_bytes + size <= kWaitingBytes;
}

bool hand_over(uint32_t epoch, const Waiting& program) {
  char path[512];
  if (!g_recorder->segment(epoch, path, sizeof path)) return true;  // closed: nobody to hand it to
  if (!path[0]) return false;                                       // no folder to lay it into
  const Plugin* plugin = program.description->plugin;
  Program hlo = {};
  hlo.struct_size = sizeof hlo;
  OptimizedProgramArgs args = {};
  args.struct_size = sizeof args;
  args.executable = program.description->executable;
  args.program = &hlo;
  if (!plugin->ask(kExecutableOptimizedProgram, &args)) return false;  // its size first
  if (hlo.code_size == 0 || !room_for(hlo.code_size)) return false;
  if (hlo.format_size < 3 || strncmp(hlo.format, "hlo", 3) != 0) return false;  // hlo or hlo_with_config
  char* bytes = static_cast<char*>(malloc(hlo.code_size));
  if (!bytes) return false;
  size_t size = hlo.code_size;
  hlo.code = bytes;
  Written written;
  bool done = plugin->ask(kExecutableOptimizedProgram, &args) && hlo.code_size <= size &&
              write_file(std::string(path) + ".hlo", program.load, bytes, hlo.code_size, &written);
  free(bytes);
  if (!done) return false;
  g_keeper->waiting_bytes += written.bytes;
  g_keeper->written.push_back(std::move(written));
  return true;
}

void* keep(void*) {
  pthread_setname_np(pthread_self(), "fleetscope-pjrt");
  timespec memory_at = in_ns(0);
  pthread_mutex_lock(&g_lock);
  while (!g_keeper->ending) {
    uint32_t epoch = recording();
    if (epoch && (epoch != g_keeper->epoch || g_keeper->owes)) {
      std::deque<Waiting> old;  // destroyed without the lock: it may call the plugin
      announce(epoch, &old);
      g_keeper->dropping = true;
      pthread_mutex_unlock(&g_lock);
      old.clear();
      pthread_mutex_lock(&g_lock);
      g_keeper->dropping = false;
      came_out();
    }
    timespec now = in_ns(0);
    bool resting = before(now, g_keeper->rest);
    if (epoch && !g_keeper->harvest.empty() && !resting) {
      Waiting program = std::move(g_keeper->harvest.front());
      g_keeper->harvest.pop_front();
      g_keeper->inside = program.description->client;
      g_keeper->handing = program.load;
      pthread_mutex_unlock(&g_lock);
      if (!hand_over(epoch, program)) g_counts.hlo_left_out.fetch_add(1);
      program.description.reset();  // may call the plugin
      pthread_mutex_lock(&g_lock);
      g_keeper->inside = nullptr;
      g_keeper->handing = 0;
      came_out();
      continue;
    }
    if (!before(now, memory_at)) {
      memory_at = in_ns(kTurnNs);
      if (epoch) {
        read_memories(epoch);
        write_counters(epoch);
      }
      continue;
    }
    pthread_cond_timedwait(&g_keeper->wake, &g_lock, resting ? &g_keeper->rest : &memory_at);
  }
  g_keeper->running = false;
  pthread_cond_broadcast(&g_keeper->idle);
  pthread_mutex_unlock(&g_lock);
  return nullptr;
}

}  // namespace

void start_keeper() {
  if (g_inherited.load()) return;
  Hold hold;
  if (g_keeper->running || g_keeper->ending) return;
  // Signals are the program's own threads' to handle.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  if (pthread_create(&thread, nullptr, keep, nullptr) == 0) {
    pthread_detach(thread);
    g_keeper->running = true;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

bool stop_keeper(int timeout_ms) {
  if (g_inherited.load()) return true;
  timespec until = in_ns(int64_t{timeout_ms} * 1000000);
  Hold hold;
  g_keeper->ending = true;
  pthread_cond_broadcast(&g_keeper->wake);
  while (g_keeper->running && pthread_cond_timedwait(&g_keeper->idle, &g_lock, &until) == 0) {
  }
  return !g_keeper->running;
}

void keeper_owes() {
  Hold hold;
  g_keeper->owes = true;
}

void keep_harvest(Waiting program) {
  Hold hold;
  g_keeper->harvest.push_back(std::move(program));
  pthread_cond_signal(&g_keeper->wake);
}

namespace {

// Takes the programs that `whose` says yes to out of the queue and waits until the keeper is with none of them.
template <class Whose, class Busy>
void let_go(Whose whose, Busy busy) {
  std::vector<Waiting> gone;  // destroyed after the lock: it calls the plugin
  timespec until = in_ns(kAnswerNs);
  Hold hold;
  std::deque<Waiting>& queue = g_keeper->harvest;
  for (auto at = std::find_if(queue.begin(), queue.end(), whose); at != queue.end();
       at = std::find_if(at, queue.end(), whose)) {
    gone.push_back(std::move(*at));
    at = queue.erase(at);
  }
  g_counts.hlo_left_out.fetch_add(gone.size());
  int late = 0;
  while ((busy() || g_keeper->dropping) && !late) {
    g_keeper->awaited = true;
    late = pthread_cond_timedwait(&g_keeper->idle, &g_lock, &until);
  }
}

}  // namespace

void keeper_lets_go(Client* client) {
  let_go([=](const Waiting& program) { return program.description->client == client; },
         [=] { return g_keeper->inside == client; });
}

void keeper_lets_go_of_load(uint64_t load) {
  let_go([=](const Waiting& program) { return program.load == load; }, [=] { return g_keeper->handing == load; });
}

void keeper_after_fork() {
  g_keeper = new Keeper;  // the old one's condition variables may have had waiters
}

}  // namespace fleetscope::pjrt
