// The part of the PJRT C ABI that the shim touches, described by us: slot numbers and field offsets, nothing else.
//
// Facts, not code: the order of functions in the table and of fields in argument structs, as published for PJRT API
// major 0 and checked against plugins of minor 90 (128 slots) and 106 (136). The ABI only ever appends: to the table,
// and to a struct, whose first word is its size. So the shim reads a field only where the size given covers it.
#pragma once

#include <cstddef>
#include <cstdint>

// Argument structs share heads by inheritance; offsetof of such a type is right on every compiler we build with.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"

namespace fleetscope::pjrt {

struct Error;
struct Event;
struct Client;
struct Device;
struct Description;
struct Executable;
struct LoadedExecutable;
struct Buffer;
struct TransferManager;

struct Extension {
  size_t struct_size;
  int type;
  Extension* next;
};
constexpr int kProfilerExtension = 1;

struct Version {
  size_t struct_size;
  Extension* extensions;
  int major;
  int minor;
};

using Function = Error* (*)(void*);

struct Table {
  size_t struct_size;
  Extension* extensions;
  Version version;
  Function slots[1];  // (struct_size - 40) / 8 of them
};
constexpr size_t kTableHead = offsetof(Table, slots);
static_assert(kTableHead == 40);

enum Slot : uint32_t {
  kErrorDestroy = 0,
  kErrorMessage = 1,
  kPluginAttributes = 4,
  kEventDestroy = 5,
  kEventOnReady = 9,
  kClientCreate = 10,
  kClientDestroy = 11,
  kClientPlatformName = 12,
  kClientProcessIndex = 13,
  kClientPlatformVersion = 14,
  kClientAddressableDevices = 16,
  kClientCompile = 20,
  kBufferFromHost = 22,
  kDescriptionId = 23,
  kDescriptionAttributes = 25,
  kDescriptionKind = 26,
  kDeviceDescription = 29,
  kDeviceLocalHardwareId = 31,
  kDeviceMemoryStats = 34,
  kExecutableDestroy = 40,
  kExecutableName = 41,
  kExecutableOptimizedProgram = 48,
  kLoadedDestroy = 50,
  kLoadedGetExecutable = 51,
  kLoadedDevices = 52,
  kLoadedDelete = 53,
  kLoadedExecute = 55,
  kDeserializeAndLoad = 56,
  kBufferDevice = 65,
  kBufferToHost = 70,
  kBufferReadyEvent = 72,
  kBufferCopyRawToHost = 100,
  kManagerTransferData = 102,
  kManagerDevice = 105,
  kBufferCopyRawToHostFuture = 120,
};
// A plugin without these cannot be wrapped.
constexpr uint32_t kNeededSlots = kDeserializeAndLoad + 1;
// Tables by minor version, as published: a plugin that declares fewer slots than its version has lies about its size.
constexpr int kMinorOf128 = 90, kMinorOf136 = 106;
constexpr size_t kLargestTable = 64 << 10;

// Argument structs, as far as the shim reads them. Each begins with its size and an extension chain.
struct Head {
  size_t struct_size;
  Extension* extensions;
};

struct ErrorArgs : Head {
  Error* error;
};
struct MessageArgs : Head {
  const Error* error;
  const char* message;
  size_t message_size;
};
struct EventArgs : Head {
  Event* event;
};
struct OnReadyArgs : Head {
  Event* event;
  void (*callback)(Error* error, void* user);
  void* user;
};
struct NamedValue : Head {
  const char* name;
  size_t name_size;
  int type;  // 0 string, 1 int64, 2 int64 list, 3 float, 4 bool
  union {
    const char* text;
    int64_t whole;
    const int64_t* list;
  };
  size_t value_size;
};
static_assert(sizeof(NamedValue) == 56);
struct AttributesArgs : Head {  // of the plugin
  const NamedValue* attributes;
  size_t count;
};
struct ClientCreateArgs : Head {
  const NamedValue* options;
  size_t option_count;
  void* key_value[4];
  Client* client;  // 64
};
static_assert(offsetof(ClientCreateArgs, client) == 64);
struct ClientArgs : Head {
  Client* client;
};
struct ClientTextArgs : ClientArgs {
  const char* text;
  size_t size;
};
struct ClientNumberArgs : ClientArgs {
  int number;
};
struct ClientDevicesArgs : ClientArgs {
  Device* const* devices;
  size_t count;
};
struct Program : Head {
  char* code;
  size_t code_size;
  const char* format;
  size_t format_size;
};
static_assert(sizeof(Program) == 48);
struct CompileArgs : ClientArgs {
  const Program* program;
  const char* options;
  size_t options_size;
  LoadedExecutable* executable;  // 48
};
static_assert(sizeof(CompileArgs) == 56);
struct DeserializeArgs : ClientArgs {
  const char* bytes;
  size_t size;
  LoadedExecutable* executable;  // 40
};
struct DeviceArgs : Head {
  Device* device;
};
struct DeviceDescriptionArgs : DeviceArgs {
  Description* description;
};
struct DeviceNumberArgs : DeviceArgs {
  int number;
};
struct MemoryStatsArgs : DeviceArgs {
  int64_t bytes_in_use;
  struct {
    int64_t value;
    bool set;
  } peak, allocations, largest, limit, more[8];
};
static_assert(offsetof(MemoryStatsArgs, limit) == 80);
constexpr size_t kMemoryStatsSize = 88 + 1;  // through `limit`: all that every version has of what we read
struct DescriptionArgs : Head {
  Description* description;
};
struct DescriptionNumberArgs : DescriptionArgs {
  int number;
};
struct DescriptionTextArgs : DescriptionArgs {
  const char* text;
  size_t size;
};
struct DescriptionAttributesArgs : DescriptionArgs {
  size_t count;
  const NamedValue* attributes;
};
struct ExecutableArgs : Head {
  Executable* executable;
};
struct ExecutableTextArgs : ExecutableArgs {
  const char* text;
  size_t size;
};
struct OptimizedProgramArgs : ExecutableArgs {
  Program* program;
};
struct LoadedArgs : Head {
  LoadedExecutable* executable;
};
struct GetExecutableArgs : LoadedArgs {
  Executable* result;
};
struct LoadedDevicesArgs : LoadedArgs {
  Device* const* devices;
  size_t count;
};
struct ExecuteArgs : LoadedArgs {
  void* options;
  const void* argument_lists;
  size_t device_count;  // 40
  size_t argument_count;
  void* output_lists;
  Event** completions;  // 64
  Device* device;       // 72
};
static_assert(sizeof(ExecuteArgs) == 80 && offsetof(ExecuteArgs, completions) == 64);
struct BufferFromHostArgs : ClientArgs {
  const void* data;
  int type;
  const int64_t* dims;
  size_t dim_count;
  const int64_t* strides;
  size_t stride_count;
  int semantics;
  Device* device;  // 80
  void* memory;
  void* layout;
  Event* done;
  Buffer* buffer;  // 112
};
static_assert(sizeof(BufferFromHostArgs) == 120 && offsetof(BufferFromHostArgs, device) == 80);
struct BufferArgs : Head {
  Buffer* buffer;
};
struct BufferDeviceArgs : BufferArgs {
  Device* device;
};
struct ReadyEventArgs : BufferArgs {
  Event* event;
};
struct ToHostArgs : BufferArgs {
  void* layout;
  void* to;
  size_t size;
  Event* event;  // 48
};
static_assert(sizeof(ToHostArgs) == 56);
struct CopyRawArgs : BufferArgs {
  void* to;
  int64_t offset;
  int64_t size;
  Event* event;  // 48
};
struct CopyRawFutureArgs : BufferArgs {
  int64_t offset;
  int64_t size;
  Event* event;  // 40
};
struct TransferDataArgs : Head {
  TransferManager* manager;
  int index;
  const void* data;
  int64_t offset;
  int64_t size;
  bool last;
  Event* event;  // 64
};
static_assert(offsetof(TransferDataArgs, event) == 64);
struct ManagerDeviceArgs : Head {
  TransferManager* manager;
  Device* device;
};

// Bits of an element, by PJRT's number of its type; 0 unknown.
constexpr uint8_t kElementBits[] = {0,   8, 8, 16, 32, 64, 8, 16, 32, 64, 16, 32, 64, 16, 64,
                                    128, 8, 8, 8,  8,  8,  4, 4,  0,  2,  2,  8,  8,  8,  4};

// A profiler extension, and the table behind it.
struct Profiler;
struct ProfilerError;
struct ProfilerHead {
  size_t struct_size;
};
struct ProfilerMessageArgs : ProfilerHead {
  void* priv;
  const ProfilerError* error;
  const char* message;
  size_t message_size;
};
struct ProfilerCodeArgs : ProfilerHead {
  void* priv;
  const ProfilerError* error;
  int code;
};
struct ProfilerCreateArgs : ProfilerHead {
  const char* options;
  size_t options_size;
  Profiler* profiler;
};
struct ProfilerArgs : ProfilerHead {
  Profiler* profiler;
};
struct ProfilerCollectArgs : ProfilerArgs {
  uint8_t* buffer;
  size_t size;
};
struct ProfilerTable {
  size_t struct_size;
  void* priv;
  void (*error_destroy)(void*);
  void (*error_message)(ProfilerMessageArgs*);
  ProfilerError* (*error_code)(ProfilerCodeArgs*);
  ProfilerError* (*create)(ProfilerCreateArgs*);
  ProfilerError* (*destroy)(ProfilerArgs*);
  ProfilerError* (*start)(ProfilerArgs*);
  ProfilerError* (*stop)(ProfilerArgs*);
  ProfilerError* (*collect)(ProfilerCollectArgs*);
};
struct ProfilerExtension {
  Extension base;
  ProfilerTable* table;
  int64_t context;
};
static_assert(sizeof(ProfilerExtension) == 40);

// `field` of `args` lies within the size that its maker stated.
#define FLEETSCOPE_HAS(args, field) \
  ((args)->struct_size >=           \
   size_t(reinterpret_cast<const char*>(&(args)->field + 1) - reinterpret_cast<const char*>(args)))

}  // namespace fleetscope::pjrt

#pragma GCC diagnostic pop
