// The wire format of protobuf, as far as test plugins write it: apart from the writers that are under test.
#pragma once

#include <stdint.h>

#include <string>

inline void put(std::string* out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out->push_back(char(value | 0x80));
  out->push_back(char(value));
}
inline void put(std::string* out, int field, uint64_t value) { put(out, uint64_t(field) << 3), put(out, value); }
inline void put(std::string* out, int field, const std::string& bytes) {
  put(out, uint64_t(field) << 3 | 2), put(out, bytes.size());
  *out += bytes;
}
