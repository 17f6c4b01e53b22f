// The segment reader against a process that lies: bytes changed anywhere, files cut while they are read.
//   fuzz SECONDS SEED FOLDER
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "reader.h"
#include "writer.h"

namespace {

using namespace fleetscope::recorder;

void require(bool holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "broken: %s\n", what);
  abort();
}

// What a writer left: spans with arguments, flows, weights, long durations; threads that are in regions; names.
void write_something() {
  auto work = [](uint32_t events) {
    Thread* thread = thread_of(gate());
    static const char owner = 0;
    for (int i = 0; i < 5; ++i) begin(thread, {&owner, nullptr, nullptr, 0, uint32_t(i), kHost, false, false, false});
    uint32_t name = add_name("a name", 6);
    name_thread(name);
    Argument extras[] = {{name, kArgInt, 1}, {name, kArgName, name}, {0, kWeight, 8}, {0, kFlow, 77}, {name, kProducer, 5}};
    for (uint32_t i = 0; i < events; ++i) {
      append(thread, counter(), name, i % 7 ? i : uint64_t{1} << 41, i, kHost, extras, i % 6);
    }
  };
  std::thread(work, 300).join();   // its ring is retired
  std::thread(work, 900).join();
  work(6000);  // more than its ring holds
}

// Where a change can mean something, and how much of it.
struct Area {
  uint64_t begin, bytes;
};
const Area kAreas[] = {{0, 420},
                       {kMarksOffset, 64},
                       {kSlotsOffset, 4 * sizeof(Slot)},
                       {kOpenOffset, 3 * kOpenDepth * sizeof(OpenRegion)},
                       {kNamesOffset, 8 * sizeof(NameEntry)},
                       {kArenaOffset, 64},
                       {kRingsOffset, 4096 * sizeof(Record)},
                       {kRingsOffset + kFirstRing * sizeof(Record), kOtherRing * sizeof(Record)},
                       {0, kFileBytes}};

uint64_t value_of(std::mt19937_64& random) {
  const uint64_t odd[] = {0,           1,          63,         64,          65,           127,         255,
                          kNames,      kFirstRing, kOtherRing, kFileBytes,  kRingsOffset, kArenaBytes, kNameLimit,
                          0x7fffffff,  0x80000000, 0xffffffff, 1ull << 40,  1ull << 62,   INT64_MAX,   1ull << 63,
                          UINT64_MAX,  kDurMask};
  switch (random() % 3) {
    case 0:
      return odd[random() % (sizeof odd / sizeof *odd)];
    case 1:
      return odd[random() % (sizeof odd / sizeof *odd)] + random() % 5 - 2;
    default:
      return random();
  }
}

struct Fuzz {
  int fd;
  char* file;  // mapped whole: what is cut is not touched
  std::vector<char> base;
  std::string path;
  std::mt19937_64 random;
  uint64_t rounds = 0, opened = 0, rows = 0;

  void change() {
    const Area& area = kAreas[random() % (sizeof kAreas / sizeof *kAreas)];
    uint64_t width = 1u << random() % 4;
    uint64_t at = area.begin + random() % area.bytes;
    if (random() % 4) at &= ~(width - 1);
    if (at + width > kFileBytes) return;
    uint64_t value = value_of(random);
    if (random() % 3 == 0) {
      file[at] = char(file[at] ^ 1 << random() % 8);
    } else {
      memcpy(file + at, &value, width);
    }
    changed.push_back(at);
  }
  std::vector<uint64_t> changed;

  void cut() {
    // 16 in 17 within the tables and the first ring, where it is read.
    uint64_t size = random() % 17 ? random() % (kRingsOffset + 70000 * sizeof(Record)) : random() % kFileBytes;
    require(ftruncate(fd, off_t(size)) == 0, "cut");
    is_cut = true;
  }
  bool is_cut = false;

  void restore() {
    if (is_cut) {
      require(ftruncate(fd, off_t(kFileBytes)) == 0, "grow");
      memcpy(file, base.data(), base.size());
    }
    for (uint64_t at : changed) memcpy(file + at, base.data() + at, std::min<uint64_t>(8, kFileBytes - at));
    changed.clear();
    is_cut = false;
  }

