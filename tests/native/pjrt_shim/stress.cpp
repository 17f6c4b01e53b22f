// Everything at once, for sanitizers: callers, compiles and unloads, transfers, profiler sessions, segments that come
// and go, completions in every manner, a forked child. Links the shim, the recorder's writer and the toy plugin.
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "flights.h"
#include "keeper.h"
#include "plugin.h"
#include "programs.h"
#include "state.h"
#include "toy.h"
#include "writer.h"

using namespace fleetscope::pjrt;

int main(int argc, char** argv) {
  if (argc != 3) return fprintf(stderr, "stress FOLDER ROUNDS\n"), 2;
  const char* folder = argv[1];
  const int rounds = atoi(argv[2]);
  start_state(fleetscope_recorder());
  toy_log(1 << 16);
  std::string why;
  const Table* table = wrap(static_cast<const Table*>(GetPjrtApi()), "toy", &why);
  if (!table) return fprintf(stderr, "%s\n", why.c_str()), 1;
  start_keeper();
  auto* client = static_cast<Client*>(toy_client(table));
  void* shared = toy_compile(table, client, "jit_shared", 0);
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < rounds; ++round)
        toy_execute(table, shared, 5, 1 + i % 4, i % 2, nullptr, 80, nullptr);
    });
  }
  threads.emplace_back([&] {
    for (int round = 0; round < rounds; ++round) {
      void* own = toy_compile(table, client, round % 7 ? "jit_own" : "fail", round % 2);
      if (!own) continue;
      toy_execute(table, own, 3, 2, 1, nullptr, 80, nullptr);
      toy_unload(table, own);
    }
  });
  threads.emplace_back([&] {
    for (int round = 0; round < rounds; ++round) toy_transfer(table, client, 4096);
  });
  std::thread chaos([&] {
    for (int mode = 0; !over; mode = (mode + 1) % 9) {
      toy_set("mode", mode);
      toy_set("reverse", mode % 2);
      usleep(1000);
      toy_release(1000);
    }
  });
  std::thread segments([&] {
    while (!over) {
      if (fleetscope::recorder::open_segment(folder).error) abort();
      fleetscope::recorder::set_recording(true);
      usleep(20000);
      fleetscope::recorder::close_segment(true);
      usleep(1000);
    }
  });
  std::thread sessions([&] {
    ProfilerTable* profiler = reinterpret_cast<ProfilerExtension*>(table->extensions)->table;
    while (!over) {
      ProfilerCreateArgs create = {};
      profiler->create(&create);
      ProfilerArgs args = {};
      args.profiler = create.profiler;
      profiler->start(&args);
      usleep(5000);
      profiler->stop(&args);
      ProfilerCollectArgs collect = {};
      collect.profiler = create.profiler;
      profiler->collect(&collect);
      profiler->destroy(&args);
    }
  });
  std::thread follower([&] {
    namespace recorder = fleetscope::recorder;
    while (!over) {
      follow_module("jit_shared");
      recorder::mark_execution(g_recorder->now());
      usleep(2000);
      int64_t number = recorder::step_state(recorder::Pace::kExecutions).step;
      recorder::wait_step(recorder::Pace::kExecutions, number + 20, 2000000);
      uint64_t end;
      // Of several threads the numbers are one another's, and none is beyond what was launched.
      if (recorder::marked_execution(&number, &end) && (number < 1 || number > rounds * 20)) abort();
      recorder::note_compile();
      follow_module("");
    }
  });
  for (std::thread& thread : threads) thread.join();
  over = true;
  chaos.join();
  segments.join();
  sessions.join();
  follower.join();
  while (toy_waiting()) usleep(1000);
  toy_release(1 << 30);
  pid_t child = fork();
  if (child == 0) {
    toy_set("mode", 0);
    int64_t failed = toy_execute(table, shared, 10, 2, 1, nullptr, 80, nullptr);
    _exit(failed ? 1 : 0);
  }
  int status = 1;
  waitpid(child, &status, 0);
  toy_unload(table, shared);
  toy_client_destroy(table, client);
  if (!stop_keeper(5000)) return fprintf(stderr, "the keeper did not end\n"), 1;
  printf("child %d described %lld complaints %lld\n", status, (long long)toy_live("described"),
         (long long)toy_live("complaints"));
  return 0;
}
