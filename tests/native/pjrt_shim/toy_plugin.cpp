// A PJRT plugin for tests: executes nothing, and misbehaves on request. It keeps its own log of every enqueue and
// completion, in the recorder's counter, against which the shim's records are judged. Not part of the package.
//
// Options come from $TOY_PLUGIN when GetPjrtApi is called ("minor=90,slots=128,profiler=1"); how completions come is
// set at any time through toy_set().
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <thread>
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
} g_options;

uint64_t ticks() {
#if defined(__x86_64__)
  if (g_options.tsc.load(std::memory_order_relaxed)) return __rdtsc();
#endif
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_RAW, &now);
  return uint64_t(now.tv_sec) * 1000000000 + uint64_t(now.tv_nsec);
}

// Time this thread spent inside the plugin since it last looked: what the shim costs is the rest.
thread_local uint64_t t_inside = 0;
struct Inside {
  uint64_t begin = ticks();
  ~Inside() { t_inside += ticks() - begin; }
};

struct ToyError {
  int code;
  std::string message;
};
Error* fail(int code, const char* message) { return reinterpret_cast<Error*>(new ToyError{code, message}); }

std::atomic<int64_t> g_complaints{0}, g_errors_live{0}, g_events_live{0}, g_loaded_live{0}, g_described_live{0},
    g_clients_live{0};

template <class Args>
Args* expect(void* args, size_t least = sizeof(Args)) {
  auto* typed = static_cast<Args*>(args);
  if (typed->struct_size < least) g_complaints.fetch_add(1);
  return typed;
}

// ---- log
struct Entry {
  uint64_t executable, number;  // number: of this executable's executions, from 0
  uint64_t device;
  uint64_t enqueued;                    // inside Execute
  std::atomic<uint64_t> before, after;  // around the callbacks; 0: not completed
  std::atomic<uint64_t> began{0};       // when the device got to it (from a worker only)
};
Entry* g_log = nullptr;
std::atomic<uint64_t> g_logged{0};
uint64_t g_log_size = 0;

// ---- events
struct ToyEvent {
  std::atomic<int> references{1};
  std::mutex lock;
  bool ready = false, failed = false;
  int64_t mode = kInline;
  std::vector<std::pair<void (*)(Error*, void*), void*>> callbacks;
  Entry* entry = nullptr;
};

ToyEvent* make_event(int64_t mode) {
  g_events_live.fetch_add(1, std::memory_order_relaxed);
  auto* event = new ToyEvent;
  event->mode = mode;
  return event;
}
void release(ToyEvent* event) {
  if (event->references.fetch_sub(1) == 1) {
    g_events_live.fetch_sub(1, std::memory_order_relaxed);
    delete event;
  }
}
void call(ToyEvent* event, void (*callback)(Error*, void*), void* user) {
  callback(event->failed ? fail(13, "the device failed") : nullptr, user);
}
void complete(ToyEvent* event) {
  decltype(event->callbacks) callbacks;
  {
    std::lock_guard<std::mutex> hold(event->lock);
    // Before anybody can see that it is over.
    if (event->entry) event->entry->before.store(ticks());
    event->ready = true;
    event->failed = event->mode == kDeviceFails;
    callbacks.swap(event->callbacks);
  }
  Entry* entry = event->entry;
  for (auto& [callback, user] : callbacks) call(event, callback, user);
  if (event->mode == kTwice) {
    for (auto& [callback, user] : callbacks) call(event, callback, user);
  }
  if (entry && !callbacks.empty()) entry->after.store(ticks());
  release(event);
}

// ---- the device: one worker
struct Worker {
  std::mutex lock;
  std::condition_variable wake;
  std::deque<ToyEvent*> queue;
  std::deque<ToyEvent*> held;
  bool started = false;
  std::atomic<int64_t> waiting{0};
}* g_worker = new Worker;

