// The recorder's writer and reader in one process, for ThreadSanitizer and AddressSanitizer: all that threads without
// the GIL do to it, and all that happens under it (a mutex stands for the GIL), at once.
//   stress SECONDS FOLDER
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "fleetscope/recorder.h"
#include "native.h"
#include "reader.h"
#include "writer.h"

extern "C" const fleetscope_recorder_table* fleetscope_recorder_table_v1(void);

namespace {

using namespace fleetscope::recorder;

constexpr int kOpens = 50;  // of segments: mappings of closed ones stay, and with them their 2 MB
std::atomic<bool> g_ending{false};
pthread_mutex_t g_gil = PTHREAD_MUTEX_INITIALIZER;
std::string g_folder;
std::atomic<uint64_t> g_serial{0}, g_began{0};  // of a region begun on one thread, to be ended on another

const char g_owners[2] = {};

struct Gil {
  Gil() { pthread_mutex_lock(&g_gil); }
  ~Gil() { pthread_mutex_unlock(&g_gil); }
};

void require(bool holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "broken: %s\n", what);
  abort();
}

// As a plugin: the public header's table and the shim's, by turns.
void native_work(uint32_t seed) {
  const fleetscope_recorder_table* table = fleetscope_recorder_table_v1();
  const fleetscope_recorder_api* api = fleetscope_recorder();
  static fleetscope_site sites[4] = {FLEETSCOPE_SITE("load"), FLEETSCOPE_SITE("decode"), {"rare", 1, 3, 0, 0, 0},
                                     {"verbose", 3, 0, 0, 0, 0}};
  std::mt19937 random(seed);
  for (int pass = 0; pass < 200 && !g_ending; ++pass) {
    fleetscope_region outer = {&sites[random() % 4], 0, random() % 3}, inner = {&sites[random() % 4], 0, 0};
    table->begin(&outer);
    table->begin(&inner);
    if (inner.start) table->end(random() % 8 ? &inner : &outer);  // out of order now and then
    if (outer.start) table->end(&outer);
    table->instant(&sites[0], 7);
    table->counter_int(&sites[1], pass);
    uint32_t epoch = api->epoch();
    fleetscope_argument argument = {0, FLEETSCOPE_ARGUMENT_INT, 8};
    fleetscope_record record = {api->now(), 5, 3, 0, kLaunch, 0, 1, &argument};
    if (epoch) api->write(epoch, &record);
    execution_begins(1, pass, counter());
    execution_ends(1, pass, counter());
    char path[512];
    api->segment(epoch, path, sizeof path);
  }
}

void native_thread() {
  uint32_t seed = 1;
  while (!g_ending) native_work(seed++);
}

void short_threads() {
  uint32_t seed = 1000;
  while (!g_ending) {
    std::vector<std::thread> some;
    for (int i = 0; i < 4; ++i) some.emplace_back(native_work, seed++);
    for (std::thread& thread : some) thread.join();
  }
}

// As Python: every call under the GIL, which passes to another thread between calls.
void python_thread(int owner_of) {
  const void* owner = &g_owners[owner_of];
  while (!g_ending) {
    {
      Gil gil;
      uint32_t epoch = gate();
      Thread* thread = epoch ? thread_of(epoch) : nullptr;
      if (thread) begin(thread, {owner, nullptr, nullptr, 0, 0, kHost, false, false, false});
      if (thread) link_region(thread, nullptr, nullptr, {0, kProducer, new_flow()});
      if (thread && owner_of == 0) g_serial = thread->serial, g_began = epoch;
      if (epoch && !thread) count_no_ring();
    }
    {
      Gil gil;
      if (owner_of == 0) step_begin(int64_t(step_state(Pace::kSteps).count), counter());
      uint32_t epoch = gate();
      if (epoch) name_thread(add_name("python", 6));
    }
    {
      Gil gil;
      uint32_t epoch = gate();
      Thread* thread = t_thread;
      if (!epoch || !thread || thread->epoch != epoch || thread->depth == 0) continue;
      uint64_t now = counter();
      const Open* open = finish(thread, owner, nullptr);
      Argument links[4];
      if (open) take_links(thread, *open, links, 4);
      if (open) append_one(thread, open->start, open->name, now - open->start, running_step(), open->kind);
    }
  }
}

