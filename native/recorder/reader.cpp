#include "reader.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace fleetscope::recorder {
namespace {

struct Raw {
  uint64_t start, name_dur, arg, seq_kind;
  uint8_t kind() const { return uint8_t(seq_kind >> 10 & 0x3f); }
  uint64_t seq() const { return seq_kind >> 16; }
};
static_assert(sizeof(Raw) == sizeof(Record));

// Slots are over-aligned for the writer's cache lines; read copies are not.
constexpr size_t kSlotBytes = sizeof(Slot) * kSlots;

// A drain that took fewer records than one event has would leave the rest of it without its event.
constexpr uint64_t kEventRecords = kExtras + 2;

}  // namespace

void Drained::clear() {
  for (auto* column : {&start, &dur, &arg, &seq, &flow, &arg_value, &link_id}) column->clear();
  for (auto* column : {&name, &line, &weight, &arg_row, &arg_key, &link_row, &link_type}) column->clear();
  for (auto* column : {&kind, &flags, &arg_kind, &link_kind}) column->clear();
  lost = 0;
  more = false;
}

void Drained::resize(size_t events) {
  for (auto* column : {&start, &dur, &arg, &seq, &flow}) column->resize(events);
  for (auto* column : {&name, &line}) column->resize(events);
  weight.resize(events, 1);
  for (auto* column : {&kind, &flags}) column->resize(events);
}

SegmentReader::~SegmentReader() {
  if (fd_ >= 0) close(fd_);
}

bool SegmentReader::read_at(void* into, size_t bytes, uint64_t offset) const {
  char* at = static_cast<char*>(into);
  while (bytes) {
    ssize_t got = pread(fd_, at, bytes, off_t(offset));
    if (got <= 0) return false;
    at += got;
    offset += uint64_t(got);
    bytes -= size_t(got);
  }
  return true;
}

const char* SegmentReader::open(const char* path) {
  fd_ = ::open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  writable_ = fd_ >= 0;
  if (fd_ < 0) fd_ = ::open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  return fd_ < 0 ? "cannot be opened" : check();
}

const char* SegmentReader::adopt(int descriptor) {
  constexpr int kSize = F_SEAL_SHRINK | F_SEAL_GROW;
  int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0) return "is no shared memory";
  // A named file of a tmpfs takes no seals, and says that as F_SEAL_SEAL alone.
  if ((seals & kSize) != kSize && seals != F_SEAL_SEAL) return "is not sealed against changes of its size";
  fd_ = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (fd_ < 0) return "cannot be opened";
  writable_ = (fcntl(fd_, F_GETFL) & O_ACCMODE) == O_RDWR;
  return check();
}

const char* SegmentReader::check() {
  struct stat status;
  if (fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) return "is no regular file";
  file_bytes_ = uint64_t(status.st_size);
  if (file_bytes_ < kRingsOffset || !read_at(head_, sizeof head_, 0)) return "is too short for a recorder segment";
  const Header& head = header();
  if (memcmp(head.magic, kMagic, sizeof kMagic) != 0) return "has no recorder segment's magic";
  if (head.abi_version != kAbiVersion) return "has another ABI version";
  if (head.record_bytes != sizeof(Record) || head.slots != kSlots || head.names != kNames ||
      head.arena_bytes != kArenaBytes || head.slots_offset != kSlotsOffset || head.marks_offset != kMarksOffset ||
      head.names_offset != kNamesOffset || head.arena_offset != kArenaOffset || head.rings_offset != kRingsOffset) {
    return "has a layout that is not its ABI version's";
  }
  if (head.period_num == 0 || head.period_den == 0 ||
      (head.clock != ClockKind::kTsc && head.clock != ClockKind::kMonotonicRaw)) {
    return "names no clock";
  }
  slots_.resize(kSlotBytes);
  cursors_.assign(kSlots, {});
  if (!read_at(cursors_.data(), kSlots * sizeof(Cursor), kMarksOffset)) return "is too short for a recorder segment";
  return refresh() ? nullptr : "shrank while it was opened";
}