void work() {
  pthread_setname_np(pthread_self(), "toy-device");
  std::unique_lock<std::mutex> hold(g_worker->lock);
  for (;;) {
    while (g_worker->queue.empty()) g_worker->wake.wait(hold);
    std::deque<ToyEvent*> taken;
    taken.swap(g_worker->queue);
    hold.unlock();
    for (ToyEvent* event : taken) {
      if (event->entry) event->entry->began.store(ticks());
      int64_t stall = g_options.stall_us.load(std::memory_order_relaxed);
      if (stall) usleep(useconds_t(stall));
      complete(event);
      g_worker->waiting.fetch_sub(1);
    }
    hold.lock();
  }
}
void submit(ToyEvent* event) {
  std::lock_guard<std::mutex> hold(g_worker->lock);
  if (!g_worker->started) g_worker->started = true, std::thread(work).detach();
  bool first = g_worker->queue.empty();
  g_worker->queue.push_back(event);
  g_worker->waiting.fetch_add(1);
  if (first) g_worker->wake.notify_one();
}
// The plugin's own reference is given up by complete().
void run(ToyEvent* event) {
  event->references.fetch_add(1);
  switch (event->mode) {
    case kInline:
    case kOnReadyFails:
    case kOnReadyLies:
      complete(event);
      break;
    case kNever:
      break;
    case kHeld: {
      std::lock_guard<std::mutex> hold(g_worker->lock);
      g_worker->held.push_back(event);
      break;
    }
    default:
      submit(event);
  }
}

// ---- objects
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
std::atomic<uint64_t> g_executables{0};
struct ToyLoaded {
  ToyClient* client;
  uint64_t id;
  std::string name;
  std::atomic<uint64_t> runs{0};
};
struct ToyDescribed {
  std::string name;
  uint64_t id;
};
struct ToyBuffer {
  ToyDevice* device;
  int64_t mode;
};

Error* nothing(void*) { return nullptr; }
Error* unimplemented(void*) { return fail(12, "the toy plugin does not do that"); }

Error* error_destroy(void* raw) {
  auto* args = expect<ErrorArgs>(raw);
  delete reinterpret_cast<ToyError*>(args->error);
  return nullptr;
}
Error* error_message(void* raw) {
  auto* args = expect<MessageArgs>(raw);
  auto* error = reinterpret_cast<const ToyError*>(args->error);
  args->message = error->message.c_str();
  args->message_size = error->message.size();
  return nullptr;
}
Error* event_destroy(void* raw) {
  auto* args = expect<EventArgs>(raw);
  if (args->event) release(reinterpret_cast<ToyEvent*>(args->event));
  return nullptr;
}
Error* event_on_ready(void* raw) {
  Inside inside;
  auto* args = expect<OnReadyArgs>(raw);
  auto* event = reinterpret_cast<ToyEvent*>(args->event);
  if (event->mode == kOnReadyFails) return fail(13, "no callbacks today");
  if (event->mode == kOnReadyLies) return args->callback(nullptr, args->user), fail(13, "no callbacks today");
  {
    std::lock_guard<std::mutex> hold(event->lock);
    if (!event->ready) {
      event->callbacks.emplace_back(args->callback, args->user);
      return nullptr;
    }
  }
  // Ready before anybody listened: the listener is told here, and that is when it knows.
  call(event, args->callback, args->user);
  if (event->mode == kTwice) call(event, args->callback, args->user);
  if (event->entry) event->entry->after.store(ticks());
  return nullptr;
}

