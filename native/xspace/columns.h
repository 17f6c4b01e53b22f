// Growable Arrow columns. All memory is charged to one Budget, so a hostile message cannot grow them without bound.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>
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

// Bytes that grow by doubling, new space zeroed; 64 spare bytes so that a column of no rows still has an address.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() { std::free(data_); }

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

  void resize(size_t size, Budget& budget) {
    if (size > capacity_) grow(size, budget);
    size_ = size;
  }
  void append(Bytes bytes, Budget& budget) {
    size_t start = size_;
    resize(start + bytes.size(), budget);
    if (!bytes.empty()) std::memcpy(data_ + start, bytes.data(), bytes.size());
  }

 private:
  void grow(size_t size, Budget& budget) {
    size_t capacity = capacity_ * 2 > size + 64 ? capacity_ * 2 : size + 64;
    budget.charge(capacity - capacity_);
    void* moved = std::realloc(data_, capacity);
    if (moved == nullptr) throw std::bad_alloc();
    data_ = static_cast<uint8_t*>(moved);
    std::memset(data_ + capacity_, 0, capacity - capacity_);
    capacity_ = capacity;
  }
  void swap(Buffer& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

  uint8_t* data_ = nullptr;
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

  Buffer offsets, values;
  int64_t length = 0;

 private:
  std::unordered_map<Bytes, int32_t> codes_;
  std::vector<Bytes> texts_;
};

enum class Type { int8, int32, int64, float64, utf8, binary, dictionary };

struct Column {
  std::string name;
  Type type;
  bool nullable;
  Buffer validity, values, offsets;
  int64_t valid = 0;
  int64_t last_row = -1;

  bool has(int64_t row) const { return last_row == row; }

  template <typename T>
  void put(int64_t row, T value, Budget& budget) {
    size_t start = static_cast<size_t>(row) * sizeof(T);
    values.resize(start + sizeof(T), budget);
    std::memcpy(values.data() + start, &value, sizeof(T));
    mark(row, budget);
  }

  void put_bytes(int64_t row, Bytes bytes, Budget& budget) {
    pad_offsets(row, budget);
    values.append(bytes, budget);
    if (values.size() > INT32_MAX) throw Malformed{Fault::too_large, budget.at};
    pad_offsets(row + 1, budget);
    mark(row, budget);
  }

  void finish(int64_t rows, Budget& budget);
  size_t width() const;

 private:
  void mark(int64_t row, Budget& budget) {
    if (nullable) {
      validity.resize(static_cast<size_t>(row / 8 + 1), budget);
      validity.data()[row / 8] |= static_cast<uint8_t>(1 << row % 8);
    }
    valid += last_row != row;
    last_row = row;
  }
  void pad_offsets(int64_t row, Budget& budget);
};

// `rows` counts finished rows; a column shorter than that is null to the end.
struct Table {
  Table() = default;
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  std::vector<Column> columns;
  int64_t rows = 0;
  std::shared_ptr<const Dictionary> dictionary;
  std::shared_ptr<void> zeros;  // stands for the values of every column that is null throughout

  void finish(Budget& budget);
};

}  // namespace fleetscope::xspace
