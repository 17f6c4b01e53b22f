#include "arrow.h"

#include <array>
#include <string>
#include <vector>

namespace fleetscope::xspace {

namespace {

constexpr int64_t kNullable = 2;  // ARROW_FLAG_NULLABLE

const char* format_of(Type type) {
  switch (type) {
    case Type::int8:
      return "c";
    case Type::int32:
    case Type::dictionary:
      return "i";
    case Type::int64:
      return "l";
    case Type::float64:
      return "g";
    case Type::utf8:
      return "u";
    case Type::binary:
      return "z";
  }
  return "n";
}

template <typename Node>
void release_child(Node* child) {
  if (child != nullptr && child->release != nullptr) child->release(child);
}

template <typename Node>
struct Children {
  std::vector<std::unique_ptr<Node>> owned;
  std::vector<Node*> pointers;
  std::unique_ptr<Node> dictionary;

  Node* add() {
    owned.push_back(std::make_unique<Node>());
    pointers.push_back(owned.back().get());
    return pointers.back();
  }
  ~Children() {
    for (Node* child : pointers) release_child(child);
    release_child(dictionary.get());
  }
};

struct SchemaOwner {
  std::string name;
  Children<ArrowSchema> children;
};

struct ArrayOwner {
  std::shared_ptr<const void> memory;
  std::array<const void*, 3> buffers{};
  Children<ArrowArray> children;
};

template <typename Node, typename Owner>
void release(Node* node) {
  delete static_cast<Owner*>(node->private_data);
  node->release = nullptr;
}

SchemaOwner* open_schema(ArrowSchema* out, const char* format, std::string name, int64_t flags) {
  auto* owner = new SchemaOwner{std::move(name), {}};
  *out = ArrowSchema{};
  out->format = format;
  out->name = owner->name.c_str();
  out->flags = flags;
  out->release = release<ArrowSchema, SchemaOwner>;
  out->private_data = owner;
  return owner;
}

ArrayOwner* open_array(ArrowArray* out, std::shared_ptr<const void> memory, int64_t length, int64_t nulls,
                       int64_t n_buffers) {
  auto* owner = new ArrayOwner{std::move(memory), {}, {}};
  *out = ArrowArray{};
  out->length = length;
  out->null_count = nulls;
  out->n_buffers = n_buffers;
  out->buffers = owner->buffers.data();
  out->release = release<ArrowArray, ArrayOwner>;
  out->private_data = owner;
  return owner;
}

void export_dictionary(const std::shared_ptr<const Dictionary>& dictionary, ArrowArray* out) {
  ArrayOwner* owner = open_array(out, dictionary, dictionary->length, 0, 3);
  owner->buffers = {nullptr, dictionary->offsets.data(), dictionary->values.data()};
  if (dictionary->length == 0) owner->buffers[2] = dictionary->offsets.data();
}

void export_column(const std::shared_ptr<const Table>& table, const Column& column, ArrowArray* out) {
  bool variable = column.type == Type::utf8 || column.type == Type::binary;
  bool absent = column.nullable && column.valid == 0;
  int64_t nulls = column.nullable ? table->rows - column.valid : 0;
  ArrayOwner* owner = open_array(out, table, table->rows, nulls, variable ? 3 : 2);
  const void* zeros = table->zeros.get();
  auto or_zeros = [zeros](const void* data) { return data == nullptr ? zeros : data; };
  if (nulls != 0) owner->buffers[0] = absent ? zeros : column.validity.data();
  owner->buffers[1] = absent ? zeros : or_zeros(column.values.data());
  if (variable) owner->buffers[2] = or_zeros(column.text.data());
  if (column.type == Type::dictionary) {
    owner->children.dictionary = std::make_unique<ArrowArray>();
    out->dictionary = owner->children.dictionary.get();
    export_dictionary(table->dictionary, out->dictionary);
  }
}

}  // namespace

void export_schema(const Table& table, ArrowSchema* out) {
  SchemaOwner* owner = open_schema(out, "+s", "", 0);
  for (const Column& column : table.columns) {
    ArrowSchema* child = owner->children.add();
    SchemaOwner* child_owner = open_schema(child, format_of(column.type), column.name, column.nullable ? kNullable : 0);
    if (column.type == Type::dictionary) {
      child_owner->children.dictionary = std::make_unique<ArrowSchema>();
      child->dictionary = child_owner->children.dictionary.get();
      open_schema(child->dictionary, "u", "", 0);
    }
  }
  out->n_children = static_cast<int64_t>(owner->children.pointers.size());
  out->children = owner->children.pointers.data();
}

void export_array(const std::shared_ptr<const Table>& table, ArrowArray* out) {
  ArrayOwner* owner = open_array(out, table, table->rows, 0, 1);
  for (const Column& column : table->columns) export_column(table, column, owner->children.add());
  out->n_children = static_cast<int64_t>(owner->children.pointers.size());
  out->children = owner->children.pointers.data();
}

}  // namespace fleetscope::xspace