Error* client_create(void* raw) {
  auto* args = expect<ClientCreateArgs>(raw);
  auto* client = new ToyClient;
  for (int i = 0; i < g_options.devices; ++i) {
    client->devices.push_back(new ToyDevice{client, {100 + i}});
    client->pointers.push_back(reinterpret_cast<Device*>(client->devices.back()));
  }
  g_clients_live.fetch_add(1);
  args->client = reinterpret_cast<Client*>(client);
  return nullptr;
}
Error* client_destroy(void* raw) {
  auto* client = reinterpret_cast<ToyClient*>(expect<ClientArgs>(raw)->client);
  for (ToyDevice* device : client->devices) delete device;
  delete client;
  g_clients_live.fetch_sub(1);
  return nullptr;
}
Error* platform_name(void* raw) {
  auto* args = expect<ClientTextArgs>(raw);
  args->text = "toy", args->size = 3;
  return nullptr;
}
Error* platform_version(void* raw) {
  auto* args = expect<ClientTextArgs>(raw);
  args->text = "toy \"1.0\"", args->size = 9;
  return nullptr;
}
Error* process_index(void* raw) { return expect<ClientNumberArgs>(raw)->number = 3, nullptr; }
Error* addressable_devices(void* raw) {
  auto* args = expect<ClientDevicesArgs>(raw);
  auto* client = reinterpret_cast<ToyClient*>(args->client);
  args->devices = client->pointers.data();
  args->count = client->pointers.size();
  return nullptr;
}
Error* device_description(void* raw) {
  auto* args = expect<DeviceDescriptionArgs>(raw);
  args->description = reinterpret_cast<Description*>(&reinterpret_cast<ToyDevice*>(args->device)->description);
  return nullptr;
}
Error* description_id(void* raw) {
  auto* args = expect<DescriptionNumberArgs>(raw);
  args->number = reinterpret_cast<ToyDescription*>(args->description)->id;
  return nullptr;
}
Error* description_kind(void* raw) {
  auto* args = expect<DescriptionTextArgs>(raw);
  args->text = "toy v1", args->size = 6;
  return nullptr;
}
Error* description_attributes(void* raw) {
  auto* args = expect<DescriptionAttributesArgs>(raw);
  static const int64_t coords[3] = {1, 2, 0};
  static NamedValue values[2];
  values[0].struct_size = values[1].struct_size = sizeof(NamedValue);
  values[0].name = "coords", values[0].name_size = 6, values[0].type = 2, values[0].list = coords;
  values[0].value_size = 3;
  values[1].name = "core_on_chip", values[1].name_size = 12, values[1].type = 1, values[1].whole = 1;
  values[1].value_size = 1;
  args->attributes = values;
  args->count = 2;
  return nullptr;
}
Error* local_hardware_id(void* raw) {
  auto* args = expect<DeviceNumberArgs>(raw);
  args->number = reinterpret_cast<ToyDevice*>(args->device)->description.id - 100;
  return nullptr;
}
Error* memory_stats(void* raw) {
  auto* args = expect<MemoryStatsArgs>(raw, 185);
  if (!g_options.memory) return fail(12, "no memory statistics");
  args->bytes_in_use = 1000 + reinterpret_cast<ToyDevice*>(args->device)->description.id;
  args->limit.value = 5000;
  args->limit.set = true;
  return nullptr;
}

// Which programs are loaded, by number. A description outlives its loaded executable as an object only: in XLA:CPU it
// holds a bare pointer, so HLO asked for later reads what is gone.
std::mutex g_loaded_lock;
std::set<uint64_t>* g_loaded = new std::set<uint64_t>;
std::atomic<int64_t> g_late{0};

void look_at(uint64_t id) {
  std::lock_guard<std::mutex> hold(g_loaded_lock);
  if (!g_loaded->count(id)) g_late.fetch_add(1);
}

