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

Bytes Utf8::clean(Bytes text, Budget& budget) {
  auto* begin = reinterpret_cast<const uint8_t*>(text.data());
  const uint8_t* end = begin + text.size();
  const uint8_t* p = begin;
  while (p = skip_ascii(p, end), p != end) {
    int size = sequence(p, end);
    if (size < 0) break;
    p += size;
  }
  if (p == end) return text;
  budget.charge(3 * text.size() + sizeof(std::string));
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
  // Folded 64 x 64 -> 128 bit products, 8 bytes at a time; the address makes it differ between decodes and processes.
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  auto fold = [](uint64_t a, uint64_t b) {
    auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  };
  uint64_t state = reinterpret_cast<uintptr_t>(this) ^ kOdd * (text.size() + 1);
  const char* p = text.data();
  size_t left = text.size();
  for (uint64_t word; left >= 8; p += 8, left -= 8) {
    std::memcpy(&word, p, 8);
    state = fold(state ^ word, kOdd);
  }
  uint64_t tail = 0;
  if (left != 0) std::memcpy(&tail, p, left);
  state = fold(state ^ tail, kOdd);
  return static_cast<uint32_t>(state ^ state >> 32);
}

Dictionary::Slot& Dictionary::find(Bytes text, uint32_t hash) {
  for (size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
    Slot& slot = slots_[at];
    if (slot.code < 0 || (slot.hash == hash && slot.text == text)) return slot;
  }
}

void Dictionary::rehash(size_t size, Budget& budget) {
  budget.charge((size - slots_.size()) * sizeof(Slot));
  std::vector<Slot> old(size);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.code >= 0) find(slot.text, slot.hash) = slot;
  }
}

void Dictionary::insert(Slot& slot, Bytes text, uint32_t hash, int32_t code, Budget& budget) {
  slot = {text, hash, code};
  if (++used_ * 4 > slots_.size() * 3) rehash(slots_.size() * 2, budget);
}

int32_t Dictionary::code(Bytes text, Utf8& utf8, Budget& budget) {
  if (slots_.empty()) rehash(64, budget);
  uint32_t hashed = hash(text);
  Slot& slot = find(text, hashed);
  if (slot.code >= 0) return slot.code;
  Bytes clean = utf8.clean(text, budget);
  int32_t code = -1;
  if (clean.data() != text.data()) {
    // Bad text has two keys: as it came, and as it was cleaned, which may be another text's own spelling.
    uint32_t clean_hash = hash(clean);
    code = find(clean, clean_hash).code;
    if (code < 0) {
      code = static_cast<int32_t>(texts_.size());
      texts_.push_back(clean);
      insert(find(clean, clean_hash), clean, clean_hash, code, budget);
    }
    insert(find(text, hashed), text, hashed, code, budget);
  } else {
    code = static_cast<int32_t>(texts_.size());
    texts_.push_back(text);
    insert(slot, text, hashed, code, budget);
  }
  budget.charge(sizeof(Bytes));
  return code;
}

void Dictionary::finish(Budget& budget) {
  length = static_cast<int64_t>(texts_.size());
  offsets.grow((texts_.size() + 1) * sizeof(int32_t), budget);
  auto* offset = reinterpret_cast<int32_t*>(offsets.data());
  for (Bytes text : texts_) {
    values.append(text, budget);
    *++offset = static_cast<int32_t>(values.size());
  }
  slots_ = {};
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

void Table::allocate(Column& column, Budget& budget) {
  auto size = static_cast<size_t>(capacity) + 1;  // + 1: the last offset
  column.values.grow(size * column.width(), budget, column.dense);
  if (column.nullable) column.validity.grow(size / 8 + 1, budget);
}

void Table::reserve(int64_t more, Budget& budget, bool exact) {
  if (rows + more <= capacity) return;
  capacity = exact ? rows + more : std::max(rows + more, 2 * capacity);
  for (Column& column : columns) {
    if (column.values.data() != nullptr) allocate(column, budget);
  }
}

void Table::put_bytes(size_t at, Bytes bytes, Budget& budget) {
  Column& column = columns[at];
  if (column.values.data() == nullptr) allocate(column, budget);
  auto* offsets = column.as<int32_t>();
  auto before = static_cast<int32_t>(column.text.size());
  for (int64_t row = column.last_row + 2; row <= rows; ++row) offsets[row] = before;
  column.text.append(bytes, budget);
  offsets[rows + 1] = static_cast<int32_t>(column.text.size());
  mark(column);
}

void Table::finish(Budget& budget) {
  for (Column& column : columns) {
    bool empty = column.valid == 0 && (column.nullable || rows == 0);
    if (empty || (column.type != Type::utf8 && column.type != Type::binary)) continue;
    if (column.values.data() == nullptr) allocate(column, budget);
    auto* offsets = column.as<int32_t>();
    for (int64_t row = column.last_row + 2; row <= rows; ++row) offsets[row] = static_cast<int32_t>(column.text.size());
  }
  // calloc leaves these pages unmapped until read, so absent columns cost no resident memory.
  zeros = std::shared_ptr<void>(std::calloc(static_cast<size_t>(rows) + 8, 8), std::free);
  if (zeros == nullptr) throw std::bad_alloc();
}

}  // namespace fleetscope::xspace
