#include "columns.h"

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

int32_t Dictionary::code(Bytes text, Utf8& utf8, Budget& budget) {
  auto found = codes_.find(text);
  if (found != codes_.end()) return found->second;
  Bytes clean = utf8.clean(text, budget);
  // 64: node and bucket of the map, entry of the list.
  budget.charge(64);
  auto [slot, fresh] = codes_.try_emplace(clean, static_cast<int32_t>(texts_.size()));
  if (fresh) texts_.push_back(clean);
  int32_t code = slot->second;
  if (clean.data() != text.data()) codes_.try_emplace(text, code);
  return code;
}

void Dictionary::finish(Budget& budget) {
  length = static_cast<int64_t>(texts_.size());
  offsets.resize((texts_.size() + 1) * 4, budget);
  auto* offset = reinterpret_cast<int32_t*>(offsets.data());
  *offset = 0;
  for (Bytes text : texts_) {
    values.append(text, budget);
    if (values.size() > INT32_MAX) throw Malformed{Fault::too_large, budget.at};
    *++offset = static_cast<int32_t>(values.size());
  }
  values.resize(values.size() + 1, budget);
  codes_.clear();
  texts_ = {};
}

size_t Column::width() const {
  switch (type) {
    case Type::int8:
      return 1;
    case Type::int32:
    case Type::dictionary:
      return 4;
    case Type::int64:
    case Type::float64:
      return 8;
    default:
      return 0;
  }
}

void Column::pad_offsets(int64_t row, Budget& budget) {
  size_t have = offsets.size() / 4;
  size_t want = static_cast<size_t>(row) + 1;
  if (have >= want) return;
  offsets.resize(want * 4, budget);
  auto* all = reinterpret_cast<int32_t*>(offsets.data());
  for (size_t i = have; i < want; ++i) all[i] = static_cast<int32_t>(values.size());
}

void Column::finish(int64_t rows, Budget& budget) {
  if (nullable && valid == 0) return;
  if (nullable) validity.resize(static_cast<size_t>((rows + 7) / 8), budget);
  if (width() != 0) {
    values.resize(static_cast<size_t>(rows) * width(), budget);
  } else {
    pad_offsets(rows, budget);
    values.resize(values.size() + 1, budget);
  }
}

void Table::finish(Budget& budget) {
  for (Column& column : columns) column.finish(rows, budget);
  // calloc leaves these pages unmapped until read, so absent columns cost no resident memory.
  zeros = std::shared_ptr<void>(std::calloc(static_cast<size_t>(rows) + 8, 8), std::free);
  if (zeros == nullptr) throw std::bad_alloc();
}

}  // namespace fleetscope::xspace
