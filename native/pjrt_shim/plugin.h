// A wrapped plugin: the real table, ours, and calls into the real one.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "abi.h"

namespace fleetscope::pjrt {

constexpr uint32_t kPlugins = 8;  // trampolines are made at compile time; a ninth plugin is refused

struct Plugin {
  const Table* real = nullptr;
  Table* ours = nullptr;  // as many bytes as the real one declares
  uint32_t slots = 0;     // of both
  uint8_t number = 0;
  char name[64] = {};               // jax's name of the platform
  ProfilerExtension profiler = {};  // ours, in front of the real chain where that has none

  bool has(Slot slot) const { return slot < slots && real->slots[slot] != nullptr; }
  Error* call(Slot slot, void* args) const { return real->slots[slot](args); }

  // The call's success; an error is destroyed here.
  bool ask(Slot slot, void* args) const { return has(slot) && dismiss(call(slot, args)); }
  bool dismiss(Error* error) const {
    if (__builtin_expect(error == nullptr, 1)) return true;
    ErrorArgs args = {};
    args.struct_size = sizeof args;
    args.error = error;
    real->slots[kErrorDestroy](&args);
    return false;
  }
  void destroy(Event* event) const {
    EventArgs args = {};
    args.struct_size = sizeof args;
    args.event = event;
    ask(kEventDestroy, &args);
  }
};

extern Plugin g_plugins[kPlugins];

// Our table for a plugin's; the same one for the same table. nullptr with *why when it is better left alone.
const Table* wrap(const Table* real, const char* name, std::string* why);
// Loads the file as jaxlib does and wraps what its GetPjrtApi returns.
const Table* wrap_file(const char* path, const char* name, std::string* why);

// Puts the functions of hooks.cpp into a table that is a copy of the real one.
void hook(Plugin* plugin);

}  // namespace fleetscope::pjrt
