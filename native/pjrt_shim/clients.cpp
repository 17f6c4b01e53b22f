#include "clients.h"

#include <cstdio>

#include "keeper.h"
#include "programs.h"
#include "state.h"

namespace fleetscope::pjrt {
namespace {

constexpr uint32_t kPlaces = 8192;  // twice the ordinals there are: a probe ends
struct Place {
  std::atomic<const Device*> device;
  std::atomic<uint16_t> ordinal;
};
Place g_places[kPlaces];

uint32_t place_of(const Device* device) {
  return uint32_t(reinterpret_cast<uintptr_t>(device) * 0x9e3779b97f4a7c15u >> 51);
}

// Under g_lock. A pointer that comes again, in a later client, gets its new number.
void place(const Device* device, uint16_t ordinal) {
  uint32_t at = place_of(device);
  for (uint32_t i = 0; i < kPlaces; ++i, at = (at + 1) % kPlaces) {
    const Device* there = g_places[at].device.load(std::memory_order_relaxed);
    if (there && there != device) continue;
    g_places[at].ordinal.store(ordinal, std::memory_order_relaxed);
    g_places[at].device.store(device, std::memory_order_release);
    return;
  }
}

void append_json(std::string* json, const char* key, const std::string& text) {
  *json += json->size() > 1 ? ",\"" : "\"";
  *json += key;
  *json += "\":\"";
  for (char c : text) {
    if (c == '"' || c == '\\') *json += '\\';
    if (uint8_t(c) >= 0x20) *json += c;
  }
  *json += '"';
}

void append_json(std::string* json, const char* key, int64_t number) {
  *json += json->size() > 1 ? ",\"" : "\"";
  *json += key;
  *json += "\":" + std::to_string(number);
}

std::string client_text(const Plugin* plugin, Slot slot, Client* client) {
  ClientTextArgs args = {};
  args.struct_size = sizeof args;
  args.client = client;
  if (!plugin->ask(slot, &args) || !args.text) return "";
  return std::string(args.text, args.size < 200 ? args.size : 200);  // the whole must fit a name of 1 024 bytes
}

DeviceSeen describe(const Plugin* plugin, Client* client, Device* device, const std::string& platform,
                    const std::string& version) {
  DeviceSeen seen = {plugin, client, device, -1, 0, kUnknownDevice, platform, "", true, 0};
  std::string& json = seen.json;
  json = "{";
  append_json(&json, "platform", platform);
  DeviceDescriptionArgs get = {};
  get.struct_size = sizeof get;
  get.device = device;
  if (plugin->ask(kDeviceDescription, &get) && get.description) {
    DescriptionTextArgs kind = {};
    kind.struct_size = sizeof kind;
    kind.description = get.description;
    if (plugin->ask(kDescriptionKind, &kind) && kind.text) {
      append_json(&json, "kind", std::string(kind.text, kind.size < 100 ? kind.size : 100));
    }
    DescriptionNumberArgs number = {};
    number.struct_size = sizeof number;
    number.description = get.description;
    if (plugin->ask(kDescriptionId, &number)) append_json(&json, "id", seen.id = number.number);
    DescriptionAttributesArgs attributes = {};
    attributes.struct_size = sizeof attributes;
    attributes.description = get.description;
    if (plugin->ask(kDescriptionAttributes, &attributes)) {
      for (size_t i = 0; i < attributes.count && i < 64; ++i) {
        const NamedValue& value = attributes.attributes[i];
        std::string name(value.name, value.name_size);
        if (name == "coords" && value.type == 2 && value.value_size <= 8) {
          json += ",\"coords\":[";
          for (size_t k = 0; k < value.value_size; ++k) json += (k ? "," : "") + std::to_string(value.list[k]);
          json += "]";
        } else if ((name == "core_on_chip" || name == "slice_index") && value.type == 1) {
          append_json(&json, name.c_str(), value.whole);
        }
      }
    }
  }
  DeviceNumberArgs local = {};
  local.struct_size = sizeof local;
  local.device = device;
  if (plugin->ask(kDeviceLocalHardwareId, &local)) append_json(&json, "local_hardware_id", local.number);
  ClientNumberArgs process = {};
  process.struct_size = sizeof process;
  process.client = client;
  if (plugin->ask(kClientProcessIndex, &process)) append_json(&json, "process_index", seen.process = process.number);
  append_json(&json, "plugin", plugin->name);
  append_json(&json, "plugin_version", version);
  return seen;
}

void write_device(uint32_t epoch, DeviceSeen& seen) {
  seen.told = epoch;
  write(epoch, kDevice, g_recorder->now(), 0, g_recorder->name(epoch, seen.json.data(), seen.json.size()),
        seen.ordinal);
}

}  // namespace

std::vector<DeviceSeen>& devices_seen() {
  static auto* all = new std::vector<DeviceSeen>;
  return *all;
}

uint16_t ordinal_of(const Device* device) {
  uint32_t at = place_of(device);
  for (uint32_t i = 0; device && i < kPlaces; ++i, at = (at + 1) % kPlaces) {
    const Device* there = g_places[at].device.load(std::memory_order_acquire);
    if (there == device) return g_places[at].ordinal.load(std::memory_order_relaxed);
    if (!there) break;
  }
  return kUnknownDevice;
}

void client_created(const Plugin* plugin, Client* client) {
  g_clients_made.fetch_add(1);
  ClientDevicesArgs args = {};
  args.struct_size = sizeof args;
  args.client = client;
  if (!plugin->ask(kClientAddressableDevices, &args)) return;
  std::string platform = client_text(plugin, kClientPlatformName, client);
  std::string version = client_text(plugin, kClientPlatformVersion, client);
  std::vector<DeviceSeen> found;
  for (size_t i = 0; i < args.count && i < kUnknownDevice; ++i) {
    found.push_back(describe(plugin, client, args.devices[i], platform, version));
  }
  uint32_t epoch = recording();
  if (!epoch) keeper_owes();
  Hold hold;
  for (DeviceSeen& seen : found) {
    // The same device in a client made anew keeps its number.
    DeviceSeen* known = nullptr;
    for (DeviceSeen& other : devices_seen()) {
      if (other.plugin == plugin && other.id == seen.id && other.process == seen.process && !other.client) {
        known = &other;
      }
    }
    size_t count = devices_seen().size();
    seen.ordinal = known ? known->ordinal : count < kUnknownDevice ? uint16_t(count) : kUnknownDevice;
    seen.json += ",\"ordinal\":" + std::to_string(seen.ordinal) + "}";
    place(seen.device, seen.ordinal);
    if (epoch) write_device(epoch, seen);
    if (known) {
      *known = std::move(seen);
    } else {
      devices_seen().push_back(std::move(seen));
    }
  }
}

void client_goes(const Plugin* plugin, Client* client) {
  {
    Hold hold;
    for (DeviceSeen& seen : devices_seen()) {
      if (seen.plugin == plugin && seen.client == client) seen.client = nullptr;
    }
  }
  programs_of_client_go(plugin, client);
  keeper_lets_go(client);
}

void announce_devices(uint32_t epoch) {
  for (DeviceSeen& seen : devices_seen()) {
    if (seen.client && seen.told != epoch) write_device(epoch, seen);
  }
}

}  // namespace fleetscope::pjrt
