#include "decode.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <new>

#include "index.h"
#include "layout.h"

namespace fleetscope::xspace {

namespace {

struct Stat {
  int64_t id = 0;
  uint32_t kind = 0;
  uint64_t bits = 0;
  double real = 0;
  Bytes bytes;
};

struct StatName {
  int64_t id;
  Bytes name, description;
  int32_t code = -1;  // of the name in the dictionary, once asked for
  int16_t event_column = -1;
  int16_t metadata_column = -1;
};

struct Entry {
  int64_t id;
  Bytes value;
  uint64_t offset;
};

template <size_t N>
void add_columns(Table& table, const std::array<ColumnSpec, N>& specs) {
  for (const ColumnSpec& spec : specs) table.columns.push_back({spec.name, spec.type, spec.nullable, {}, {}, {}});
}

template <size_t N>
void add_columns(Table& table, const std::array<StatSpec, N>& specs) {
  for (const StatSpec& spec : specs) table.columns.push_back({spec.column, spec.type, true, {}, {}, {}});
}

template <size_t N>
int16_t column_of(const std::array<StatSpec, N>& specs, Bytes stat, size_t first) {
  // Most names of a large capture are texts that refs point to, far longer than any stat's name.
  if (stat.size() > kLongestStat) return -1;
  for (size_t i = 0; i < N; ++i) {
    if (specs[i].stat == stat) return static_cast<int16_t>(first + i);
  }
  return -1;
}

class Decoder {
 public:
  Decoder(Bytes message, uint64_t limit)
      : message_(message), shared_memory_(std::make_shared<Memory>(limit, 4 * message.size() + 4096)) {
    add_columns(*planes_, kPlanes);
    add_columns(*lines_, kLines);
    add_columns(*events_, kEvents);
    add_columns(*events_, kEventStats);
    add_columns(*event_metadata_, kEventMetadata);
    add_columns(*event_metadata_, kEventMetadataStats);
    add_columns(*stat_metadata_, kStatMetadata);
    add_columns(*stats_, kStats);
    add_columns(*messages_, kMessages);
  }

  void run(Decoded& out) {
    if (message_.size() > INT32_MAX) throw Malformed{Fault::too_large, 0};
    count();
    for (Reader reader(message_, 0); !reader.done();) {
      uint32_t tag = reader.tag();
      switch (tag) {
        case tag_of(1, kBytes):
          space_plane(bytes(reader));
          break;
        case tag_of(2, kBytes):
          message(kError, bytes(reader));
          break;
        case tag_of(3, kBytes):
          message(kWarning, bytes(reader));
          break;
        case tag_of(4, kBytes):
          message(kHostname, bytes(reader));
          break;
        default:
          reader.skip(tag);
      }
    }
    dictionary_->finish(memory_);
    dictionary_->memory = shared_memory_;
    const std::array tables{planes_, lines_, events_, event_metadata_, stat_metadata_, stats_, messages_};
    int64_t most = 0;
    for (const auto& table : tables) most = std::max(most, table->rows);
    // Never written, and read only by who looks at a column that is null throughout.
    std::shared_ptr<void> zeros(std::calloc(static_cast<size_t>(most) + 8, 8), std::free);
    if (zeros == nullptr) throw std::bad_alloc();
    for (const auto& table : tables) {
      table->finish(memory_);
      table->dictionary = dictionary_;
      table->memory = shared_memory_;
      table->zeros = zeros;
    }
    out.planes = planes_;
    out.lines = lines_;
    out.events = events_;
    out.event_metadata = event_metadata_;
    out.stat_metadata = stat_metadata_;
    out.stats = stats_;
    out.messages = messages_;
    out.replaced_utf8 = utf8_.replaced();
    out.memory_bytes = memory_.used();
  }

 private:
  Reader sub(Bytes bytes) const { return Reader(bytes, offset_of(bytes)); }

  // Merged map values live outside the message; they report the offset of the entry they came from.
  uint64_t offset_of(Bytes bytes) const {
    auto at = reinterpret_cast<uintptr_t>(bytes.data());
    auto begin = reinterpret_cast<uintptr_t>(message_.data());
    return at >= begin && at <= begin + message_.size() ? at - begin : memory_.at;
  }