LoadedExecutable* load(Client* client, const char* text, size_t size) {
  g_loaded_live.fetch_add(1);
  auto* loaded =
      new ToyLoaded{reinterpret_cast<ToyClient*>(client), g_executables.fetch_add(1), std::string(text, size)};
  std::lock_guard<std::mutex> hold(g_loaded_lock);
  g_loaded->insert(loaded->id);
  return reinterpret_cast<LoadedExecutable*>(loaded);
}
Error* compile(void* raw) {
  auto* args = expect<CompileArgs>(raw);
  if (strncmp(args->program->code, "fail", 4) == 0) return fail(3, "it does not compile");
  args->executable = load(args->client, args->program->code, args->program->code_size);
  return nullptr;
}
Error* deserialize(void* raw) {
  auto* args = expect<DeserializeArgs>(raw, 48);
  args->executable = load(args->client, args->bytes, args->size);
  return nullptr;
}
Error* loaded_destroy(void* raw) {
  auto* loaded = reinterpret_cast<ToyLoaded*>(expect<LoadedArgs>(raw)->executable);
  {
    std::lock_guard<std::mutex> hold(g_loaded_lock);
    g_loaded->erase(loaded->id);
  }
  delete loaded;
  g_loaded_live.fetch_sub(1);
  return nullptr;
}
Error* get_executable(void* raw) {
  auto* args = expect<GetExecutableArgs>(raw);
  auto* loaded = reinterpret_cast<ToyLoaded*>(args->executable);
  g_described_live.fetch_add(1);
  args->result = reinterpret_cast<Executable*>(new ToyDescribed{loaded->name, loaded->id});
  return nullptr;
}
Error* executable_destroy(void* raw) {
  delete reinterpret_cast<ToyDescribed*>(expect<ExecutableArgs>(raw)->executable);
  g_described_live.fetch_sub(1);
  return nullptr;
}
Error* executable_name(void* raw) {
  auto* args = expect<ExecutableTextArgs>(raw);
  auto* described = reinterpret_cast<ToyDescribed*>(args->executable);
  args->text = described->name.c_str(), args->size = described->name.size();
  return nullptr;
}
Error* optimized_program(void* raw) {
  auto* args = expect<OptimizedProgramArgs>(raw);
  auto* described = reinterpret_cast<ToyDescribed*>(args->executable);
  look_at(described->id);
  if (int64_t stall = g_options.hlo_stall_us.load()) usleep(useconds_t(stall));
  look_at(described->id);
  args->program->format = "hlo_with_config";
  args->program->format_size = 15;
  if (args->program->code) memset(args->program->code, char('a' + described->id % 26), args->program->code_size);
  args->program->code_size = size_t(g_options.hlo_bytes.load());
  return nullptr;
}
Error* loaded_devices(void* raw) {
  auto* args = expect<LoadedDevicesArgs>(raw);
  auto* client = reinterpret_cast<ToyLoaded*>(args->executable)->client;
  args->devices = client->pointers.data();
  args->count = client->pointers.size();
  return nullptr;
}

Error* execute(void* raw) {
  Inside inside;
  auto* args = expect<ExecuteArgs>(raw);
  auto* loaded = reinterpret_cast<ToyLoaded*>(args->executable);
  int64_t mode = g_options.mode.load(std::memory_order_relaxed);
  if (mode == kExecuteFails) return fail(8, "no room");
  uint64_t number = loaded->runs.fetch_add(1, std::memory_order_relaxed);
  uint64_t now = ticks();
  for (size_t i = 0; i < args->device_count; ++i) {
    ToyEvent* event = make_event(mode);
    uint64_t at = g_options.log.load(std::memory_order_relaxed) ? g_logged.fetch_add(1) : g_log_size;
    if (at < g_log_size) {
      event->entry = &g_log[at];
      event->entry->executable = loaded->id;
      event->entry->number = number;
      event->entry->device = i;
      event->entry->enqueued = now;
      event->entry->before.store(0);
      event->entry->after.store(0);
    }
    if (args->completions) event->references.fetch_add(1), args->completions[i] = reinterpret_cast<Event*>(event);
    run(event);
    release(event);
  }
  return nullptr;
}

