// A Table through the Arrow C data interface: https://arrow.apache.org/docs/format/CDataInterface.html
#pragma once

#include <cstdint>
#include <memory>

#include "columns.h"

// Struct layouts are the interface's ABI.
extern "C" {
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t n_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;
  void (*release)(ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  ArrowArray** children;
  ArrowArray* dictionary;
  void (*release)(ArrowArray*);
  void* private_data;
};
}

namespace fleetscope::xspace {

// Both fill `out`; the receiver releases it. Arrays share the table's memory and keep it alive, child by child.
void export_schema(const Table& table, ArrowSchema* out);
void export_array(const std::shared_ptr<const Table>& table, ArrowArray* out);

}  // namespace fleetscope::xspace