// Ends on this thread what python_thread(0) has begun.
void ends_elsewhere() {
  while (!g_ending) {
    {
      Gil gil;
      Open open;
      Thread* mine = gate() && gate() == g_began ? thread_of(gate()) : nullptr;
      if (mine) finish_elsewhere(g_serial, gate(), &g_owners[0], &open, mine);
    }
    usleep(100);
  }
}

// What the profiler's own thread does.
void control_thread() {
  std::mt19937 random(1);
  for (int opens = 0; !g_ending;) {
    {
      Gil gil;
      switch (random() % 8) {
        case 0:
          set_recording(false);
          break;
        case 1:
          g_site_level = 1 + random() % 3;
          turn_gate();
          break;
        case 2:
          if (++opens < kOpens) close_segment(true);
          break;
        case 3:
          if (++opens < kOpens && segment_is_open()) renew_segment(opens % 2 ? g_folder.c_str() : nullptr, true);
          break;
        default:
          open_segment(g_folder.c_str());
          set_recording(true);
      }
    }
    for (Pace pace : {Pace::kSteps, Pace::kExecutions}) wait_step(pace, step_state(pace).step + 1, 500000);
    follow_program(random() % 2);
    mark_execution(counter() + 1000);
    int64_t number;
    uint64_t end;
    marked_execution(&number, &end);
  }
}

// As the agent, from inside: by the descriptor, as it is handed over.
void reader_thread() {
  Drained out;
  while (!g_ending) {
    SegmentReader reader;
    int descriptor;
    {
      Gil gil;
      descriptor = dup(segment_descriptor());
    }
    if (descriptor < 0) continue;
    const char* wrong = reader.adopt(descriptor);
    close(descriptor);
    if (wrong) continue;
    for (int round = 0; round < 20 && !g_ending; ++round) {
      std::vector<OpenNow> open;
      std::vector<OpenSince> since;
      std::vector<std::string> names;
      out.clear();
      if (!reader.drain(1 << 16, INT64_MAX, &out)) break;
      require(reader.open_now(&open) && reader.open_since(&since) && reader.names(0, &names), "the file is whole");
      require(out.start.size() == out.kind.size() && out.lost < (uint64_t{1} << 40), "rows and losses");
      for (int64_t dur : out.dur) require(dur >= 0, "no negative duration");
      reader.commit();
      usleep(500);
    }
  }
}

// Not under AddressSanitizer: as GCC 12 has it, its allocator's lock stays held in the child of a process of several
// threads, and the child waits for ever.
[[maybe_unused]] void forks() {
  while (!g_ending) {
    pid_t child = fork();
    require(child >= 0, "fork");
    if (child == 0) {
      // Threads of the parent are gone, whatever they held.
      if (gate() != 0 || segment_is_open()) _exit(2);
      g_gil = PTHREAD_MUTEX_INITIALIZER;
      OpenResult own = open_segment(nullptr);
      if (own.error) _exit(3);
      set_recording(true);
      Thread* thread = thread_of(gate());
      if (!thread) _exit(4);
      append_one(thread, counter(), 0, 0, 0, kHost);
      SegmentReader reader;
      if (reader.adopt(segment_descriptor())) _exit(5);
      Drained out;
      _exit(reader.drain(64, INT64_MAX, &out) && out.start.size() == 1 ? 0 : 6);
    }
    int status = 0;
    require(waitpid(child, &status, 0) == child && WIFEXITED(status), "the child ended");
    if (WEXITSTATUS(status) != 0) fprintf(stderr, "child: %d\n", WEXITSTATUS(status));
    require(WEXITSTATUS(status) == 0, "the child recorded in a segment of its own");
    usleep(20000);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return fprintf(stderr, "usage: %s SECONDS FOLDER\n", argv[0]), 2;
  g_folder = argv[2];
  require(start_public() && !open_segment(argv[2]).error, "a segment");
  set_recording(true);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(native_thread);
  for (int i = 0; i < 2; ++i) threads.emplace_back(python_thread, i);
  for (auto* work : {short_threads, ends_elsewhere, control_thread, reader_thread}) threads.emplace_back(work);
#ifndef __SANITIZE_ADDRESS__
  threads.emplace_back(forks);
#endif
  sleep(unsigned(atoi(argv[1])));
  g_ending = true;
  wake();
  for (std::thread& thread : threads) thread.join();
  close_segment(true);
  puts("stress: whole");
  return 0;
}