Event* transfer_event() {
  ToyEvent* event = make_event(g_options.mode.load());
  run(event);
  return reinterpret_cast<Event*>(event);
}
Error* buffer_from_host(void* raw) {
  auto* args = expect<BufferFromHostArgs>(raw);
  if (g_options.mode == kExecuteFails) return fail(8, "no room");
  args->buffer = reinterpret_cast<Buffer*>(new ToyBuffer{reinterpret_cast<ToyDevice*>(args->device), 0});
  args->done = transfer_event();
  return nullptr;
}
Error* buffer_destroy(void* raw) {
  delete reinterpret_cast<ToyBuffer*>(expect<BufferArgs>(raw)->buffer);
  return nullptr;
}
Error* buffer_device(void* raw) {
  auto* args = expect<BufferDeviceArgs>(raw);
  args->device = reinterpret_cast<Device*>(reinterpret_cast<ToyBuffer*>(args->buffer)->device);
  return nullptr;
}
Error* buffer_ready(void* raw) { return expect<ReadyEventArgs>(raw)->event = transfer_event(), nullptr; }
Error* to_host(void* raw) {
  auto* args = expect<ToHostArgs>(raw);
  if (!args->to) return args->size = 4096, nullptr;
  if (g_options.mode == kExecuteFails) return fail(8, "no room");
  return args->event = transfer_event(), nullptr;
}
Error* copy_raw(void* raw) { return expect<CopyRawArgs>(raw)->event = transfer_event(), nullptr; }
Error* copy_raw_future(void* raw) { return expect<CopyRawFutureArgs>(raw)->event = transfer_event(), nullptr; }
Error* transfer_data(void* raw) { return expect<TransferDataArgs>(raw)->event = transfer_event(), nullptr; }
// A manager is its device.
Error* manager_device(void* raw) {
  auto* args = expect<ManagerDeviceArgs>(raw);
  args->device = reinterpret_cast<Device*>(args->manager);
  return nullptr;
}

// ---- table
struct Whole {
  size_t struct_size;
  Extension* extensions;
  Version version;
  Function slots[160];
};

// A profiler of the plugin's own. It tells the truth: when the device got to an execution and when it was over, and
// two ops that share it, 70 to 30. Like any, it loses what does not lie wholly inside the session.
struct ToySession {
  uint64_t begin = 0, end = 0;
  int64_t begin_ns = 0;
  std::string space;
};
void put(std::string* out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out->push_back(char(value | 0x80));
  out->push_back(char(value));
}
void put(std::string* out, int field, uint64_t value) { put(out, uint64_t(field) << 3), put(out, value); }
void put(std::string* out, int field, const std::string& bytes) {
  put(out, uint64_t(field) << 3 | 2), put(out, bytes.size());
  *out += bytes;
}
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
std::atomic<int64_t> g_profiles{0};
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
ProfilerExtension g_profiler = {{sizeof(ProfilerExtension), kProfilerExtension, nullptr}, &g_profiler_table, 0};
Extension g_stream = {sizeof(Extension), 3, nullptr};

void read_options() {
  const char* text = getenv("TOY_PLUGIN");
  std::string all = text ? text : "";
  const struct {
    const char* name;
    int64_t* value;
  } known[] = {{"minor", &g_options.minor},     {"slots", &g_options.slots},       {"major", &g_options.major},
               {"size", &g_options.size},       {"profiler", &g_options.profiler}, {"nothing", &g_options.nothing},
               {"devices", &g_options.devices}, {"memory", &g_options.memory},     {"hole", &g_options.hole},
               {"edge", &g_options.edge}};
  for (size_t at = 0; at < all.size();) {
    size_t end = all.find(',', at);
    if (end == std::string::npos) end = all.size();
    std::string part = all.substr(at, end - at);
    at = end + 1;
    size_t equal = part.find('=');
    for (auto& option : known) {
      if (equal != std::string::npos && part.substr(0, equal) == option.name) {
        *option.value = atoll(part.c_str() + equal + 1);
      }
    }
  }
}

}  // namespace toy

using namespace toy;

