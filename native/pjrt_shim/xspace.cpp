#include "xspace.h"

#include <algorithm>
#include <cctype>
#include <map>

namespace fleetscope::pjrt {
namespace {

// Field numbers of tsl/profiler/protobuf/xplane.proto.
enum { kSpacePlanes = 1 };
enum {
  kPlaneId = 1,
  kPlaneName = 2,
  kPlaneLines = 3,
  kPlaneEventMetadata = 4,
  kPlaneStatMetadata = 5,
  kPlaneStats = 6
};
enum { kLineId = 1, kLineName = 2, kLineTimestamp = 3, kLineEvents = 4 };
enum { kEventMetadata = 1, kEventOffset = 2, kEventDuration = 3, kEventStats = 4 };
enum { kStatMetadata = 1, kStatUint = 3, kStatInt = 4 };
enum { kMetadataId = 1, kMetadataName = 2 };

void put_varint(std::string* out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out->push_back(char(value | 0x80));
  out->push_back(char(value));
}
void put_number(std::string* out, int field, uint64_t value) {
  put_varint(out, uint64_t(field) << 3);
  put_varint(out, value);
}
void put_bytes(std::string* out, int field, const std::string& bytes) {
  put_varint(out, uint64_t(field) << 3 | 2);
  put_varint(out, bytes.size());
  *out += bytes;
}
void put_stat(std::string* out, int field, int metadata, uint64_t value) {
  std::string stat;
  put_number(&stat, kStatMetadata, uint64_t(metadata));
  put_number(&stat, kStatUint, value);
  put_bytes(out, field, stat);
}
// An entry of a map<int64, message with id and name>.
void put_metadata(std::string* out, int field, uint64_t id, const std::string& name) {
  std::string message, entry;
  put_number(&message, kMetadataId, id);
  put_bytes(&message, kMetadataName, name);
  put_number(&entry, 1, id);
  put_bytes(&entry, 2, message);
  put_bytes(out, field, entry);
}

enum Stat { kRunId = 1, kProgramId, kEnqueuePs, kFailedStat, kLeftOut };
const char* const kStatNames[] = {"", "run_id", "program_id", "enqueue_ps", "failed", "executions_left_out"};

}  // namespace

void append_plane(std::string* space, DevicePlane* plane, const std::unordered_map<uint64_t, std::string>& labels,
                  uint64_t left_out) {
  auto ps = [&](uint64_t tick) {
    if (tick <= plane->begin) return uint64_t{0};
    return uint64_t(static_cast<unsigned __int128>(tick - plane->begin) * 1000 * plane->period_num / plane->period_den);
  };
  std::sort(plane->executions.begin(), plane->executions.end(), [](const Execution& a, const Execution& b) {
    return a.done != b.done ? a.done < b.done : a.launch < b.launch;
  });
  std::string line;
  put_number(&line, kLineId, 1);
  put_bytes(&line, kLineName, "XLA Modules");
  put_number(&line, kLineTimestamp, uint64_t(plane->begin_ns));
  std::map<uint64_t, uint64_t> metadata;  // load id -> metadata id
  uint64_t free_from = 0;
  for (const Execution& execution : plane->executions) {
    uint64_t begin = std::max(execution.enqueued, free_from), done = std::max(execution.done, begin);
    free_from = done;
    uint64_t id = metadata.emplace(execution.load, metadata.size() + 1).first->second;
    std::string event;
    put_number(&event, kEventMetadata, id);
    put_number(&event, kEventOffset, ps(begin));
    put_number(&event, kEventDuration, ps(done) - ps(begin));
    put_stat(&event, kEventStats, kRunId, execution.launch);
    put_stat(&event, kEventStats, kProgramId, execution.load);
    put_stat(&event, kEventStats, kEnqueuePs, ps(execution.enqueued));
    if (execution.failed) put_stat(&event, kEventStats, kFailedStat, 1);
    put_bytes(&line, kLineEvents, event);
  }
  std::string name = plane->platform.empty() ? "DEVICE" : plane->platform;
  for (char& c : name) c = char(toupper(uint8_t(c)));
  std::string message;
  put_number(&message, kPlaneId, plane->ordinal + 1u);
  put_bytes(&message, kPlaneName, "/device:CUSTOM:" + name + ":" + std::to_string(plane->ordinal));
  put_bytes(&message, kPlaneLines, line);
  for (auto& [load, id] : metadata) {
    auto label = labels.find(load);
    // XProf's own form is name(program id).
    std::string text = label == labels.end() ? "program" : label->second.substr(0, label->second.rfind('#'));
    put_metadata(&message, kPlaneEventMetadata, id, text + "(" + std::to_string(load) + ")");
  }
  for (int stat = kRunId; stat <= kLeftOut; ++stat)
    put_metadata(&message, kPlaneStatMetadata, uint64_t(stat), kStatNames[stat]);
  if (left_out) put_stat(&message, kPlaneStats, kLeftOut, left_out);
  put_bytes(space, kSpacePlanes, message);
}

}  // namespace fleetscope::pjrt