bool SegmentReader::refresh() {
  return read_at(head_, sizeof head_, 0) && read_at(slots_.data(), kSlotBytes, kSlotsOffset);
}

bool SegmentReader::drain(uint64_t max_records, int64_t until, Drained* out) {
  if (!refresh()) return false;
  uint64_t budget = std::max<uint64_t>(max_records, kEventRecords);
  uint32_t used = std::min(header().slots_used.load(std::memory_order_acquire), kSlots);
  for (uint32_t number = 0; number < used; ++number) {
    if (!drain_slot(number, until, &budget, out)) return false;
  }
  return true;
}

bool SegmentReader::drain_slot(uint32_t number, int64_t until, uint64_t* budget, Drained* out) {
  const Slot* head = slot(number);
  const uint64_t commit = head->commit.load(std::memory_order_relaxed);
  const uint64_t capacity = head->capacity.load(std::memory_order_relaxed);
  const uint64_t offset = head->offset.load(std::memory_order_relaxed);
  if (capacity == 0 || (capacity & (capacity - 1)) || capacity > kFirstRing || offset < kRingsOffset ||
      offset > file_bytes_ || offset + capacity * sizeof(Record) > file_bytes_) {
    return true;  // nothing this writer could have made
  }
  Cursor& cursor = cursors_[number];
  if (commit < cursor.index) return true;
  uint64_t first = std::max(cursor.index, commit > capacity ? commit - capacity : 0);
  uint64_t end = commit;
  if (end - first > *budget) {
    if (*budget < kEventRecords) return out->more = true;  // too little for an event with all that follows it
    end = first + *budget;
    out->more = true;
  }
  if (end == first) return true;

  size_t count = size_t(end - first);
  records_.resize(count * sizeof(Raw));
  uint64_t mask = capacity - 1;
  size_t head_run = size_t(std::min<uint64_t>(count, capacity - (first & mask)));
  if (!read_at(records_.data(), head_run * sizeof(Raw), offset + (first & mask) * sizeof(Raw))) return false;
  if (head_run < count &&
      !read_at(records_.data() + head_run * sizeof(Raw), (count - head_run) * sizeof(Raw), offset)) {
    return false;
  }
  // What the writer has begun to overwrite since: everything below reserve - capacity.
  std::atomic_thread_fence(std::memory_order_acquire);
  uint64_t reserve = 0;
  if (!read_at(&reserve, sizeof reserve, kSlotsOffset + number * sizeof(Slot) + offsetof(Slot, reserve))) return false;
  uint64_t valid = reserve > capacity ? reserve - capacity : 0;

  auto raw = [&](uint64_t index) {
    Raw record;
    memcpy(&record, records_.data() + (index - first) * sizeof(Raw), sizeof record);
    return record;
  };
  if (end < commit) {
    // Cut at the limit: an event whose arguments lie beyond it waits for the next drain.
    uint64_t whole = end;
    while (whole > first + 1 && is_extra(raw(whole - 1).kind())) --whole;
    if (whole > first + 1) end = whole - 1;
  }
  const bool roomy = commit - first < capacity / 2;
  // Room for all, and pointers of our own: a vector's end is stored and loaded again around each byte that is written
  // (a byte may be anything, the vector too), which made up half of the 37 ns a record.
  const size_t before = out->start.size();
  out->resize(before + count);
  size_t rows = before;
  int64_t *const starts = out->start.data(), *const durs = out->dur.data(), *const args = out->arg.data();
  int64_t *const seqs = out->seq.data(), *const flows = out->flow.data();
  int32_t *const names = out->name.data(), *const lines = out->line.data(), *const weights = out->weight.data();
  uint8_t *const kinds = out->kind.data(), *const flags = out->flags.data();
  int32_t row = -1;
  for (uint64_t index = std::max(first, valid); index < end; ++index) {
    Raw record = raw(index);
    uint8_t kind = record.kind();
    if (is_extra(kind)) {
      if (row < 0) continue;  // its event was overwritten
      if (kind == kLongDuration) {
        durs[row] = record.arg <= uint64_t(INT64_MAX) ? int64_t(record.arg) : 0;  // no writer measures that
      } else if (kind == kFlow) {
        flows[row] = int64_t(record.arg);
      } else if (kind == kWeight) {
        bool is_power = record.arg && record.arg <= kWeightLimit && (record.arg & (record.arg - 1)) == 0;
        weights[row] = is_power ? int32_t(record.arg) : 1;
      } else if (is_link(kind)) {
        out->link_row.push_back(row);
        out->link_kind.push_back(kind);
        out->link_type.push_back(int32_t(record.name_dur >> 40));
        out->link_id.push_back(int64_t(record.arg));
      } else {
        out->arg_row.push_back(row);
        out->arg_key.push_back(int32_t(record.name_dur >> 40));
        out->arg_kind.push_back(kind);
        out->arg_value.push_back(int64_t(record.arg));
      }
      continue;
    }
    if (roomy) {
      uint64_t dur = record.name_dur & kDurMask;
      if (dur == kDurMask && index + 1 < end) dur = raw(index + 1).arg;
      if (int64_t(record.start + dur) > until) {
        end = index;
        break;
      }
    }
    if (record.seq() < cursor.seq) continue;  // a file somebody else wrote into
    out->lost += record.seq() - cursor.seq;
    cursor.seq = record.seq() + 1;
    row = int32_t(rows);
    starts[rows] = int64_t(record.start);
    durs[rows] = int64_t(record.name_dur & kDurMask);
    args[rows] = int64_t(record.arg);
    seqs[rows] = int64_t(record.seq());
    names[rows] = int32_t(record.name_dur >> 40);
    lines[rows] = int32_t(number << 8 | (record.seq_kind & 0xff));
    kinds[rows] = kind;
    flags[rows] = uint8_t(record.seq_kind >> 8 & 3);
    ++rows;
  }
  out->resize(rows);
  *budget -= end - first;
  cursor.index = end;
  return true;
}

