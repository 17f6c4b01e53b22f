// The reading side: another process, or a later one, takes out what the rings hold and says exactly what they lost.
//
// By pread, never by a mapping: a writer that truncates its file gives a short read, not a SIGBUS in the node agent.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layout.h"

namespace fleetscope::recorder {

// What a drain took out, by column. An event's place in the vectors is its row.
struct Drained {
  std::vector<int64_t> start;
  std::vector<int64_t> dur;
  std::vector<int64_t> arg;
  std::vector<int64_t> seq;  // of its ring
  std::vector<int32_t> name;
  std::vector<int32_t> line;  // ring << 8 | generation of its owner, modulo 256
  std::vector<uint8_t> kind;
  std::vector<uint8_t> flags;
  std::vector<int64_t> flow;    // 0: none
  std::vector<int32_t> weight;  // 2^k: one in so many left a record
  // Arguments: of event `arg_row`, in order.
  std::vector<int32_t> arg_row;
  std::vector<int32_t> arg_key;
  std::vector<uint8_t> arg_kind;
  std::vector<int64_t> arg_value;
  // Links: of event `link_row`, in order.
  std::vector<int32_t> link_row;
  std::vector<uint8_t> link_kind;  // kProducer, kConsumer
  std::vector<int32_t> link_type;
  std::vector<int64_t> link_id;
  uint64_t lost = 0;  // events between those taken before and now that were overwritten
  bool more = false;  // the limit was reached

  void clear();
  void resize(size_t events);
};

struct ThreadInfo {
  int32_t line;
  uint64_t tid;
  int32_t name;
  bool retired;
};

// A region a thread is in now, outermost first.
struct OpenNow {
  int32_t line;
  uint64_t tid;
  int32_t thread_name;
  uint32_t depth;
  int64_t start;
  uint8_t kind;
  int32_t name;
};

// The outermost region a thread is in now.
struct OpenSince {
  int32_t line;
  int64_t start;
  uint32_t depth;
};

class SegmentReader {
 public:
  SegmentReader() = default;
  ~SegmentReader();
  SegmentReader(const SegmentReader&) = delete;
  SegmentReader& operator=(const SegmentReader&) = delete;

  // nullptr, or what is wrong with the file. Reading goes on where the last commit() of any reader stopped.
  const char* open(const char* path);
  // As open(), of a descriptor somebody sent; keeps its own copy. Shared memory only: reading a file of a user's own
  // filesystem may never return.
  const char* adopt(int descriptor);
  const Header& header() const { return *reinterpret_cast<const Header*>(head_); }
  bool refresh();  // re-reads header and slots; false when the file shrank

  // Events that end later than `until` stay where they are, unless their ring is half full.
  bool drain(uint64_t max_records, int64_t until, Drained* out);
  bool names(uint32_t from, std::vector<std::string>* out);
  std::vector<ThreadInfo> threads() const;
  bool open_since(std::vector<OpenSince>* out);
  bool open_now(std::vector<OpenNow>* out);
  uint64_t events() const;  // committed by all rings, lost or not
  std::string cursor() const;
  bool seek(const char* bytes, size_t count);
  bool commit();
  // The process that made the segment holds its lock, as until it ends.
  bool held() const;

 private:
  const char* check();
  const Slot* slot(uint32_t i) const { return reinterpret_cast<const Slot*>(slots_.data()) + i; }
  bool drain_slot(uint32_t number, int64_t until, uint64_t* budget, Drained* out);
  bool read_at(void* into, size_t bytes, uint64_t offset) const;

  struct Cursor {
    uint64_t index;
    uint64_t seq;
  };
  int fd_ = -1;
  bool writable_ = false;
  uint64_t file_bytes_ = 0;
  alignas(Header) char head_[sizeof(Header)] = {};
  std::vector<char> slots_;
  std::vector<Cursor> cursors_;
  std::vector<char> records_;
};

}  // namespace fleetscope::recorder
