// Arrow columns of one message. All memory is charged to one Budget before it is taken, so a hostile message cannot
// grow them without bound.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "wire.h"

namespace fleetscope::xspace {

class Budget {
 public:
  explicit Budget(uint64_t limit) : limit_(limit) {}
  void charge(uint64_t size) {
    used_ += size;
    if (used_ > limit_) throw Malformed{Fault::over_budget, at};
  }
  uint64_t used() const { return used_; }
  uint64_t at = 0;  // offset of what is being decoded, for the error

 private:
  uint64_t limit_;
  uint64_t used_ = 0;
};

// Memory whose bytes beyond those written are zero, unless grown as `raw`. Fresh pages come from calloc untouched: a
// sparse column of a large capture costs page faults only where it has values (half of the decoder's time was page
// faults before).
class Block {
 public:
  Block() = default;
  Block(Block&& other) noexcept { swap(other); }
  Block& operator=(Block&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Block() { std::free(data_); }

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

  void grow(size_t size, Budget& budget, bool raw = false) {
    if (size <= size_) return;
    budget.charge(size - size_);
    void* moved = data_ == nullptr ? std::calloc(size, 1) : std::realloc(data_, size);
    if (moved == nullptr) throw std::bad_alloc();
    if (data_ != nullptr && !raw) std::memset(static_cast<uint8_t*>(moved) + size_, 0, size - size_);
    data_ = static_cast<uint8_t*>(moved);
    size_ = size;
  }

 private:
  void swap(Block& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Bytes of texts, one after the other, growing by doubling.
class Text {
 public:
  Text() = default;
  Text(Text&& other) noexcept { swap(other); }
  Text& operator=(Text&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Text() { std::free(data_); }

  const char* data() const { return data_; }
  size_t size() const { return size_; }

  void append(Bytes bytes, Budget& budget) {
    if (bytes.empty()) return;
    if (size_ + bytes.size() > INT32_MAX) throw Malformed{Fault::too_large, budget.at};
    if (size_ + bytes.size() > capacity_) {
      size_t capacity = capacity_ * 2 > size_ + bytes.size() ? capacity_ * 2 : size_ + bytes.size() + 64;
      budget.charge(capacity - capacity_);
      void* moved = std::realloc(data_, capacity);
      if (moved == nullptr) throw std::bad_alloc();
      data_ = static_cast<char*>(moved);
      capacity_ = capacity;
    }
    std::memcpy(data_ + size_, bytes.data(), bytes.size());
    size_ += bytes.size();
  }

 private:
  void swap(Text& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

  char* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

// Cleans UTF-8 and keeps the cleaned copies alive until the columns have taken them.
class Utf8 {
 public:
  // Invalid sequences become U+FFFD, one per maximal subpart (Unicode 15, table 3-8), as Python's "replace" does.
  Bytes clean(Bytes text, Budget& budget);
  uint64_t replaced() const { return replaced_; }

 private:
  std::deque<std::string> kept_;
  uint64_t replaced_ = 0;
};

// One dictionary for all string columns of a message: equal strings have equal codes in every column.
class Dictionary {
 public:
  int32_t code(Bytes text, Utf8& utf8, Budget& budget);
  void finish(Budget& budget);  // copies the strings out of the message

  Block offsets;
  Text values;
  int64_t length = 0;

 private:
  struct Slot {
    Bytes text;
    uint32_t hash;
    int32_t code = -1;
  };

  Slot& find(Bytes text, uint32_t hash);
  uint32_t hash(Bytes text) const;
  void insert(Slot& slot, Bytes text, uint32_t hash, int32_t code, Budget& budget);
  void rehash(size_t size, Budget& budget);

  std::vector<Slot> slots_;
  size_t used_ = 0;
  std::vector<Bytes> texts_;
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
  bool dense = false;  // every row writes it, nulls included: growing need not clear it
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
  std::shared_ptr<void> zeros;  // stands for the values of every column that is null throughout

  // Room for `more` rows after the finished ones. Every `put` needs it; `exact` when no others will follow.
  void reserve(int64_t more, Budget& budget, bool exact = false);
  void allocate(Column& column, Budget& budget);
  void finish(Budget& budget);

  template <typename T>
  void put(size_t at, T value, Budget& budget) {
    Column& column = columns[at];
    if (column.values.data() == nullptr) allocate(column, budget);
    column.as<T>()[rows] = value;
    mark(column);
  }
  void put_bytes(size_t at, Bytes bytes, Budget& budget);

  void mark(Column& column) {
    if (column.nullable) column.validity.data()[rows / 8] |= static_cast<uint8_t>(1 << rows % 8);
    column.valid += column.last_row != rows;
    column.last_row = rows;
  }
};

}  // namespace fleetscope::xspace
