// Loaded executables by the plugin's pointer, their labels and their numbers in this process.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugin.h"
#include "state.h"

namespace fleetscope::pjrt {

// The plugin's description of a program, alive as long as somebody may still ask it for HLO.
struct Described {
  Described(const Plugin* plugin, Client* client, Executable* executable)
      : plugin(plugin), client(client), executable(executable) {}
  Described(const Described&) = delete;
  Described& operator=(const Described&) = delete;
  ~Described();

  const Plugin* const plugin;
  Client* const client;
  Executable* const executable;
};

// Executions by module name, since the process began and whether they are recorded or not: a job's ranks count alike,
// whenever their agents came, and a program that is compiled anew is counted on.
struct Module {
  std::string name;
  uint16_t index = 0;  // from 1
  std::atomic<uint64_t> launches{0};
  // Ticks, of all devices, from max(enqueue, previous completion) to completion: of what was watched alone.
  std::atomic<uint64_t> busy{0};
};
// An execution's number in 16 bits, and back: far fewer than 65 535 of one program are in flight.
constexpr uint64_t kShort = 65535;
inline uint16_t short_number(uint64_t number) { return uint16_t(1 + number % kShort); }
inline uint64_t long_number(uint16_t number, uint64_t newest) {
  return newest - (newest % kShort + kShort - (number - 1u)) % kShort;
}
constexpr uint32_t kModules = 1024;  // later names are not counted
extern std::atomic<Module*> g_modules[kModules + 1];
// Executions of this module stand for steps from now on; "": of none. False while no such module was loaded.
bool follow_module(const std::string& name);
extern std::atomic<Module*> g_followed;

// Never freed, only used again for another program: a launch may look at one that is being replaced.
struct Loaded {
  std::atomic<LoadedExecutable*> key{nullptr};
  uint64_t load = 0;  // load id, per process from 1
  uint32_t devices = 0;
  std::vector<uint16_t> ordinals;  // of its addressable devices
  std::string label;               // <module name>#<load id>
  Name name;
  Module* module = nullptr;     // nullptr: one of more than can be counted
  uint64_t begin = 0, dur = 0;  // of the compile or deserialisation
  bool cached = false;
  const Plugin* plugin = nullptr;
  Client* client = nullptr;
  std::shared_ptr<Described> description;
  uint32_t told = 0;  // segment that has its LOAD
};

// After a successful compile or deserialisation. Writes LOAD where a segment is open and hands the program to the
// keeper.
void program_loaded(const Plugin* plugin, Client* client, LoadedExecutable* executable, uint64_t begin, bool cached);
// Before the plugin destroys or deletes it: afterwards the pointer may be another program's.
void program_unloads(LoadedExecutable* executable);
// Lets go of everything of a client that is about to go.
void programs_of_client_go(const Plugin* plugin, Client* client);

// The program of a pointer; nullptr for one that came by a way we do not see. A few ns when it ran lately.
Loaded* find_slowly(LoadedExecutable* executable);
constexpr uint32_t kNear = 8192;
extern std::atomic<Loaded*> g_near[kNear];
inline uint32_t near_index(LoadedExecutable* executable) {
  return uint32_t(reinterpret_cast<uintptr_t>(executable) * 0x9e3779b97f4a7c15u >> 51);
}
inline Loaded* find(LoadedExecutable* executable) {
  Loaded* loaded = g_near[near_index(executable)].load(std::memory_order_acquire);
  if (__builtin_expect(loaded && loaded->key.load(std::memory_order_acquire) == executable, 1)) return loaded;
  return find_slowly(executable);
}

// For the keeper, under g_lock: writes LOAD of every live program that a segment opened since does not know.
struct Waiting {
  uint32_t epoch;
  uint64_t load;
  std::shared_ptr<Described> description;
};
void announce_programs(uint32_t epoch, std::vector<Waiting>* harvest);
// For a profiler session: (load id, label) of every live program.
std::vector<std::pair<uint64_t, std::string>> live_labels();

}  // namespace fleetscope::pjrt