  Bytes bytes(Reader& reader) {
    memory_.at = reader.offset();
    return reader.bytes();
  }

  // Rows of most tables, found by field headers alone: their columns are allocated once, at their size.
  void count() {
    int64_t planes = 0, lines = 0, events = 0, metadata = 0, names = 0;
    for (Reader space(message_, 0); !space.done();) {
      uint32_t tag = space.tag();
      if (tag != tag_of(1, kBytes)) {
        space.skip(tag);
        continue;
      }
      ++planes;
      for (Reader plane = sub(space.bytes()); !plane.done();) {
        tag = plane.tag();
        if (tag != tag_of(3, kBytes)) {
          metadata += tag == tag_of(4, kBytes);
          names += tag == tag_of(5, kBytes);
          plane.skip(tag);
          continue;
        }
        ++lines;
        for (Reader line = sub(plane.bytes()); !line.done();) {
          tag = line.tag();
          line.skip(tag);
          events += tag == tag_of(4, kBytes);
        }
      }
    }
    planes_->reserve(planes, memory_, true);
    lines_->reserve(lines, memory_, true);
    events_->reserve(events, memory_, true);
    event_metadata_->reserve(metadata, memory_, true);
    stat_metadata_->reserve(names, memory_, true);
    for (size_t i = 0; i < kEvents.size(); ++i) {
      if (!kEvents[i].nullable && events != 0) events_->allocate(events_->columns[i], memory_);
    }
  }

  template <typename T>
  void put(Table& table, size_t column, T value) {
    table.put(column, value, memory_);
  }
  void put_text(Table& table, size_t column, Bytes text) {
    table.put_bytes(column, utf8_.clean(text, memory_), memory_);
  }

  void message(Message kind, Bytes text) {
    messages_->reserve(1, memory_);
    put<int8_t>(*messages_, 0, kind);
    put_text(*messages_, 1, text);
    ++messages_->rows;
  }

  // The dictionaries of a plane follow its lines in the bytes, so a plane is skimmed three times by field header;
  // what a field holds is read once.
  void space_plane(Bytes plane) {
    names_.clear();
    name_index_.clear();
    metadata_index_.clear();
    entries_.clear();
    plane_ = static_cast<int32_t>(planes_->rows);

    int64_t id = 0;
    Bytes name;
    for (Reader reader = sub(plane); !reader.done();) {
      uint32_t tag = reader.tag();
      switch (tag) {
        case tag_of(1, kVarint):
          id = static_cast<int64_t>(reader.varint());
          break;
        case tag_of(2, kBytes):
          name = bytes(reader);
          break;
        case tag_of(4, kBytes):
          add_entry(bytes(reader));
          break;
        case tag_of(5, kBytes):
          add_stat_name(bytes(reader));
          break;
        default:
          reader.skip(tag);
      }
    }
    put(*planes_, 0, plane_);
    put(*planes_, 1, id);
    put_text(*planes_, 2, name);
    for (const StatName& stat : names_) {
      put(*stat_metadata_, 0, plane_);
      put(*stat_metadata_, 1, stat.id);
      put_text(*stat_metadata_, 2, stat.name);
      put_text(*stat_metadata_, 3, stat.description);
      ++stat_metadata_->rows;
    }
    first_metadata_ = event_metadata_->rows;
    for (const Entry& entry : entries_) metadata_row(entry);
    for (Reader reader = sub(plane); !reader.done();) {
      uint32_t tag = reader.tag();
      switch (tag) {
        case tag_of(3, kBytes):
          line(bytes(reader));
          break;
        case tag_of(6, kBytes):
          stat(bytes(reader), kOfPlane);
          break;
        default:
          reader.skip(tag);
      }
    }
    ++planes_->rows;
  }

