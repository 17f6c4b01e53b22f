// Clients and their devices: numbers of devices in this process, and what is said about them once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plugin.h"

namespace fleetscope::pjrt {

constexpr uint16_t kUnknownDevice = 4095;  // 12 bits; a device no client of this process can address

struct DeviceSeen {
  const Plugin* plugin;
  Client* client;  // nullptr when it is gone
  Device* device;
  int id, process;
  uint16_t ordinal;
  std::string platform;
  std::string json;
  bool memory_told = true;  // MemoryStats has not failed yet
  uint32_t told = 0;        // segment that has its DEVICE
};

void client_created(const Plugin* plugin, Client* client);
// Before the plugin destroys it: nothing of ours may still be inside the plugin on its behalf.
void client_goes(const Plugin* plugin, Client* client);

// Lock-free: asked at every transfer.
uint16_t ordinal_of(const Device* device);

// Under g_lock.
void announce_devices(uint32_t epoch);
std::vector<DeviceSeen>& devices_seen();

}  // namespace fleetscope::pjrt