bool SegmentReader::names(uint32_t from, std::vector<std::string>* out) {
  if (!read_at(head_, sizeof head_, 0)) return false;
  uint32_t used = std::min(header().names_used.load(std::memory_order_acquire), kNames);
  if (from >= used) return true;
  std::vector<char> entries((used - from) * sizeof(NameEntry));
  std::vector<char> arena(kArenaBytes);
  if (!read_at(entries.data(), entries.size(), kNamesOffset + from * sizeof(NameEntry)) ||
      !read_at(arena.data(), arena.size(), kArenaOffset)) {
    return false;
  }
  for (uint32_t i = 0; i < used - from; ++i) {
    uint32_t entry[2];
    memcpy(entry, entries.data() + i * sizeof(NameEntry), sizeof entry);
    // And no longer than a writer makes them: 8 192 that claim the whole arena each would be 3.7 GB.
    bool inside = entry[1] <= kNameBytes && entry[0] <= kArenaBytes - entry[1];
    out->emplace_back(inside ? std::string(arena.data() + entry[0], entry[1]) : std::string());
  }
  return true;
}

std::vector<ThreadInfo> SegmentReader::threads() const {
  std::vector<ThreadInfo> all;
  uint32_t used = std::min(header().slots_used.load(std::memory_order_relaxed), kSlots);
  for (uint32_t number = 0; number < used; ++number) {
    const Slot* head = slot(number);
    all.push_back({int32_t(number << 8 | (head->generation.load(std::memory_order_relaxed) & 0xff)),
                   head->tid.load(std::memory_order_relaxed),
                   int32_t(head->thread_name.load(std::memory_order_relaxed)),
                   head->state.load(std::memory_order_relaxed) == kRetired});
  }
  return all;
}

