// Arrow columns of one message. All memory is charged to one Budget before it is taken, so a hostile message cannot
// grow them without bound.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory.h"
#include "wire.h"

namespace fleetscope::xspace {

// Zeroed memory that grows by moving; what it leaves behind stays with the whole.
class Block {
 public:
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

  void grow(size_t size, Memory& memory) {
    if (size <= size_) return;
    uint8_t* moved = memory.allocate(size);
    if (size_ != 0) std::memcpy(moved, data_, size_);
    data_ = moved;
    size_ = size;
  }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Bytes of texts, one after the other, growing by doubling.
class Text {
 public:
  const uint8_t* data() const { return block_.data(); }
  size_t size() const { return size_; }

  void reserve(size_t size, Memory& memory) { block_.grow(size, memory); }

  void append(Bytes bytes, Memory& memory) {
    if (bytes.empty()) return;
    size_t size = size_ + bytes.size();
    if (size > INT32_MAX) throw Malformed{Fault::too_large, memory.at};
    if (size > block_.size()) block_.grow(size + std::max(size, size_t{192}), memory);
    std::memcpy(block_.data() + size_, bytes.data(), bytes.size());
    size_ = size;
  }

 private:
  Block block_;
  size_t size_ = 0;
};

// Cleans UTF-8 and keeps the cleaned copies alive until the columns have taken them.
class Utf8 {
 public:
  // Invalid sequences become U+FFFD, one per maximal subpart (Unicode 15, table 3-8), as Python's "replace" does.
  Bytes clean(Bytes text, Memory& memory);
  uint64_t replaced() const { return replaced_; }

 private:
  std::deque<std::string> kept_;
  uint64_t replaced_ = 0;
};

// One dictionary for all string columns of a message: equal strings have equal codes in every column.
class Dictionary {
 public:
  int32_t code(Bytes text, Utf8& utf8, Memory& memory);
  void finish(Memory& memory);  // copies the strings out of the message

  Block offsets;
  Text values;
  int64_t length = 0;
  std::shared_ptr<const Memory> memory;

 private:
  struct Entry {
    Bytes spelling;  // as it came
    int32_t code;
  };
  struct Slot {  // small, so that the table of a large capture stays in the cache
    uint32_t hash;
    int32_t entry = -1;
  };

  int32_t add(Bytes text);
  uint32_t hash(Bytes text) const;
  Slot& find(Bytes spelling, uint32_t hash);
  void insert(Bytes spelling, uint32_t hash, int32_t code, Memory& memory);
  void rehash(size_t size, Memory& memory);

  std::vector<Slot> slots_;
  std::vector<Entry> entries_;
  std::vector<Bytes> texts_;  // by code
};

enum class Type { int8, int32, int64, float64, utf8, binary, dictionary };

struct Table;

// Values are placed by row, rows ascending; rows passed over are null (empty where the column is not nullable).
struct Column {
  std::string name;
  Type type;
  bool nullable;
  Block validity, values;  // `values` holds the offsets of utf8 and binary columns
  Text text;
  int64_t valid = 0;
  int64_t last_row = -1;

  bool has(int64_t row) const { return last_row == row; }
  size_t width() const;

  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(values.data());
  }
};

// `rows` counts finished rows; a column shorter than that is null to the end.
struct Table {
  Table() = default;
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  std::vector<Column> columns;
  int64_t rows = 0;
  int64_t capacity = 0;
  std::shared_ptr<const Dictionary> dictionary;
  std::shared_ptr<const Memory> memory;
  std::shared_ptr<const void> zeros;  // stands for the values of every column that is null throughout

  // Room for `more` rows after the finished ones. Every `put` needs it; `exact` when no others will follow.
  void reserve(int64_t more, Memory& memory, bool exact = false);
  void allocate(Column& column, Memory& memory);
  void finish(Memory& memory);

  template <typename T>
  void put(size_t at, T value, Memory& memory) {
    Column& column = columns[at];
    if (column.values.data() == nullptr) allocate(column, memory);
    column.as<T>()[rows] = value;
    mark(column);
  }
  void put_bytes(size_t at, Bytes bytes, Memory& memory);

  void mark(Column& column) {
    if (column.nullable) column.validity.data()[rows / 8] |= static_cast<uint8_t>(1 << rows % 8);
    column.valid += column.last_row != rows;
    column.last_row = rows;
  }
};

}  // namespace fleetscope::xspace
