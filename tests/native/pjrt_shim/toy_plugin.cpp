// A PJRT plugin for tests: executes nothing, and misbehaves on request.
//
// Options come from $TOY_PLUGIN when GetPjrtApi is called ("minor=90,slots=128,profiler=1"); how completions come is
// set at any time through toy_set().
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <set>

#include "toy.h"

namespace toy {

Options g_options;
__thread uint64_t t_inside = 0;
std::atomic<int64_t> g_complaints{0};

namespace {

std::atomic<int64_t> g_loaded_live{0}, g_described_live{0}, g_clients_live{0};
std::atomic<uint64_t> g_executables{0};

// What the plugin says of a program once it is loaded.
struct ToyDescribed {
  std::string name;
  uint64_t id;
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
  args->buffer = reinterpret_cast<Buffer*>(new ToyBuffer{reinterpret_cast<ToyDevice*>(args->device)});
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

}  // namespace
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