bool SegmentReader::open_since(std::vector<OpenSince>* out) {
  if (!refresh()) return false;
  uint32_t used = std::min(header().slots_used.load(std::memory_order_acquire), kSlots);
  for (uint32_t number = 0; number < used; ++number) {
    const Slot* head = slot(number);
    uint32_t depth = head->depth.load(std::memory_order_relaxed);
    if (head->state.load(std::memory_order_relaxed) != kOwned || depth == 0 || depth > kOpenDepth) continue;
    uint64_t start = 0;
    if (!read_at(&start, sizeof start, kOpenOffset + uint64_t{number} * kOpenDepth * sizeof(OpenRegion))) return false;
    out->push_back(
        {int32_t(number << 8 | (head->generation.load(std::memory_order_relaxed) & 0xff)), int64_t(start), depth});
  }
  return true;
}

bool SegmentReader::open_now(std::vector<OpenNow>* out) {
  constexpr int kTries = 4;  // a thread that begins and ends thousands of regions a millisecond is not hanging
  if (!refresh()) return false;
  uint32_t used = std::min(header().slots_used.load(std::memory_order_acquire), kSlots);
  for (uint32_t number = 0; number < used; ++number) {
    alignas(Slot) char before[sizeof(Slot)], after[sizeof(Slot)];
    uint64_t regions[kOpenDepth][2];
    auto field = [](const char* slot, size_t offset, auto value) {
      memcpy(&value, slot + offset, sizeof value);
      return value;
    };
    if (!read_at(before, sizeof before, kSlotsOffset + number * sizeof(Slot))) return false;
    uint32_t depth = 0;
    for (int i = 0; i < kTries; ++i) {
      depth = field(before, offsetof(Slot, depth), uint32_t{});
      if (field(before, offsetof(Slot, state), uint32_t{}) != kOwned || depth > kOpenDepth) depth = 0;
      if (depth == 0) break;
      uint64_t offset = kOpenOffset + uint64_t{number} * kOpenDepth * sizeof(OpenRegion);
      if (!read_at(regions, depth * sizeof(OpenRegion), offset) ||
          !read_at(after, sizeof after, kSlotsOffset + number * sizeof(Slot))) {
        return false;
      }
      // Nothing ended and nothing began between the two looks: what was read belongs together.
      if (memcmp(before, after, sizeof before) == 0) break;
      depth = std::min(depth, field(after, offsetof(Slot, depth), uint32_t{}));
      memcpy(before, after, sizeof before);
    }
    for (uint32_t i = 0; i < depth; ++i) {
      out->push_back({int32_t(number << 8 | (field(before, offsetof(Slot, generation), uint32_t{}) & 0xff)),
                      field(before, offsetof(Slot, tid), uint64_t{}),
                      int32_t(field(before, offsetof(Slot, thread_name), uint32_t{})), i, int64_t(regions[i][0]),
                      uint8_t(regions[i][1] >> 32), int32_t(uint32_t(regions[i][1]))});
    }
  }
  return true;
}

uint64_t SegmentReader::events() const {
  uint64_t sum = 0;
  uint32_t used = std::min(header().slots_used.load(std::memory_order_relaxed), kSlots);
  for (uint32_t number = 0; number < used; ++number) sum += slot(number)->events.load(std::memory_order_relaxed);
  return sum;
}

std::string SegmentReader::cursor() const {
  return std::string(reinterpret_cast<const char*>(cursors_.data()), cursors_.size() * sizeof(Cursor));
}

bool SegmentReader::seek(const char* bytes, size_t count) {
  if (count != cursors_.size() * sizeof(Cursor)) return false;
  memcpy(cursors_.data(), bytes, count);
  return true;
}

bool SegmentReader::commit() {
  size_t bytes = cursors_.size() * sizeof(Cursor);
  return writable_ && pwrite(fd_, cursors_.data(), bytes, off_t(kMarksOffset)) == ssize_t(bytes);
}

bool SegmentReader::held() const {
  struct flock whole = {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return fcntl(fd_, F_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
}

}  // namespace fleetscope::recorder
