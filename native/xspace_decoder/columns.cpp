#include "columns.h"

#include <algorithm>

namespace fleetscope::xspace {

namespace {

// Length of the valid UTF-8 sequence at `p`, or minus the length of the invalid maximal subpart there.
int sequence(const uint8_t* p, const uint8_t* end) {
  uint8_t lead = p[0];
  if (lead < 0x80) return 1;
  int size = lead >= 0xc2 && lead <= 0xdf ? 2 : lead >= 0xe0 && lead <= 0xef ? 3 : lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
  if (size == 0) return -1;
  uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (int i = 1; i < size; ++i) {
    if (p + i == end || p[i] < low || p[i] > high) return -i;
    low = 0x80;
    high = 0xbf;
  }
  return size;
}

const uint8_t* skip_ascii(const uint8_t* p, const uint8_t* end) {
  for (uint64_t word; end - p >= 8; p += 8) {
    std::memcpy(&word, p, 8);
    if (word & 0x8080808080808080u) break;
  }
  while (p != end && *p < 0x80) ++p;
  return p;
}

}  // namespace

Bytes Utf8::clean(Bytes text, Memory& memory) {
  auto* begin = reinterpret_cast<const uint8_t*>(text.data());
  const uint8_t* end = begin + text.size();
  const uint8_t* p = begin;
  while (p = skip_ascii(p, end), p != end) {
    int size = sequence(p, end);
    if (size < 0) break;
    p += size;
  }
  if (p == end) return text;
  memory.charge(3 * text.size() + sizeof(std::string));
  std::string fixed(reinterpret_cast<const char*>(begin), static_cast<size_t>(p - begin));
  while (p != end) {
    int size = sequence(p, end);
    if (size > 0) {
      fixed.append(reinterpret_cast<const char*>(p), static_cast<size_t>(size));
    } else {
      fixed.append("\xef\xbf\xbd");
      ++replaced_;
      size = -size;
    }
    p += size;
  }
  return kept_.emplace_back(std::move(fixed));
}

uint32_t Dictionary::hash(Bytes text) const {
  // Folded 64 x 64 -> 128 bit products, 16 bytes at a time; the address makes it differ between decodes and processes.
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  auto fold = [](uint64_t a, uint64_t b) {
    auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  };
  uint64_t state = reinterpret_cast<uintptr_t>(this) ^ kOdd * (text.size() + 1);
  const char* p = text.data();
  size_t left = text.size();
  for (uint64_t words[2]; left >= 16; p += 16, left -= 16) {
    std::memcpy(words, p, 16);
    state = fold(state ^ words[0], kOdd ^ words[1]);
  }
  uint64_t tail[2] = {0, 0};
  if (left != 0) std::memcpy(tail, p, left);
  state = fold(state ^ tail[0], kOdd ^ tail[1]);
  return static_cast<uint32_t>(state ^ state >> 32);
}

Dictionary::Slot& Dictionary::find(Bytes spelling, uint32_t hash) {
  for (size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
    Slot& slot = slots_[at];
    if (slot.entry < 0) return slot;
    if (slot.hash == hash && entries_[static_cast<size_t>(slot.entry)].spelling == spelling) return slot;
  }
}

void Dictionary::rehash(size_t size, Memory& memory) {
  memory.charge((size - slots_.size()) * sizeof(Slot));
  slots_.assign(size, Slot{});
  for (size_t i = 0; i < entries_.size(); ++i) {
    uint32_t hashed = hash(entries_[i].spelling);
    find(entries_[i].spelling, hashed) = {hashed, static_cast<int32_t>(i)};
  }
}

void Dictionary::insert(Bytes spelling, uint32_t hash, int32_t code, Memory& memory) {
  memory.charge(sizeof(Entry) + sizeof(Bytes));
  find(spelling, hash) = {hash, static_cast<int32_t>(entries_.size())};
  entries_.push_back({spelling, code});
  if (entries_.size() * 4 > slots_.size() * 3) rehash(slots_.size() * 2, memory);
}

int32_t Dictionary::add(Bytes text) {
  texts_.push_back(text);
  return static_cast<int32_t>(texts_.size()) - 1;
}

int32_t Dictionary::code(Bytes text, Utf8& utf8, Memory& memory) {
  if (slots_.empty()) rehash(64, memory);
  uint32_t hashed = hash(text);
  int32_t entry = find(text, hashed).entry;
  if (entry >= 0) return entries_[static_cast<size_t>(entry)].code;
  Bytes clean = utf8.clean(text, memory);
  int32_t code = -1;
  if (clean.data() != text.data()) {
    // Bad text has two spellings: as it came, and as it was cleaned, which may be another text's own.
    uint32_t clean_hash = hash(clean);
    entry = find(clean, clean_hash).entry;
    if (entry >= 0) {
      code = entries_[static_cast<size_t>(entry)].code;
    } else {
      insert(clean, clean_hash, code = add(clean), memory);
    }
  } else {
    code = add(text);
  }
  insert(text, hashed, code, memory);
  return code;
}

void Dictionary::finish(Memory& memory) {
  length = static_cast<int64_t>(texts_.size());
  offsets.grow((texts_.size() + 1) * sizeof(int32_t), memory);
  auto* offset = reinterpret_cast<int32_t*>(offsets.data());
  size_t size = 0;
  for (Bytes text : texts_) size += text.size();
  values.reserve(size, memory);
  for (Bytes text : texts_) {
    values.append(text, memory);
    *++offset = static_cast<int32_t>(values.size());
  }
  slots_ = {};
  entries_ = {};
  texts_ = {};
}

size_t Column::width() const {
  switch (type) {
    case Type::int8:
      return 1;
    case Type::int64:
    case Type::float64:
      return 8;
    default:
      return 4;
  }
}

void Table::allocate(Column& column, Memory& memory) {
  auto size = static_cast<size_t>(capacity) + 1;  // + 1: the last offset
  column.values.grow(size * column.width(), memory);
  if (column.nullable) column.validity.grow(size / 8 + 1, memory);
}

void Table::reserve(int64_t more, Memory& memory, bool exact) {
  if (rows + more <= capacity) return;
  capacity = exact ? rows + more : std::max(rows + more, 2 * capacity);
  for (Column& column : columns) {
    if (column.values.data() != nullptr) allocate(column, memory);
  }
}

void Table::put_bytes(size_t at, Bytes bytes, Memory& memory) {
  Column& column = columns[at];
  if (column.values.data() == nullptr) allocate(column, memory);
  auto* offsets = column.as<int32_t>();
  auto before = static_cast<int32_t>(column.text.size());
  for (int64_t row = column.last_row + 2; row <= rows; ++row) offsets[row] = before;
  column.text.append(bytes, memory);
  offsets[rows + 1] = static_cast<int32_t>(column.text.size());
  mark(column);
}

void Table::finish(Memory& memory) {
  for (Column& column : columns) {
    bool empty = column.valid == 0 && (column.nullable || rows == 0);
    if (empty || (column.type != Type::utf8 && column.type != Type::binary)) continue;
    if (column.values.data() == nullptr) allocate(column, memory);
    auto* offsets = column.as<int32_t>();
    for (int64_t row = column.last_row + 2; row <= rows; ++row) offsets[row] = static_cast<int32_t>(column.text.size());
  }
}

}  // namespace fleetscope::xspace