TOY_API const void* GetPjrtApi() {
  static Whole whole;
  read_options();
  if (g_options.nothing) return nullptr;
  whole.version = {sizeof(Version), nullptr, int(g_options.major), int(g_options.minor)};
  whole.struct_size = g_options.size ? size_t(g_options.size) : kTableHead + size_t(g_options.slots) * sizeof(Function);
  whole.extensions = g_options.profiler ? &g_profiler.base : &g_stream;
  g_profiler.base.next = &g_stream;
  for (Function& slot : whole.slots) slot = unimplemented;
  const std::pair<int, Function> mine[] = {{kErrorDestroy, error_destroy},
                                           {kErrorMessage, error_message},
                                           {3, nothing},
                                           {kEventDestroy, event_destroy},
                                           {kEventOnReady, event_on_ready},
                                           {kClientCreate, client_create},
                                           {kClientDestroy, client_destroy},
                                           {kClientPlatformName, platform_name},
                                           {kClientProcessIndex, process_index},
                                           {kClientPlatformVersion, platform_version},
                                           {kClientAddressableDevices, addressable_devices},
                                           {kClientCompile, compile},
                                           {kBufferFromHost, buffer_from_host},
                                           {kDescriptionId, description_id},
                                           {kDescriptionAttributes, description_attributes},
                                           {kDescriptionKind, description_kind},
                                           {kDeviceDescription, device_description},
                                           {kDeviceLocalHardwareId, local_hardware_id},
                                           {kDeviceMemoryStats, memory_stats},
                                           {kExecutableDestroy, executable_destroy},
                                           {kExecutableName, executable_name},
                                           {kExecutableOptimizedProgram, optimized_program},
                                           {kLoadedDestroy, loaded_destroy},
                                           {kLoadedGetExecutable, get_executable},
                                           {kLoadedDevices, loaded_devices},
                                           {kLoadedDelete, nothing},
                                           {kLoadedExecute, execute},
                                           {kDeserializeAndLoad, deserialize},
                                           {58, buffer_destroy},
                                           {kBufferDevice, buffer_device},
                                           {kBufferToHost, to_host},
                                           {kBufferReadyEvent, buffer_ready},
                                           {kBufferCopyRawToHost, copy_raw},
                                           {kManagerTransferData, transfer_data},
                                           {kManagerDevice, manager_device},
                                           {kBufferCopyRawToHostFuture, copy_raw_future}};
  for (auto& [slot, function] : mine) whole.slots[slot] = function;
  if (g_options.hole >= 0) whole.slots[g_options.hole] = nullptr;
  if (!g_options.edge) return &whole;
  // Where memory ends with the table, which claims 64 slots more.
  size_t page = size_t(sysconf(_SC_PAGESIZE)), true_size = kTableHead + size_t(g_options.slots) * sizeof(Function);
  char* pages = static_cast<char*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  mprotect(pages + page, page, PROT_NONE);
  whole.struct_size = true_size + 64 * sizeof(Function);
  return memcpy(pages + page - true_size, &whole, true_size);
}

TOY_API void toy_set(const char* name, int64_t value) {
  const struct {
    const char* name;
    std::atomic<int64_t>* value;
  } known[] = {
      {"mode", &g_options.mode}, {"stall_us", &g_options.stall_us},   {"reverse", &g_options.reverse},
      {"tsc", &g_options.tsc},   {"hlo_bytes", &g_options.hlo_bytes}, {"hlo_stall_us", &g_options.hlo_stall_us},
      {"log", &g_options.log},   {"whole", &g_options.whole},         {"period_ps", &g_options.period_ps}};
  for (auto& option : known) {
    if (strcmp(option.name, name) == 0) option.value->store(value);
  }
}

