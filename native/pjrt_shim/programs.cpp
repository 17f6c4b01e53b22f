#include "programs.h"

#include <algorithm>
#include <unordered_map>

#include "clients.h"
#include "keeper.h"
#include "session.h"

namespace fleetscope::pjrt {

static_assert((uint64_t{kNear} << 51) == 0 && kNear == 1u << 13, "near_index takes the top 13 bits");
std::atomic<Loaded*> g_near[kNear];
std::atomic<Module*> g_modules[kModules + 1];
std::atomic<Module*> g_followed{nullptr};

namespace {

struct Programs {
  std::unordered_map<LoadedExecutable*, Loaded*> live;
  std::vector<Loaded*> free;
};
Programs& programs() {
  static auto* all = new Programs;  // never destroyed: plugin threads outlive static destructors
  return *all;
}
std::atomic<uint64_t> g_loads{0};

void write_load(uint32_t epoch, Loaded* loaded) {
  static Name devices_key;
  uint32_t name = loaded->name.in(epoch, loaded->label.data(), loaded->label.size());
  fleetscope_argument devices = {devices_key.in(epoch, "devices", 7), FLEETSCOPE_ARGUMENT_INT, loaded->devices};
  loaded->told = epoch;
  write(epoch, kLoad, loaded->begin, loaded->dur, name, loaded->load << 1 | (loaded->cached ? 1 : 0), 0, &devices, 1);
}

// Names of a segment share 448 KiB and end at 8 192: a label is short, and there is one a load.
std::string short_name(const char* name, size_t size) {
  std::string cut(name, size < 100 ? size : 100);
  for (char& c : cut) {
    if (uint8_t(c) < 0x20) c = ' ';
  }
  return cut;
}

// Under g_lock, which whoever adds one holds; read without it.
Module* module_of(const std::string& name) {
  uint32_t index = 1;
  for (Module* module; index <= kModules && (module = g_modules[index].load(std::memory_order_relaxed)); ++index) {
    if (module->name == name) return module;
  }
  if (index > kModules) return nullptr;
  auto* module = new Module;  // never freed, as Loaded
  module->name = name;
  module->index = uint16_t(index);
  g_modules[index].store(module, std::memory_order_release);
  return module;
}

}  // namespace

Described::~Described() {
  ExecutableArgs args = {};
  args.struct_size = sizeof args;
  args.executable = executable;
  plugin->ask(kExecutableDestroy, &args);
}

void program_loaded(const Plugin* plugin, Client* client, LoadedExecutable* executable, uint64_t begin, bool cached) {
  uint64_t end = g_recorder->now();
  uint64_t load = g_loads.fetch_add(1) + 1;
  std::shared_ptr<Described> description;
  std::string name;

  GetExecutableArgs get = {};
  get.struct_size = sizeof get;
  get.executable = executable;
  if (plugin->ask(kLoadedGetExecutable, &get) && get.result) {
    description = std::make_shared<Described>(plugin, client, get.result);
    ExecutableTextArgs text = {};
    text.struct_size = sizeof text;
    text.executable = get.result;
    if (plugin->ask(kExecutableName, &text) && text.text) name = short_name(text.text, text.size);
  }
  std::string label = name + "#" + std::to_string(load);
  LoadedDevicesArgs devices = {};
  devices.struct_size = sizeof devices;
  devices.executable = executable;
  std::vector<uint16_t> ordinals;
  if (plugin->ask(kLoadedDevices, &devices)) {
    for (size_t i = 0; i < devices.count && i < 4096; ++i) ordinals.push_back(ordinal_of(devices.devices[i]));
  }

  uint32_t epoch = recording();
  {
    Hold hold;
    Programs& all = programs();
    Loaded*& loaded = all.live[executable];
    if (!loaded && !all.free.empty()) loaded = all.free.back(), all.free.pop_back();
    if (!loaded) loaded = new Loaded;
    loaded->load = load;
    loaded->devices = uint32_t(ordinals.size());
    loaded->ordinals = std::move(ordinals);
    loaded->label = label;
    loaded->name.forget();
    loaded->module = name.empty() ? nullptr : module_of(name);
    loaded->begin = begin;
    loaded->dur = end > begin ? end - begin : 0;
    loaded->cached = cached;
    loaded->plugin = plugin;
    loaded->client = client;
    loaded->told = 0;
    loaded->description = description;
    loaded->key.store(executable, std::memory_order_release);
    g_near[near_index(executable)].store(loaded, std::memory_order_release);
    if (epoch) write_load(epoch, loaded);
  }
  if (epoch && description) keep_harvest({epoch, load, std::move(description)});
  if (!epoch) keeper_owes();
  session_learns(load, label);
}

void program_unloads(LoadedExecutable* executable) {
  std::shared_ptr<Described> last;  // released after the lock: it calls the plugin
  uint32_t epoch = recording();
  uint64_t load;
  {
    Hold hold;
    Programs& all = programs();
    auto at = all.live.find(executable);
    if (at == all.live.end()) return;
    Loaded* loaded = at->second;
    load = loaded->load;
    if (epoch) {
      write(epoch, kUnload, g_recorder->now(), 0, loaded->name.in(epoch, loaded->label.data(), loaded->label.size()),
            load);
    }
    last = std::move(loaded->description);
    loaded->key.store(nullptr, std::memory_order_release);
    all.live.erase(at);
    all.free.push_back(loaded);
  }
  keeper_lets_go_of_load(load);
}

void programs_of_client_go(const Plugin* plugin, Client* client) {
  std::vector<std::shared_ptr<Described>> last;
  Hold hold;
  for (auto& [key, loaded] : programs().live) {
    if (loaded->plugin == plugin && loaded->client == client) last.push_back(std::move(loaded->description));
  }
}

bool follow_module(const std::string& name) {
  Hold hold;
  for (uint32_t index = 1; index <= kModules && !name.empty(); ++index) {
    Module* module = g_modules[index].load(std::memory_order_relaxed);
    if (!module) break;
    if (module->name != name) continue;
    g_recorder->follow(index);
    g_followed.store(module, std::memory_order_relaxed);
    return true;
  }
  g_followed.store(nullptr, std::memory_order_relaxed);
  g_recorder->follow(0);
  return name.empty();
}

Loaded* find_slowly(LoadedExecutable* executable) {
  Hold hold;
  auto at = programs().live.find(executable);
  if (at == programs().live.end()) return nullptr;
  g_near[near_index(executable)].store(at->second, std::memory_order_release);
  return at->second;
}

void announce_programs(uint32_t epoch, std::vector<Waiting>* harvest) {
  std::vector<Loaded*> unknown;
  for (auto& [key, loaded] : programs().live) {
    if (loaded->told != epoch) unknown.push_back(loaded);
  }
  std::sort(unknown.begin(), unknown.end(), [](const Loaded* a, const Loaded* b) { return a->load < b->load; });
  for (Loaded* loaded : unknown) {
    write_load(epoch, loaded);
    if (loaded->description) harvest->push_back({epoch, loaded->load, loaded->description});
  }
}

std::vector<std::pair<uint64_t, std::string>> live_labels() {
  Hold hold;
  std::vector<std::pair<uint64_t, std::string>> labels;
  for (auto& [key, loaded] : programs().live) labels.emplace_back(loaded->load, loaded->label);
  return labels;
}

}  // namespace fleetscope::pjrt
