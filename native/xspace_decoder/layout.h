// The columns of each table, and which XStat of an event or an event metadata has a column of its own.
#pragma once

#include <array>
#include <string_view>

#include "columns.h"

namespace fleetscope::xspace {

struct ColumnSpec {
  const char* name;
  Type type;
  bool nullable;
};

// A stat takes its column when its value has the column's kind; any other value stays in the `stats` table.
struct StatSpec {
  std::string_view stat;  // name in xla/tsl/profiler/utils/xplane_schema.cc
  const char* column;
  Type type;
};

inline constexpr std::array kPlanes{
    ColumnSpec{"plane", Type::int32, false},
    ColumnSpec{"id", Type::int64, false},
    ColumnSpec{"name", Type::utf8, false},
};

inline constexpr std::array kLines{
    ColumnSpec{"plane", Type::int32, false},        ColumnSpec{"line", Type::int32, false},
    ColumnSpec{"id", Type::int64, false},           ColumnSpec{"display_id", Type::int64, false},
    ColumnSpec{"name", Type::utf8, false},          ColumnSpec{"display_name", Type::utf8, false},
    ColumnSpec{"timestamp_ns", Type::int64, false}, ColumnSpec{"duration_ps", Type::int64, false},
    ColumnSpec{"first_event", Type::int64, false},  ColumnSpec{"event_count", Type::int64, false},
};

inline constexpr std::array kEvents{
    ColumnSpec{"plane", Type::int32, false},          ColumnSpec{"line", Type::int32, false},
    ColumnSpec{"metadata_id", Type::int64, false},    ColumnSpec{"metadata", Type::int32, true},
    ColumnSpec{"offset_ps", Type::int64, false},      ColumnSpec{"duration_ps", Type::int64, false},
    ColumnSpec{"num_occurrences", Type::int64, true},
};

inline constexpr std::array kEventStats{
    StatSpec{"device_offset_ps", "device_offset_ps", Type::int64},
    StatSpec{"device_duration_ps", "device_duration_ps", Type::int64},
    StatSpec{"run_id", "run_id", Type::int64},
    StatSpec{"program_id", "program_id", Type::int64},
    StatSpec{"hlo_op", "hlo_op", Type::dictionary},
    StatSpec{"hlo_module", "hlo_module", Type::dictionary},
    StatSpec{"correlation_id", "correlation_id", Type::int64},
    StatSpec{"device_ordinal", "device_ordinal", Type::int64},
    StatSpec{"device_id", "device_id", Type::int64},
    StatSpec{"step_num", "step_num", Type::int64},
    StatSpec{"iter_num", "iter_num", Type::int64},
    StatSpec{"group_id", "group_id", Type::int64},
    StatSpec{"replica_id", "replica_id", Type::int64},
    StatSpec{"queue_id", "queue_id", Type::int64},
    StatSpec{"core_type", "core_type", Type::int64},
    StatSpec{"all_reduce_unique_id", "all_reduce_unique_id", Type::int64},
    StatSpec{"_pt", "producer_type", Type::int64},
    StatSpec{"_p", "producer_id", Type::int64},
    StatSpec{"_ct", "consumer_type", Type::int64},
    StatSpec{"_c", "consumer_id", Type::int64},
    StatSpec{"_r", "is_root", Type::int64},
    StatSpec{"_a", "is_async", Type::int64},
    StatSpec{"_src", "source", Type::dictionary},
    StatSpec{"flow", "flow", Type::int64},
    StatSpec{"tf_op", "tf_op", Type::dictionary},
    StatSpec{"kernel_details", "kernel_details", Type::dictionary},
    StatSpec{"memcpy_details", "memcpy_details", Type::dictionary},
    StatSpec{"flops", "flops", Type::int64},
    StatSpec{"model_flops", "model_flops", Type::int64},
    StatSpec{"bytes_accessed", "bytes_accessed", Type::int64},
    StatSpec{"dma_stall_duration_ps", "dma_stall_duration_ps", Type::int64},
    StatSpec{"counter_value", "counter_value", Type::int64},
};

inline constexpr std::array kEventMetadata{
    ColumnSpec{"plane", Type::int32, false},    ColumnSpec{"id", Type::int64, false},
    ColumnSpec{"name", Type::utf8, false},      ColumnSpec{"display_name", Type::utf8, false},
    ColumnSpec{"metadata", Type::binary, true},
};

inline constexpr std::array kEventMetadataStats{
    StatSpec{"flops", "flops", Type::int64},
    StatSpec{"model_flops", "model_flops", Type::int64},
    StatSpec{"bytes_accessed", "bytes_accessed", Type::int64},
    StatSpec{"raw_bytes_accessed", "raw_bytes_accessed", Type::int64},
    StatSpec{"hlo_category", "hlo_category", Type::dictionary},
    StatSpec{"program_id", "program_id", Type::int64},
    StatSpec{"symbol_id", "symbol_id", Type::int64},
    StatSpec{"source", "source", Type::dictionary},
    StatSpec{"source_stack", "source_stack", Type::dictionary},
    StatSpec{"tf_op", "tf_op", Type::dictionary},
    StatSpec{"deduplicated_name", "deduplicated_name", Type::dictionary},
    StatSpec{"shape_with_layout", "shape_with_layout", Type::dictionary},
    StatSpec{"memory_access_breakdown", "memory_access_breakdown", Type::binary},
    StatSpec{"Hlo Proto", "hlo_proto", Type::binary},
};

inline constexpr size_t kLongestStat = sizeof("memory_access_breakdown") - 1;

inline constexpr std::array kStatMetadata{
    ColumnSpec{"plane", Type::int32, false},
    ColumnSpec{"id", Type::int64, false},
    ColumnSpec{"name", Type::utf8, false},
    ColumnSpec{"description", Type::utf8, false},
};

// kind = field number of the value in XStat, 0 = none was set. str_value is plain: interning the strings of stats
// nobody asked a column for took a fifth of the time of a capture full of them.
inline constexpr std::array kStats{
    ColumnSpec{"owner", Type::int8, false},     ColumnSpec{"row", Type::int32, false},
    ColumnSpec{"name", Type::dictionary, true}, ColumnSpec{"kind", Type::int8, false},
    ColumnSpec{"int_value", Type::int64, true}, ColumnSpec{"double_value", Type::float64, true},
    ColumnSpec{"str_value", Type::utf8, true},  ColumnSpec{"bytes_value", Type::binary, true},
    ColumnSpec{"stat_id", Type::int64, true},
};

inline constexpr std::array kMessages{
    ColumnSpec{"kind", Type::int8, false},
    ColumnSpec{"text", Type::utf8, false},
};

enum Owner : int8_t { kOfPlane = 0, kOfEventMetadata = 1, kOfEvent = 2 };
enum Message : int8_t { kError = 0, kWarning = 1, kHostname = 2 };

}  // namespace fleetscope::xspace