  // A map entry {key = 1, value = 2}; a value spelt more than once is merged, which for protobuf is concatenation.
  Entry map_entry(Bytes bytes_of_entry) {
    Entry entry{0, {}, offset_of(bytes_of_entry)};
    bool seen = false;
    for (Reader reader = sub(bytes_of_entry); !reader.done();) {
      uint32_t tag = reader.tag();
      if (tag == tag_of(1, kVarint)) {
        entry.id = static_cast<int64_t>(reader.varint());
      } else if (tag == tag_of(2, kBytes)) {
        Bytes value = bytes(reader);
        if (seen) {
          memory_.charge(entry.value.size() + value.size());
          std::string& both = merged_.emplace_back(entry.value);
          both.append(value);
          value = both;
        }
        entry.value = value;
        seen = true;
      } else {
        reader.skip(tag);
      }
    }
    return entry;
  }

  void add_entry(Bytes bytes_of_entry) {
    Entry entry = map_entry(bytes_of_entry);
    int32_t known = metadata_index_.find(entry.id);
    if (known >= 0) {
      entries_[static_cast<size_t>(known)] = entry;
      return;
    }
    memory_.charge(sizeof(Entry));
    metadata_index_.put(entry.id, static_cast<int32_t>(entries_.size()));
    entries_.push_back(entry);
  }

  void add_stat_name(Bytes bytes_of_entry) {
    Entry entry = map_entry(bytes_of_entry);
    StatName stat{entry.id, {}, {}};
    memory_.at = entry.offset;
    for (Reader reader = sub(entry.value); !reader.done();) {
      uint32_t tag = reader.tag();
      switch (tag) {
        case tag_of(2, kBytes):
          stat.name = reader.bytes();
          break;
        case tag_of(3, kBytes):
          stat.description = reader.bytes();
          break;
        default:
          reader.skip(tag);
      }
    }
    stat.event_column = column_of(kEventStats, stat.name, kEvents.size());
    stat.metadata_column = column_of(kEventMetadataStats, stat.name, kEventMetadata.size());
    int32_t known = name_index_.find(stat.id);
    if (known >= 0) {
      names_[static_cast<size_t>(known)] = stat;
      return;
    }
    memory_.charge(sizeof(StatName));
    name_index_.put(stat.id, static_cast<int32_t>(names_.size()));
    names_.push_back(stat);
  }

  void metadata_row(const Entry& entry) {
    Table& table = *event_metadata_;
    Bytes name, display_name, metadata;
    memory_.at = entry.offset;
    for (Reader reader = sub(entry.value); !reader.done();) {
      uint32_t tag = reader.tag();
      switch (tag) {
        case tag_of(2, kBytes):
          name = reader.bytes();
          break;
        case tag_of(3, kBytes):
          metadata = reader.bytes();
          break;
        case tag_of(4, kBytes):
          display_name = reader.bytes();
          break;
        case tag_of(5, kBytes):
          stat(reader.bytes(), kOfEventMetadata);
          break;
        case tag_of(6, kBytes): {
          for (Reader packed = sub(reader.bytes()); !packed.done();) packed.varint();
          break;
        }
        default:
          reader.skip(tag);
      }
    }
    put(table, 0, plane_);
    put(table, 1, entry.id);
    put_text(table, 2, name);
    put_text(table, 3, display_name);
    if (!metadata.empty()) table.put_bytes(4, metadata, memory_);
    ++table.rows;
  }

  void line(Bytes line) {
    int64_t id = 0, display_id = 0, timestamp_ns = 0, duration_ps = 0, first = events_->rows;
    Bytes name, display_name;
    line_ = static_cast<int32_t>(lines_->rows);
    for (Reader reader = sub(line); !reader.done();) {
      uint32_t tag = reader.tag();
      switch (tag) {
        case tag_of(1, kVarint):
          id = static_cast<int64_t>(reader.varint());
          break;
        case tag_of(2, kBytes):
          name = reader.bytes();
          break;
        case tag_of(3, kVarint):
          timestamp_ns = static_cast<int64_t>(reader.varint());
          break;
        case tag_of(4, kBytes):
          event(bytes(reader));
          break;
        case tag_of(9, kVarint):
          duration_ps = static_cast<int64_t>(reader.varint());
          break;
        case tag_of(10, kVarint):
          display_id = static_cast<int64_t>(reader.varint());
          break;
        case tag_of(11, kBytes):
          display_name = reader.bytes();
          break;
        default:
          reader.skip(tag);
      }
    }
    Table& table = *lines_;
    put(table, 0, plane_);
    put(table, 1, line_);
    put(table, 2, id);
    put(table, 3, display_id);
    put_text(table, 4, name);
    put_text(table, 5, display_name);
    put(table, 6, timestamp_ns);
    put(table, 7, duration_ps);
    put(table, 8, first);
    put(table, 9, events_->rows - first);
    ++table.rows;
  }

