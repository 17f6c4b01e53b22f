#include "session.h"

#include <time.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <unordered_map>
#include <vector>

#include "clients.h"
#include "programs.h"
#include "state.h"
#include "xspace.h"

namespace fleetscope::pjrt {

std::atomic<uint32_t> g_session_of[kPlugins];

// What the caller holds between create and destroy.
struct Profiler {
  uint8_t plugin;
  bool collected = false;
  std::string bytes;
};

namespace {

constexpr size_t kExecutions = 1 << 20;  // 40 MB; XProf's own viewer stops at a million events

// The last completions come some 10 us after jax's block_until_ready has returned, and the user stops right then.
constexpr int kPatienceUs = 50000;

struct Session {
  uint32_t number = 0;
  uint64_t begin = 0;                                // tick
  int64_t begin_ns = 0;                              // REALTIME then
  std::unordered_map<uint64_t, std::string> labels;  // by load id
  std::vector<Execution> executions;
  uint64_t left_out = 0;
};
Session* g_sessions[kPlugins];
std::atomic<uint32_t> g_numbers{0};
std::atomic<int64_t> g_expected[kPlugins];  // executions of the session that are in flight
pthread_mutex_t g_session_lock = PTHREAD_MUTEX_INITIALIZER;

template <uint8_t N>
ProfilerError* create(ProfilerCreateArgs* args) {
  args->profiler = new Profiler{N, false, {}};
  return nullptr;
}

ProfilerError* destroy(ProfilerArgs* args) {
  delete args->profiler;
  return nullptr;
}

ProfilerError* start(ProfilerArgs* args) {
  uint8_t plugin = args->profiler->plugin;
  auto* session = new Session;
  for (auto& [load, label] : live_labels()) session->labels.emplace(load, std::move(label));
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  session->begin = g_recorder->now();
  session->begin_ns = int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
  Hold hold(&g_session_lock);
  delete g_sessions[plugin];
  g_sessions[plugin] = session;
  session->number = g_numbers.fetch_add(1) + 1;
  g_expected[plugin].store(0);
  g_session_of[plugin].store(session->number);
  return nullptr;
}

ProfilerError* stop(ProfilerArgs* args) {
  uint8_t plugin = args->profiler->plugin;
  g_session_of[plugin].store(0);
  for (int waited = 0; waited < kPatienceUs && g_expected[plugin].load() > 0; waited += 200) usleep(200);
  return nullptr;
}

std::string build(uint8_t plugin, const Session& session) {
  std::map<uint16_t, DevicePlane> planes;
  {
    Hold hold;
    for (const DeviceSeen& seen : devices_seen()) {
      if (seen.plugin->number == plugin && seen.client) {
        planes[seen.ordinal] = {
            seen.platform, seen.ordinal, session.begin_ns, session.begin, g_period_num, g_period_den, {}};
      }
    }
  }
  for (const Execution& execution : session.executions) {
    auto at = planes.find(execution.ordinal);
    if (at != planes.end()) at->second.executions.push_back(execution);
  }
  std::string bytes;
  for (auto& [ordinal, plane] : planes) append_plane(&bytes, &plane, session.labels, session.left_out);
  return bytes;
}

// With a buffer: into it. Without one: jaxlib reads ours, which lives as long as the profiler.
ProfilerError* collect(ProfilerCollectArgs* args) {
  Profiler* profiler = args->profiler;
  if (!profiler->collected) {
    Session* session;
    {
      Hold hold(&g_session_lock);
      g_session_of[profiler->plugin].store(0);
      session = g_sessions[profiler->plugin];
      g_sessions[profiler->plugin] = nullptr;
    }
    if (session) profiler->bytes = build(profiler->plugin, *session);
    delete session;
    profiler->collected = true;
  }
  if (args->buffer) {
    memcpy(args->buffer, profiler->bytes.data(), profiler->bytes.size());
  } else {
    args->buffer = reinterpret_cast<uint8_t*>(&profiler->bytes[0]);
  }
  args->size = profiler->bytes.size();
  return nullptr;
}

// No call of ours fails; a caller that asks all the same gets an empty answer.
void error_destroy(void*) {}
void error_message(ProfilerMessageArgs* args) { args->message = "", args->message_size = 0; }
ProfilerError* error_code(ProfilerCodeArgs* args) { return args->code = 0, nullptr; }

constexpr ProfilerTable table_with(ProfilerError* (*create)(ProfilerCreateArgs*)) {
  return {
      sizeof(ProfilerTable), nullptr, error_destroy, error_message, error_code, create, destroy, start, stop, collect};
}

ProfilerTable g_tables[] = {table_with(create<0>), table_with(create<1>), table_with(create<2>), table_with(create<3>),
                            table_with(create<4>), table_with(create<5>), table_with(create<6>), table_with(create<7>)};
static_assert(sizeof g_tables == kPlugins * sizeof(ProfilerTable));

}  // namespace

ProfilerTable* profiler_table(uint8_t plugin) { return &g_tables[plugin]; }

void session_expects(uint8_t plugin) { g_expected[plugin].fetch_add(1); }

void session_adds(uint8_t plugin, uint32_t session, const Execution& execution) {
  Hold hold(&g_session_lock);
  Session* open = g_sessions[plugin];
  if (!open || open->number != session) return;
  g_expected[plugin].fetch_sub(1);
  if (open->executions.size() == kExecutions) {
    ++open->left_out;
  } else {
    open->executions.push_back(execution);
  }
}

void session_learns(uint64_t load, const std::string& label) {
  Hold hold(&g_session_lock);
  for (Session* open : g_sessions) {
    if (open) open->labels.emplace(load, label);
  }
}

void session_after_fork() {
  g_session_lock = PTHREAD_MUTEX_INITIALIZER;
  for (auto& session : g_session_of) session.store(0);
}

}  // namespace fleetscope::pjrt
