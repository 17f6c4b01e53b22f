// A profiler of the toy plugin's own. It tells the truth: when the device got to an execution and when it was over, and
// two ops that share it, 70 to 30. Like any, it loses what does not lie wholly inside the session.
#include <string.h>

#include <algorithm>

#include "protobuf.h"
#include "toy.h"

namespace toy {

std::atomic<int64_t> g_profiles{0};

namespace {

struct ToySession {
  uint64_t begin = 0, end = 0;
  int64_t begin_ns = 0;
  std::string space;
};
std::string named(uint64_t id, const std::string& name) {
  std::string message, entry;
  put(&message, 1, id), put(&message, 2, name);
  put(&entry, 1, id), put(&entry, 2, message);
  return entry;
}
std::string event_of(uint64_t metadata, double offset_ns, double dur_ns) {
  std::string event;
  put(&event, 1, metadata), put(&event, 2, uint64_t(offset_ns * 1e3)), put(&event, 3, uint64_t(dur_ns * 1e3));
  return event;
}
std::string own_space(const ToySession& session) {
  double ns = double(g_options.period_ps.load()) / 1e3;  // a tick
  std::string modules, ops, plane, space;
  put(&modules, 1, 1), put(&modules, 2, std::string("XLA Modules")), put(&modules, 3, uint64_t(session.begin_ns));
  put(&ops, 1, 2), put(&ops, 2, std::string("XLA Ops")), put(&ops, 3, uint64_t(session.begin_ns));
  uint64_t count = std::min(g_logged.load(), g_log_size);
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t began = g_log[i].began.load(), over = g_log[i].before.load();
    if (began < session.begin || over == 0 || over > session.end) continue;
    double offset = double(began - session.begin) * ns, dur = double(over - began) * ns;
    put(&modules, 4, event_of(1, offset, dur));
    put(&ops, 4, event_of(2, offset, dur * 0.7));
    put(&ops, 4, event_of(3, offset + dur * 0.7, dur * 0.3));
  }
  put(&plane, 1, 1), put(&plane, 2, std::string("/device:CUSTOM:TOYOWN"));
  put(&plane, 3, modules), put(&plane, 3, ops);
  put(&plane, 4, named(1, "jit_f(0)")), put(&plane, 4, named(2, "large")), put(&plane, 4, named(3, "small"));
  put(&space, 1, plane);
  return space;
}
void profiler_error_destroy(void*) {}
void profiler_error_message(ProfilerMessageArgs* args) { args->message = "", args->message_size = 0; }
ProfilerError* profiler_error_code(ProfilerCodeArgs* args) { return args->code = 0, nullptr; }
ProfilerError* profiler_create(ProfilerCreateArgs* args) {
  args->profiler = reinterpret_cast<Profiler*>(new ToySession);
  return nullptr;
}
ProfilerError* profiler_destroy(ProfilerArgs* args) {
  delete reinterpret_cast<ToySession*>(args->profiler);
  return nullptr;
}
ProfilerError* profiler_start(ProfilerArgs* args) {
  g_profiles.fetch_add(1);
  auto* session = reinterpret_cast<ToySession*>(args->profiler);
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  session->begin = ticks();
  session->begin_ns = int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
  return nullptr;
}
ProfilerError* profiler_stop(ProfilerArgs* args) {
  reinterpret_cast<ToySession*>(args->profiler)->end = ticks();
  return nullptr;
}
ProfilerError* profiler_collect(ProfilerCollectArgs* args) {
  auto* session = reinterpret_cast<ToySession*>(args->profiler);
  if (session->space.empty()) session->space = own_space(*session);
  args->size = session->space.size();
  if (args->buffer) {
    memcpy(args->buffer, session->space.data(), args->size);
  } else {
    args->buffer = reinterpret_cast<uint8_t*>(&session->space[0]);
  }
  return nullptr;
}
ProfilerTable g_profiler_table = {
    sizeof(ProfilerTable), nullptr,          profiler_error_destroy, profiler_error_message, profiler_error_code,
    profiler_create,       profiler_destroy, profiler_start,         profiler_stop,          profiler_collect};

}  // namespace

ProfilerExtension g_profiler = {{sizeof(ProfilerExtension), kProfilerExtension, nullptr}, &g_profiler_table, 0};

}  // namespace toy