  void event(Bytes event) {
    int64_t metadata_id = 0, duration_ps = 0, offset_ps = 0, occurrences = 0;
    bool aggregated = false;
    for (Reader reader = sub(event); !reader.done();) {
      uint32_t tag = reader.tag();
      switch (tag) {
        case tag_of(1, kVarint):
          metadata_id = static_cast<int64_t>(reader.varint());
          break;
        case tag_of(2, kVarint):
          offset_ps = static_cast<int64_t>(reader.varint());
          aggregated = false;
          break;
        case tag_of(3, kVarint):
          duration_ps = static_cast<int64_t>(reader.varint());
          break;
        case tag_of(4, kBytes):
          stat(reader.bytes(), kOfEvent);
          break;
        case tag_of(5, kVarint):
          occurrences = static_cast<int64_t>(reader.varint());
          aggregated = true;
          break;
        default:
          reader.skip(tag);
      }
    }
    Table& table = *events_;
    std::vector<Column>& columns = table.columns;
    int64_t at = table.rows;
    columns[0].as<int32_t>()[at] = plane_;
    columns[1].as<int32_t>()[at] = line_;
    columns[2].as<int64_t>()[at] = metadata_id;
    columns[4].as<int64_t>()[at] = aggregated ? 0 : offset_ps;
    columns[5].as<int64_t>()[at] = duration_ps;
    int32_t row = metadata_index_.find(metadata_id);
    if (row >= 0) put(table, 3, static_cast<int32_t>(first_metadata_ + row));
    if (aggregated) put(table, 6, occurrences);
    ++table.rows;
  }

  void stat(Bytes bytes_of_stat, Owner owner) {
    Stat stat;
    for (Reader reader = sub(bytes_of_stat); !reader.done();) {
      uint32_t tag = reader.tag();
      switch (tag) {
        case tag_of(1, kVarint):
          stat.id = static_cast<int64_t>(reader.varint());
          break;
        case tag_of(2, kFixed64):
          stat.real = reader.fixed64_double();
          stat.kind = 2;
          break;
        case tag_of(3, kVarint):
        case tag_of(4, kVarint):
        case tag_of(7, kVarint):
          stat.bits = reader.varint();
          stat.kind = tag >> 3;
          break;
        case tag_of(5, kBytes):
        case tag_of(6, kBytes):
          stat.bytes = reader.bytes();
          stat.kind = tag >> 3;
          break;
        default:
          reader.skip(tag);
      }
    }
    int32_t at = name_index_.find(stat.id);
    StatName* name = at < 0 ? nullptr : &names_[static_cast<size_t>(at)];
    int16_t column = name == nullptr || owner == kOfPlane ? int16_t{-1}
                     : owner == kOfEvent                  ? name->event_column
                                                          : name->metadata_column;
    Table& table = owner == kOfEvent ? *events_ : *event_metadata_;
    if (column < 0 || !put_typed(table, static_cast<size_t>(column), stat)) {
      put_generic(owner, name, stat);
    }
  }

  // False when the value has another kind than the column, or the row has a value already (the first one counts,
  // as in XProf's visitor).
  bool put_typed(Table& table, size_t at, const Stat& stat) {
    const Column& column = table.columns[at];
    if (column.has(table.rows)) return false;
    switch (column.type) {
      case Type::int64:
        if (stat.kind != 3 && stat.kind != 4) return false;
        put(table, at, stat.bits);
        return true;
      case Type::dictionary: {
        int32_t code = text_code(stat);
        if (code < 0) return false;
        put(table, at, code);
        return true;
      }
      case Type::binary:
        if (stat.kind != 6) return false;
        table.put_bytes(at, stat.bytes, memory_);
        return true;
      default:
        return false;
    }
  }