TOY_API void toy_log(uint64_t entries) {
  delete[] g_log;
  g_log = new Entry[entries];
  g_log_size = entries;
  g_logged.store(0);
}
// Entries from `at` on, seven numbers each; the count of all.
TOY_API uint64_t toy_read_log(uint64_t at, uint64_t count, uint64_t* into) {
  for (uint64_t i = 0; i < count; ++i, into += 7) {
    const Entry& entry = g_log[at + i];
    into[0] = entry.executable, into[1] = entry.number, into[2] = entry.device, into[3] = entry.enqueued;
    into[4] = entry.before.load(), into[5] = entry.after.load();
    into[6] = entry.began.load();
  }
  return g_logged.load();
}
// Completes what is held; how many.
TOY_API int64_t toy_release(int64_t most) {
  std::deque<ToyEvent*> all;
  {
    std::lock_guard<std::mutex> hold(g_worker->lock);
    while (most-- > 0 && !g_worker->held.empty()) {
      if (g_options.reverse) {
        all.push_back(g_worker->held.back());
        g_worker->held.pop_back();
      } else {
        all.push_back(g_worker->held.front());
        g_worker->held.pop_front();
      }
    }
  }
  for (ToyEvent* event : all) complete(event);
  return int64_t(all.size());
}
TOY_API int64_t toy_waiting() { return g_worker->waiting.load(); }
TOY_API int64_t toy_live(const char* what) {
  std::string name = what;
  return (name == "events"      ? g_events_live
          : name == "loaded"    ? g_loaded_live
          : name == "described" ? g_described_live
          : name == "clients"   ? g_clients_live
          : name == "profiles"  ? g_profiles
          : name == "late"      ? g_late
                                : g_complaints)
      .load();
}

// ---- a caller, as jaxlib is one: through a table, ours or the real one
TOY_API void* toy_client(const Table* table) {
  ClientCreateArgs args = {};
  args.struct_size = sizeof args;
  return table->slots[kClientCreate](&args) ? nullptr : args.client;
}
TOY_API void* toy_device(Client* client, int64_t number) {
  return reinterpret_cast<ToyClient*>(client)->devices[size_t(number)];
}
TOY_API void toy_client_destroy(const Table* table, Client* client) {
  ClientArgs args = {};
  args.struct_size = sizeof args;
  args.client = client;
  table->slots[kClientDestroy](&args);
}
static int64_t dismiss(const Table* table, Error* error) {
  if (!error) return 0;
  ErrorArgs args = {};
  args.struct_size = sizeof args;
  args.error = error;
  table->slots[kErrorDestroy](&args);
  return 1;
}
TOY_API void* toy_compile(const Table* table, Client* client, const char* name, int64_t cached) {
  Error* error;
  void* executable;
  if (cached) {
    DeserializeArgs args = {};
    args.struct_size = sizeof args;
    args.client = client;
    args.bytes = name, args.size = strlen(name);
    error = table->slots[kDeserializeAndLoad](&args);
    executable = args.executable;
  } else {
    Program program = {};
    program.struct_size = sizeof program;
    program.code = const_cast<char*>(name), program.code_size = strlen(name);
    program.format = "mlir", program.format_size = 4;
    CompileArgs args = {};
    args.struct_size = sizeof args;
    args.client = client;
    args.program = &program;
    error = table->slots[kClientCompile](&args);
    executable = args.executable;
  }
  return dismiss(table, error) ? nullptr : executable;
}
TOY_API void toy_unload(const Table* table, void* executable) {
  LoadedArgs args = {};
  args.struct_size = sizeof args;
  args.executable = static_cast<LoadedExecutable*>(executable);
  table->slots[kLoadedDestroy](&args);
}
TOY_API uint64_t toy_id(void* executable) { return static_cast<ToyLoaded*>(executable)->id; }