  void read() {
    static Drained out;
    SegmentReader reader;
    if (reader.open(path.c_str())) return;
    ++opened;
    if (random() % 8 == 0) cut();
    if (random() % 8 == 0) {
      std::string cursor = reader.cursor();
      for (int i = 0; i < 4; ++i) {
        uint64_t value = value_of(random);
        memcpy(&cursor[random() % (cursor.size() / 8) * 8], &value, 8);
      }
      require(reader.seek(cursor.data(), cursor.size()), "seek");
    }
    int64_t until = random() % 4 ? INT64_MAX : int64_t(value_of(random));
    for (int i = 0; i < 3; ++i) {
      out.clear();
      if (!reader.drain(random() % 2 ? 1 << 16 : random() % 300, until, &out)) break;
      check(out);
      if (!out.more) break;
    }
    std::vector<OpenNow> open;
    std::vector<OpenSince> since;
    std::vector<std::string> names;
    reader.open_now(&open);
    reader.open_since(&since);
    reader.names(uint32_t(value_of(random)), &names);
    reader.names(0, &names);
    require(open.size() <= size_t{kSlots} * kOpenDepth && since.size() <= kSlots, "as many regions as fit");
    require(names.size() <= 2 * kNames && reader.threads().size() <= kSlots, "as many names and threads as fit");
    for (const std::string& name : names) require(name.size() <= kNameBytes, "a name as long as a name");
    for (const OpenNow& region : open) require(region.depth < kOpenDepth, "depth");
    reader.events();
    reader.held();
    reader.commit();
    changed.push_back(kMarksOffset);
    for (uint64_t at = kMarksOffset; at < kMarksOffset + kSlots * sizeof(Mark); at += 8) changed.push_back(at);
  }

  void check(const Drained& out) {
    size_t events = out.start.size();
    require(events <= (1u << 16) + kFirstRing, "no more than was asked for");
    for (size_t size : {out.dur.size(), out.arg.size(), out.seq.size(), out.name.size(), out.line.size(),
                        out.kind.size(), out.flags.size(), out.flow.size(), out.weight.size()}) {
      require(size == events, "columns of one length");
    }
    require(out.arg_key.size() == out.arg_row.size() && out.arg_kind.size() == out.arg_row.size() &&
                out.arg_value.size() == out.arg_row.size(),
            "arguments of one length");
    require(out.link_kind.size() == out.link_row.size() && out.link_type.size() == out.link_row.size() &&
                out.link_id.size() == out.link_row.size(),
            "links of one length");
    for (int32_t row : out.link_row) require(row >= 0 && size_t(row) < events, "a link's event");
    for (int32_t row : out.arg_row) require(row >= 0 && size_t(row) < events, "an argument's event");
    for (int64_t dur : out.dur) require(dur >= 0, "no negative duration");
    for (int32_t weight : out.weight) require(weight > 0 && (weight & (weight - 1)) == 0, "a weight is 2^k");
    for (int32_t name : out.name) require(name >= 0 && uint32_t(name) < kNameLimit, "a name's id");
    rows += events;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return fprintf(stderr, "usage: %s SECONDS SEED FOLDER\n", argv[0]), 2;
  OpenResult made = open_segment(argv[3]);
  require(!made.error, "a segment");
  set_recording(true);
  write_something();
  Fuzz fuzz;
  fuzz.path = std::string(made.path) + ".fuzzed";
  fuzz.random.seed(uint64_t(atoll(argv[2])));
  const char* from = reinterpret_cast<const char*>(segment_header());
  fuzz.base.assign(from, from + kFileBytes);
  close_segment(true);
  fuzz.fd = open(fuzz.path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  require(fuzz.fd >= 0 && ftruncate(fuzz.fd, off_t(kFileBytes)) == 0, "a file");
  fuzz.file = static_cast<char*>(mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fuzz.fd, 0));
  require(fuzz.file != MAP_FAILED, "mmap");
  memcpy(fuzz.file, fuzz.base.data(), fuzz.base.size());
  for (time_t end = time(nullptr) + atoi(argv[1]); time(nullptr) < end; ++fuzz.rounds) {
    for (uint64_t i = fuzz.random() % 4; i < 4; ++i) fuzz.change();
    if (fuzz.random() % 16 == 0) fuzz.cut();
    fuzz.read();
    fuzz.restore();
  }
  unlink(fuzz.path.c_str());
  require(fuzz.opened * 4 > fuzz.rounds && fuzz.rows > fuzz.opened, "most of it reached the rings");
  printf("fuzz: %llu segments, %llu opened, %llu rows\n", (unsigned long long)fuzz.rounds,
         (unsigned long long)fuzz.opened, (unsigned long long)fuzz.rows);
  return 0;
}