  int32_t text_code(const Stat& stat) {
    if (stat.kind == 5) return dictionary_->code(stat.bytes, utf8_, memory_);
    if (stat.kind != 7) return -1;
    int32_t at = name_index_.find(static_cast<int64_t>(stat.bits));
    return at < 0 ? -1 : name_code(names_[static_cast<size_t>(at)]);
  }

  int32_t name_code(StatName& name) {
    if (name.code < 0) name.code = dictionary_->code(name.name, utf8_, memory_);
    return name.code;
  }

  void grow_generic() {
    // A capture with stats of other kinds than ours has about one in 43 bytes.
    stats_->reserve(static_cast<int64_t>(message_.size() / 40) + 64, memory_);
    std::vector<Column>& columns = stats_->columns;
    for (size_t i : {0, 1, 2, 3, 4}) stats_->allocate(columns[i], memory_);
    generic_ = {columns[0].as<int8_t>(), columns[1].as<int32_t>(), columns[2].as<int32_t>(), columns[3].as<int8_t>(),
                columns[4].as<uint64_t>()};
  }

  void put_generic(Owner owner, StatName* name, const Stat& stat) {
    const int64_t rows[] = {plane_, event_metadata_->rows, events_->rows};
    Table& table = *stats_;
    int64_t at = table.rows;
    if (at == table.capacity) grow_generic();
    generic_.owner[at] = owner;
    generic_.row[at] = static_cast<int32_t>(rows[owner]);
    generic_.kind[at] = static_cast<int8_t>(stat.kind);
    if (name != nullptr) {
      generic_.name[at] = name_code(*name);
      table.mark(table.columns[2]);
    } else {
      put(table, 8, stat.id);
    }
    switch (stat.kind) {
      case 2:
        put(table, 5, stat.real);
        break;
      case 3:
      case 4:
      case 7:
        generic_.int_value[at] = stat.bits;
        table.mark(table.columns[4]);
        break;
      case 5:
        put_text(table, 6, stat.bytes);
        break;
      case 6:
        table.put_bytes(7, stat.bytes, memory_);
        break;
      default:
        break;
    }
    if (stat.kind == 7) {
      int32_t named = name_index_.find(static_cast<int64_t>(stat.bits));
      if (named >= 0) put_text(table, 6, names_[static_cast<size_t>(named)].name);
    }
    ++table.rows;
  }

  Bytes message_;
  std::shared_ptr<Memory> shared_memory_;
  Memory& memory_ = *shared_memory_;
  Utf8 utf8_;
  std::deque<std::string> merged_;
  std::shared_ptr<Dictionary> dictionary_ = std::make_shared<Dictionary>();
  std::shared_ptr<Table> planes_ = std::make_shared<Table>(), lines_ = std::make_shared<Table>(),
                         events_ = std::make_shared<Table>(), event_metadata_ = std::make_shared<Table>(),
                         stat_metadata_ = std::make_shared<Table>(), stats_ = std::make_shared<Table>(),
                         messages_ = std::make_shared<Table>();

  std::vector<StatName> names_;
  std::vector<Entry> entries_;
  Index name_index_{memory_}, metadata_index_{memory_};
  struct {
    int8_t* owner;
    int32_t *row, *name;
    int8_t* kind;
    uint64_t* int_value;
  } generic_{};
  int32_t plane_ = 0;
  int32_t line_ = 0;
  int64_t first_metadata_ = 0;
};

}  // namespace

Decoded decode(Bytes message, uint64_t memory_limit) noexcept {
  Decoded out;
  try {
    if (memory_limit == 0) memory_limit = 64 * static_cast<uint64_t>(message.size()) + (uint64_t{16} << 20);
    Decoder(message, memory_limit).run(out);
  } catch (const Malformed& malformed) {
    out = Decoded{};
    out.fault = malformed.fault;
    out.fault_offset = malformed.offset;
  } catch (const std::exception&) {  // bad_alloc, or a container's length_error
    out = Decoded{};
    out.fault = Fault::out_of_memory;
  }
  return out;
}

}  // namespace fleetscope::xspace