// Executes `count` times on `devices`; asks for events when `want`, and drops them. `one`: a device to run on instead.
// `cost`, when given: per call, ticks on this thread that were not inside the plugin (all of them if `whole`). How many
// calls failed.
TOY_API int64_t toy_execute(const Table* table, void* executable, int64_t count, int64_t devices, int64_t want,
                            void* one, int64_t size, uint64_t* cost) {
  int64_t failed = 0;
  std::vector<Event*> events(size_t(devices) + 1);
  for (int64_t i = 0; i < count; ++i) {
    ExecuteArgs args = {};
    args.struct_size = size_t(size);
    args.executable = static_cast<LoadedExecutable*>(executable);
    args.device_count = size_t(devices);
    args.completions = want ? events.data() : nullptr;
    args.device = static_cast<Device*>(one);
    t_inside = 0;
    uint64_t begin = ticks();
    Error* error = table->slots[kLoadedExecute](&args);
    uint64_t all = ticks() - begin;
    if (cost) cost[i] = g_options.whole.load(std::memory_order_relaxed) ? all : all - t_inside;
    if (!want && args.completions) g_complaints.fetch_add(1);  // the caller's arguments are the caller's
    failed += dismiss(table, error);
    for (int64_t k = 0; want && !error && k < devices; ++k) {
      EventArgs destroy = {};
      destroy.struct_size = sizeof destroy;
      destroy.event = events[size_t(k)];
      table->slots[kEventDestroy](&destroy);
    }
  }
  return failed;
}

// `threads` callers at once, each with an executable of its own.
TOY_API int64_t toy_execute_threads(const Table* table, void** executables, int64_t threads, int64_t count,
                                    int64_t devices, int64_t want) {
  std::vector<std::thread> all;
  std::atomic<int64_t> failed{0};
  for (int64_t i = 0; i < threads; ++i) {
    all.emplace_back([=, &failed] {
      failed += toy_execute(table, executables[i], count, devices, want, nullptr, sizeof(ExecuteArgs), nullptr);
    });
  }
  for (std::thread& thread : all) thread.join();
  return failed;
}

// One transfer of each kind, `bytes` long: H2D by buffer and by manager, D2H three ways. How many calls failed.
TOY_API int64_t toy_transfer(const Table* table, Client* client, int64_t bytes) {
  int64_t failed = 0;
  auto drop = [&](Event* event) {
    EventArgs args = {};
    args.struct_size = sizeof args;
    args.event = event;
    if (event) table->slots[kEventDestroy](&args);
  };
  auto* device = reinterpret_cast<ToyClient*>(client)->pointers[1];
  int64_t dims[1] = {bytes / 4};
  BufferFromHostArgs in = {};
  in.struct_size = sizeof in;
  in.client = client;
  in.type = 11;  // F32
  in.dims = dims, in.dim_count = 1;
  in.device = device;
  int64_t bad = dismiss(table, table->slots[kBufferFromHost](&in));
  failed += bad;
  if (!bad) drop(in.done);
  ToyBuffer spare{reinterpret_cast<ToyDevice*>(device), 0};
  auto* buffer = bad ? reinterpret_cast<Buffer*>(&spare) : in.buffer;
  TransferDataArgs data = {};
  data.struct_size = sizeof data;
  data.manager = reinterpret_cast<TransferManager*>(device);
  data.size = bytes;
  if (!dismiss(table, table->slots[kManagerTransferData](&data))) drop(data.event);
  ToHostArgs out = {};
  out.struct_size = sizeof out;
  out.buffer = buffer;
  table->slots[kBufferToHost](&out);  // asks for the size alone
  out.to = &failed, out.size = size_t(bytes);
  bad = dismiss(table, table->slots[kBufferToHost](&out));
  failed += bad;
  if (!bad) drop(out.event);
  CopyRawArgs copy = {};
  copy.struct_size = sizeof copy;
  copy.buffer = buffer;
  copy.size = bytes;
  if (!dismiss(table, table->slots[kBufferCopyRawToHost](&copy))) drop(copy.event);
  CopyRawFutureArgs future = {};
  future.struct_size = sizeof future;
  future.buffer = buffer;
  future.size = bytes;
  if (!dismiss(table, table->slots[kBufferCopyRawToHostFuture](&future))) drop(future.event);
  if (buffer == in.buffer && in.buffer) {
    BufferArgs args = {};
    args.struct_size = sizeof args;
    args.buffer = in.buffer;
    table->slots[58](&args);
  }
  return failed;
}
