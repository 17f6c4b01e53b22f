// Bounds-checked reader of the protobuf wire format: what an XSpace needs of it, and nothing that allocates.
//
// Every failure is a `Malformed` carrying the byte offset in the whole message; `decode` is the only catcher.
// Acceptance follows protobuf's own parsers (unknown fields and groups are skipped, a known field with an
// unexpected wire type counts as unknown, a varint keeps its low 64 bits), so a differential test can compare them.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace fleetscope::xspace {

using Bytes = std::string_view;

enum class Fault : int {
  none = 0,
  truncated = 1,      // a length or a fixed-width value reaches beyond the bytes there are
  bad_varint = 2,     // more than 10 bytes
  bad_tag = 3,        // field number 0, wire type 6 or 7, or a tag above 32 bits
  bad_group = 4,      // a group that does not end, ends under another number, or nests deeper than 100
  too_large = 5,      // message of 2 GiB or more: protobuf's own ceiling, and that of 32-bit Arrow offsets
  over_budget = 6,    // columns would need more memory than the caller allows
  out_of_memory = 7,  // the allocator said no
};

struct Malformed {
  Fault fault;
  uint64_t offset;
};

enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kGroup = 3, kEndGroup = 4, kFixed32 = 5 };

constexpr uint32_t tag_of(uint32_t field, Wire wire) { return field << 3 | wire; }

class Reader {
 public:
  Reader(Bytes bytes, uint64_t offset)
      : begin_(u8(bytes.data())), at_(begin_), end_(begin_ + bytes.size()), base_(offset) {}

  bool done() const { return at_ == end_; }
  uint64_t offset() const { return base_ + static_cast<uint64_t>(at_ - begin_); }

  uint64_t varint() {
    if (at_ != end_ && *at_ < 0x80) return *at_++;
    uint64_t value = 0;
    const uint8_t* after = long_varint(at_, end_, value);
    if (after == nullptr) fail_at(end_ - at_ < 10 ? Fault::truncated : Fault::bad_varint, at_);
    at_ = after;
    return value;
  }

  uint32_t tag() {
    const uint8_t* start = at_;
    uint64_t value = varint();
    // Protobuf allows a tag 5 bytes; a longer spelling of a small number is malformed there too.
    if (value > UINT32_MAX || at_ - start > 5 || value >> 3 == 0) fail_at(Fault::bad_tag, start);
    return static_cast<uint32_t>(value);
  }

  Bytes bytes() {
    const uint8_t* start = at_;
    uint64_t size = varint();
    if (size > static_cast<uint64_t>(end_ - at_)) fail_at(Fault::truncated, start);
    Bytes view(reinterpret_cast<const char*>(at_), size);
    at_ += size;
    return view;
  }

  double fixed64_double() {
    double value;
    std::memcpy(&value, take(8), 8);
    return value;
  }

  void skip(uint32_t tag) {
    switch (tag & 7) {
      case kVarint:
        varint();
        return;
      case kFixed64:
        take(8);
        return;
      case kBytes:
        bytes();
        return;
      case kGroup:
        skip_group(tag >> 3);
        return;
      case kFixed32:
        take(4);
        return;
      case kEndGroup:
        fail_at(Fault::bad_group, at_);
      default:
        fail_at(Fault::bad_tag, at_);
    }
  }

 private:
  static const uint8_t* u8(const char* p) { return reinterpret_cast<const uint8_t*>(p); }

  [[noreturn]] void fail_at(Fault fault, const uint8_t* where) const {
    throw Malformed{fault, base_ + static_cast<uint64_t>(where - begin_)};
  }

  const uint8_t* take(size_t size) {
    if (static_cast<size_t>(end_ - at_) < size) fail_at(Fault::truncated, at_);
    const uint8_t* start = at_;
    at_ += size;
    return start;
  }

  // Takes and gives the position by value: a reader whose address escapes would live in memory, not in registers.
  static const uint8_t* long_varint(const uint8_t* at, const uint8_t* end, uint64_t& value) {
    uint64_t bits = 0;
    if (end - at > 10) end = at + 10;
    for (int shift = 0; at != end; shift += 7) {
      uint8_t byte = *at++;
      bits |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) {
        value = bits;
        return at;
      }
    }
    return nullptr;
  }

  void skip_group(uint32_t field) {
    constexpr int kDepth = 100;
    uint32_t open[kDepth];
    int depth = 0;
    const uint8_t* start = at_;
    open[depth++] = field;
    while (depth > 0) {
      if (done()) fail_at(Fault::bad_group, start);
      uint32_t next = tag();
      if ((next & 7) == kGroup) {
        if (depth == kDepth) fail_at(Fault::bad_group, at_);
        open[depth++] = next >> 3;
      } else if ((next & 7) == kEndGroup) {
        if (open[--depth] != next >> 3) fail_at(Fault::bad_group, at_);
      } else {
        skip(next);
      }
    }
  }

  const uint8_t* begin_;
  const uint8_t* at_;
  const uint8_t* end_;
  uint64_t base_;
};

}  // namespace fleetscope::xspace
