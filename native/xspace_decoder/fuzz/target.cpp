// Decodes arbitrary bytes, then reads every byte of every exported column as a consumer would.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "arrow.h"
#include "decode.h"

namespace {

using namespace fleetscope::xspace;

volatile uint64_t sink;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken column: %s\n", what);
  std::abort();
}

void read_bytes(const void* bytes, int64_t size) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < size; ++i) sum += static_cast<const uint8_t*>(bytes)[i];
  sink = sink + sum;
}

void read_array(const ArrowArray& array, const ArrowSchema& schema) {
  for (int64_t i = 0; i < array.n_children; ++i) read_array(*array.children[i], *schema.children[i]);
  if (array.n_children != 0) return;
  require((array.null_count == 0) == (array.buffers[0] == nullptr) || array.length == 0, "validity");
  if (array.buffers[0] != nullptr) read_bytes(array.buffers[0], (array.length + 7) / 8);
  char format = schema.format[0];
  if (format == 'u' || format == 'z') {
    auto* offsets = static_cast<const int32_t*>(array.buffers[1]);
    require(offsets[0] == 0, "first offset");
    for (int64_t i = 0; i < array.length; ++i) require(offsets[i] <= offsets[i + 1], "offsets in order");
    read_bytes(array.buffers[2], offsets[array.length]);
    return;
  }
  int64_t width = format == 'c' ? 1 : format == 'i' ? 4 : 8;
  read_bytes(array.buffers[1], array.length * width);
  if (array.dictionary == nullptr) return;
  read_array(*array.dictionary, *schema.dictionary);
  auto* codes = static_cast<const int32_t*>(array.buffers[1]);
  auto* valid = static_cast<const uint8_t*>(array.buffers[0]);
  for (int64_t i = 0; i < array.length; ++i) {
    bool present = valid == nullptr || (valid[i / 8] >> i % 8 & 1) != 0;
    require(!present || (codes[i] >= 0 && codes[i] < array.dictionary->length), "dictionary code");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes message(reinterpret_cast<const char*>(data), size);
  Decoded decoded = decode(message);
  if (decoded.fault != Fault::none) {
    require(decoded.fault_offset <= size, "offset inside the message");
    require(decoded.events == nullptr, "no tables beside a fault");
    return 0;
  }
  // 64 bytes of column per byte of message plus 16 MiB is what decode promises by default.
  require(decoded.memory_bytes <= 64 * size + (uint64_t{16} << 20), "memory bound");
  for (const auto& table : {decoded.planes, decoded.lines, decoded.events, decoded.event_metadata,
                            decoded.stat_metadata, decoded.stats, decoded.messages}) {
    ArrowSchema schema;
    ArrowArray array;
    export_schema(*table, &schema);
    export_array(table, &array);
    read_array(array, schema);
    array.release(&array);
    schema.release(&schema);
  }
  return 0;
}
