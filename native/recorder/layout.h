// The bytes of a recorder segment. docs/format/recorder.md says the same in words; change both, and kAbiVersion,
// together. A new kind or flag needs no new version: a reader that does not know it passes it on or sees 0.
//
// One file a process, in a tmpfs or without a name (memfd), written by one process and read by another. Offsets only,
// no pointers, little-endian.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fleetscope::recorder {

constexpr char kMagic[8] = {'F', 'S', 'R', 'I', 'N', 'G', '0', '1'};
constexpr uint32_t kAbiVersion = 1;

constexpr uint32_t kSlots = 64;
constexpr uint32_t kNames = 8192;
constexpr uint32_t kArenaBytes = 448u << 10;
constexpr uint32_t kNameBytes = 1024;  // longer names are cut: a megabyte of name would empty the arena at once
constexpr uint32_t kOpenDepth = 64;
constexpr uint32_t kArgs = 8;
constexpr uint32_t kLinks = 64;  // given to a region at its begin, and again while it is open; a batcher has many
constexpr uint32_t kExtras = kArgs + 2 * kLinks + 2;  // records that may follow one, with a long duration and a weight

// Records of a ring: the first thread that records is almost always the training loop; loaders and servers need less.
constexpr uint32_t kFirstRing = 32768;
constexpr uint32_t kOtherRing = 8192;

enum class ClockKind : uint32_t { kTsc = 1, kMonotonicRaw = 2 };

// Kinds below 16 are schema.vocabulary.Kind; above are ours.
enum RecordKind : uint8_t {
  kStep = 1,
  kHost = 8,
  kDataWait = 9,
  kCompile = 10,
  kCheckpoint = 11,
  kDispatch = 12,
  // Of the PJRT shim (native/pjrt_shim), numbers of their own: the agent makes spans of them.
  kLaunch = 16,
  kDone = 17,
  kH2D = 18,
  kD2H = 19,
  kDevice = 20,
  kLoad = 21,
  kUnload = 22,
  kCounterInt = 32,
  kCounterFloat = 33,
  // Records that belong to the span record before them: they carry its seq and are no events of their own.
  kArgInt = 40,
  kArgFloat = 41,
  kArgName = 42,
  kLongDuration = 43,
  kWeight = 44,  // arg: 2^k, the span is one of so many that passed its site
  kFlow = 45,    // arg: what links the span to others of its thread, process or fleet
  // Name: the context type, arg: the context id. The span made what spans that consume the same pair go on with.
  kProducer = 46,
  kConsumer = 47,
};
constexpr bool is_extra(uint8_t kind) { return kind >= kArgInt && kind <= kConsumer; }
constexpr bool is_link(uint8_t kind) { return kind == kProducer || kind == kConsumer; }
constexpr uint64_t kWeightLimit = 1u << 20;

// 32 bytes: two to a cache line, none across. Fields are atomics because the reader may look while they change; relaxed
// stores of a register cost nothing extra on x86 and ARM.
struct Record {
  std::atomic<uint64_t> start;  // counter ticks
  std::atomic<uint64_t>
      name_dur;               // name << 40 | duration in ticks (2^40 - 1: see the kLongDuration record that follows)
  std::atomic<uint64_t> arg;  // step of a kStep, value of a counter or argument; else the step it ran in + 1, 0: none
  // seq << 16 | kind << 10 | flags << 8 | generation of the ring's owner; seq counts this ring's events from 0
  std::atomic<uint64_t> seq_kind;
};
static_assert(sizeof(Record) == 32);

// Flags: of kLaunch, kDone, kH2D, kD2H, kLoad: it failed.
constexpr uint32_t kFailed = 1;

constexpr uint64_t kDurMask = (uint64_t{1} << 40) - 1;
constexpr uint32_t kNameLimit = 1u << 24;

enum SlotState : uint32_t { kFree = 0, kOwned = 1, kRetired = 2 };

// One ring and the thread that owns it. The owner alone writes; a retired slot may be taken over by a new thread of the
// same process, whose records continue the same numbers under the next generation.
struct alignas(128) Slot {
  std::atomic<uint32_t> state;
  std::atomic<uint32_t> generation;
  std::atomic<uint64_t> tid;
  std::atomic<uint32_t> thread_name;
  std::atomic<uint32_t> depth;     // open regions of the owner, in `open`
  std::atomic<uint64_t> offset;    // of the ring in the file
  std::atomic<uint64_t> capacity;  // records, a power of two
  std::atomic<uint64_t> reserve;   // records begun: written before the payload
  std::atomic<uint64_t> commit;    // records whole: written after it
  std::atomic<uint64_t> events;    // events committed: the next seq
};
static_assert(sizeof(Slot) == 128);

struct OpenRegion {
  std::atomic<uint64_t> start;
  std::atomic<uint64_t> name;
};

struct NameEntry {
  std::atomic<uint32_t> offset;  // in the arena
  std::atomic<uint32_t> bytes;
};

// Where the reader of an earlier life stopped, written by the agent (Segment.commit).
struct Mark {
  std::atomic<uint64_t> index;
  std::atomic<uint64_t> seq;
};

struct Anchor {
  int64_t raw_before_ns;
  int64_t counter;
  int64_t realtime_ns;
  int64_t raw_after_ns;
};

struct alignas(4096) Header {
  char magic[8];
  uint32_t abi_version;
  uint32_t record_bytes;
  uint64_t file_bytes;
  uint32_t slots;
  uint32_t names;
  uint32_t arena_bytes;
  uint32_t open_depth;
  uint64_t slots_offset;
  uint64_t marks_offset;
  uint64_t open_offset;
  uint64_t names_offset;
  uint64_t arena_offset;
  uint64_t rings_offset;
  uint32_t pid;
  ClockKind clock;
  uint64_t start_ticks;
  uint64_t period_num;  // nominal ns a tick = num / den, the same for every process of this boot
  uint64_t period_den;
  char boot_id[40];
  Anchor anchor;
  std::atomic<uint32_t> closed;      // 1: the process said it is done
  std::atomic<uint32_t> slots_used;  // slots ever given out
  std::atomic<uint32_t> names_used;  // entries published
  std::atomic<uint32_t> arena_used;
  std::atomic<uint64_t> no_ring;     // events of threads that got no ring
  std::atomic<uint64_t> name_limit;  // names that found the table full and became name 0
  std::atomic<uint64_t> abandoned;   // regions that began and whose end was never seen
  std::atomic<int64_t> step;         // newest step begun, -1 none
  std::atomic<uint64_t> step_start;  // counter at its begin
  uint64_t pid_namespace;            // inode of the namespace `pid` is of; 0: not known
};
static_assert(sizeof(Header) == 4096);

constexpr uint64_t kMarksOffset = 4096;
constexpr uint64_t kSlotsOffset = 8192;
constexpr uint64_t kOpenOffset = kSlotsOffset + kSlots * sizeof(Slot);
constexpr uint64_t kNamesOffset = kOpenOffset + uint64_t{kSlots} * kOpenDepth * sizeof(OpenRegion);
constexpr uint64_t kArenaOffset = kNamesOffset + kNames * sizeof(NameEntry);
constexpr uint64_t kRingsOffset = (kArenaOffset + kArenaBytes + 4095) & ~uint64_t{4095};
constexpr uint64_t kFileBytes = kRingsOffset + (kFirstRing + uint64_t{kSlots - 1} * kOtherRing) * sizeof(Record);

}  // namespace fleetscope::recorder
