// SPDX-License-Identifier: Apache-2.0
// Opens a catalog that may be hostile. The order is: read the state, copy the header, check the copy, copy
// records, names and metadata, check the copies, look again whether the state moved. Nothing after the copy
// reads the shared bytes again, except tensor data through the views.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <unordered_map>

#include "core/os/fault_guard.h"
#include "libclient/tensor/catalog_bytes.h"
#include "terrace/catalog.h"

namespace terrace {

using layout::CatalogHeader;
using layout::CatalogState;
using layout::TensorRecord;

struct CatalogReader::Contents {
  CatalogHeader header{};
  std::vector<char> names;
  TensorMetadata metadata;
  std::vector<TensorView> tensors;
  std::unordered_map<std::string_view, size_t> index;
  uint64_t data_bytes = 0;
};

namespace {

constexpr const char* where = "CatalogReader::open";

Error refuse(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = where, .detail = std::move(detail)};
}

Error corrupt(const std::string& what) {
  return refuse(ErrorCode::corrupt, "tensor catalog: " + what + "; import the tensors again");
}

uint32_t load_state(const CatalogHeader& header) {
  // atomic_ref wants a non-const object; loading changes nothing, and works on read-only mappings.
  // acquire: pairs with the release of CatalogWriter::publish.
  return std::atomic_ref<uint32_t>(const_cast<uint32_t&>(header.state)).load(std::memory_order_acquire);
}

// Whether [offset, offset + bytes) lies in [begin, end).
bool inside(uint64_t offset, uint64_t bytes, uint64_t begin, uint64_t end) {
  return begin <= end && offset >= begin && offset <= end && bytes <= end - offset;
}

Status check_header(const CatalogHeader& header, uint64_t span_bytes) {
  if (header.version_major != layout::catalog_version_major) {
    return refuse(ErrorCode::version_mismatch, "tensor catalog: format version " +
                                                   std::to_string(header.version_major) +
                                                   ", this program reads version 1");
  }
  if (header.header_checksum != catalog_bytes::header_checksum(header)) {
    return corrupt("the header does not have its checksum");
  }
  if ((header.features_required & ~layout::catalog_features_required_known) != 0) {
    return refuse(ErrorCode::version_mismatch, "tensor catalog: it needs features unknown to this program");
  }
  if (header.header_bytes != sizeof(CatalogHeader) || header.record_bytes != sizeof(TensorRecord)) {
    return corrupt("header or record size is not that of version 1");
  }
  if (header.total_bytes < sizeof(CatalogHeader) || header.total_bytes > span_bytes) {
    return corrupt("it says to have " + std::to_string(header.total_bytes) + " bytes, the memory has " +
                   std::to_string(span_bytes));
  }
  if (header.record_count > layout::catalog_records_max ||
      header.names_bytes > layout::catalog_names_bytes_max ||
      header.metadata_bytes > layout::catalog_metadata_bytes_max ||
      header.metadata_entries > layout::catalog_metadata_entries_max) {
    return corrupt("more records, names or metadata than the format allows");
  }
  // The parts come in this order and do not overlap.
  const uint64_t records_bytes = uint64_t{header.record_count} * sizeof(TensorRecord);
  const uint64_t total = header.total_bytes;
  if (!inside(header.records_offset, records_bytes, sizeof(CatalogHeader), total) ||
      !inside(header.names_offset, header.names_bytes, header.records_offset + records_bytes, total) ||
      !inside(header.metadata_offset, header.metadata_bytes, header.names_offset + header.names_bytes, total) ||
      !inside(header.data_offset, header.data_bytes, header.metadata_offset + header.metadata_bytes, total)) {
    return corrupt("its parts overlap or leave its memory");
  }
  if (header.records_offset % 64 != 0 || header.data_offset % layout::catalog_data_alignment_bytes != 0) {
    return corrupt("records or data are not aligned");
  }
  return {};
}

// The number of bytes that the strides reach, in whole bytes; nothing when negative or beyond 2^64.
std::optional<uint64_t> reach_bytes(DType dtype, const Shape& shape, const Strides& strides) {
  uint64_t last = 0;
  for (uint32_t index = 0; index < shape.rank(); ++index) {
    if (shape[index] == 0) return 0;
    if (strides[index] < 0) return std::nullopt;
    uint64_t step = 0;
    if (__builtin_mul_overflow(shape[index] - 1, static_cast<uint64_t>(strides[index]), &step) ||
        __builtin_add_overflow(last, step, &last)) {
      return std::nullopt;
    }
  }
  uint64_t bits = 0;
  if (__builtin_add_overflow(last, uint64_t{1}, &last) ||
      __builtin_mul_overflow(last, uint64_t{dtype_bits(dtype)}, &bits)) {
    return std::nullopt;
  }
  return bits / 8 + (bits % 8 != 0 ? 1 : 0);
}

struct Extent {
  uint64_t offset;
  uint64_t bytes;
};

class RecordCheck {
 public:
  RecordCheck(std::span<const std::byte> memory, const CatalogHeader& header, std::string_view names)
      : memory_(memory), header_(header), names_(names) {}

  Result<TensorView> view(const TensorRecord& record, uint32_t index) {
    const std::string who = "record " + std::to_string(index);
    if (!inside(record.name_offset, record.name_bytes, 0, names_.size()) || record.name_bytes == 0 ||
        record.name_bytes > layout::tensor_name_bytes_max) {
      return corrupt(who + ": its name lies outside the names");
    }
    TensorView view;
    view.name = names_.substr(record.name_offset, record.name_bytes);
    const std::string tensor = "tensor " + quoted_name(view.name);
    if (view.name.find('\0') != std::string_view::npos) return corrupt(tensor + ": its name contains a NUL");
    if (!is_utf8(view.name)) return corrupt(tensor + ": its name is not UTF-8");
    TERRACE_RETURN_IF_ERROR(check_hot_line(record, index, view.name, tensor));
    TERRACE_RETURN_IF_ERROR(describe(record, tensor, view));
    TERRACE_RETURN_IF_ERROR(place(record, tensor, view));
    return view;
  }

  // C2, once all records were seen.
  Status check_overlaps() {
    std::sort(extents_.begin(), extents_.end(),
              [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
    for (size_t index = 1; index < extents_.size(); ++index) {
      if (extents_[index - 1].offset + extents_[index - 1].bytes > extents_[index].offset) {
        return corrupt("two tensors share bytes");
      }
    }
    return {};
  }

 private:
  static Status check_hot_line(const TensorRecord& record, uint32_t index, std::string_view name,
                               const std::string& tensor) {
    if (record.line_checksum != catalog_bytes::hot_line_checksum(record)) {
      return corrupt(tensor + ": its record does not have its checksum");
    }
    if (record.id != index || record.name_hash != catalog_bytes::name_hash(name)) {
      return corrupt(tensor + ": its record is another tensor's");
    }
    if (record.state != static_cast<uint32_t>(layout::TensorState::stable) || record.version % 2 != 0) {
      return corrupt(tensor + ": it is not in a stable state");
    }
    return {};
  }

  static Status describe(const TensorRecord& record, const std::string& tensor, TensorView& view) {
    const std::optional<DType> dtype = dtype_from_number(record.dtype);
    const std::optional<TensorHint> hint = hint_from_number(record.hint);
    if (!dtype || !hint || (record.flags & ~TensorFlags::all) != 0 || record.rank > layout::tensor_rank_max) {
      return corrupt(tensor + ": unknown dtype, hint, flags or rank");
    }
    Result<Shape> shape = Shape::from(std::span(record.shape).first(record.rank));
    if (!shape.ok()) return corrupt(tensor + ": " + shape.error().detail);
    for (uint32_t index = record.rank; index < layout::tensor_rank_max; ++index) {
      if (record.shape[index] != 0 || record.strides[index] != 0) {
        return corrupt(tensor + ": dimensions beyond its rank");
      }
    }
    view.dtype = *dtype;
    view.hint = *hint;
    view.flags = record.flags;
    view.shape = *shape;
    std::copy(std::begin(record.strides), std::end(record.strides), view.strides.begin());
    view.crc32c = record.data_checksum;
    view.version = record.version;
    const Result<uint64_t> bytes = tensor_bytes(view.dtype, view.shape);
    if (!bytes.ok()) return corrupt(tensor + ": " + bytes.error().detail);
    const std::optional<uint64_t> reach = reach_bytes(view.dtype, view.shape, view.strides);
    if (*bytes != record.data_bytes || !reach || *reach > record.data_bytes) {
      return corrupt(tensor + ": dtype, shape and strides do not fit its " + std::to_string(record.data_bytes) +
                     " bytes");
    }
    return {};
  }

  Status place(const TensorRecord& record, const std::string& tensor, TensorView& view) {
    if (record.slot_count == 0 || record.slot_count > layout::tensor_slots_max ||
        record.slot >= record.slot_count || record.slot_stride_bytes < record.data_bytes ||
        record.slot_stride_bytes % layout::tensor_alignment_bytes != 0 ||
        record.data_offset % layout::tensor_alignment_bytes != 0) {
      return corrupt(tensor + ": its slots make no sense");
    }
    // The last slot may end with its data; the ones before it take their whole stride.
    uint64_t before = 0;
    uint64_t whole = 0;
    if (__builtin_mul_overflow(record.slot_stride_bytes, uint64_t{record.slot_count} - 1, &before) ||
        __builtin_add_overflow(before, record.data_bytes, &whole) ||
        !inside(record.data_offset, whole, header_.data_offset, header_.data_offset + header_.data_bytes)) {
      return corrupt(tensor + ": its bytes lie outside the data");
    }
    if (whole > 0) extents_.push_back({record.data_offset, whole});
    const uint64_t offset = record.data_offset + record.slot * record.slot_stride_bytes;
    view.bytes = memory_.subspan(offset, record.data_bytes);
    return {};
  }

  std::span<const std::byte> memory_;
  const CatalogHeader& header_;
  std::string_view names_;
  std::vector<Extent> extents_;
};

Result<TensorMetadata> parse_metadata(std::span<const std::byte> bytes, uint32_t entries) {
  TensorMetadata metadata;
  for (uint32_t entry = 0; entry < entries; ++entry) {
    uint32_t sizes[2];
    if (bytes.size() < sizeof sizes) return corrupt("its metadata ends early");
    std::memcpy(sizes, bytes.data(), sizeof sizes);
    bytes = bytes.subspan(sizeof sizes);
    if (uint64_t{sizes[0]} + sizes[1] > bytes.size()) return corrupt("its metadata ends early");
    const auto* text = reinterpret_cast<const char*>(bytes.data());
    std::string key(text, sizes[0]);
    std::string value(text + sizes[0], sizes[1]);
    if (!is_utf8(key) || !is_utf8(value)) return corrupt("metadata " + quoted_name(key) + " is not UTF-8");
    metadata.emplace_back(std::move(key), std::move(value));
    bytes = bytes.subspan(uint64_t{sizes[0]} + sizes[1]);
  }
  if (!bytes.empty()) return corrupt("bytes behind its metadata");
  return metadata;
}

}  // namespace

namespace {

bool copy_out(std::span<const std::byte> memory, uint64_t offset, std::span<std::byte> into) {
  if (into.empty()) return true;
  return os::guarded({memory}, [&] { std::memcpy(into.data(), memory.data() + offset, into.size()); });
}

}  // namespace

CatalogReader::CatalogReader(std::shared_ptr<const Contents> contents)
    : contents_(std::move(contents)), tensors_(contents_->tensors) {}

Result<CatalogReader> CatalogReader::open(std::span<const std::byte> memory) try {
  if (memory.size() < sizeof(CatalogHeader)) {
    return refuse(ErrorCode::not_found, "no tensor catalog here: the memory is shorter than its header");
  }
  if (reinterpret_cast<uintptr_t>(memory.data()) % layout::tensor_alignment_bytes != 0) {
    return refuse(ErrorCode::invalid_argument, "the memory must be 64-byte aligned");
  }
  const auto& shared = *reinterpret_cast<const CatalogHeader*>(memory.data());
  auto contents = std::make_shared<Contents>();
  CatalogHeader& header = contents->header;
  uint32_t state = 0;
  const bool there = os::guarded({memory}, [&] {
    state = load_state(shared);
    std::memcpy(&header, &shared, sizeof header);
  });
  if (!there) return catalog_bytes::memory_gone(where);
  if (header.magic != layout::catalog_magic) {
    return refuse(ErrorCode::not_found, "no tensor catalog here; `terrace tensor import` makes one");
  }
  if (state != static_cast<uint32_t>(CatalogState::published)) {
    return refuse(ErrorCode::busy,
                  "tensor catalog: it is being written, or its writer died; wait, or import the tensors again");
  }
  TERRACE_RETURN_IF_ERROR(check_header(header, memory.size()));

  std::vector<TensorRecord> records(header.record_count);
  if (!copy_out(memory, header.records_offset, std::as_writable_bytes(std::span(records))))
    return catalog_bytes::memory_gone(where);
  uint32_t checksum = 0;
  for (const TensorRecord& record : records) checksum = catalog_bytes::cold_lines_checksum(record, checksum);
  if (checksum != header.records_checksum) return corrupt("the records do not have their checksum");

  contents->names.resize(header.names_bytes);
  if (!copy_out(memory, header.names_offset, std::as_writable_bytes(std::span(contents->names))))
    return catalog_bytes::memory_gone(where);
  const std::string_view all_names(contents->names.data(), contents->names.size());
  if (crc32c(catalog_bytes::bytes_of(all_names)) != header.names_checksum) {
    return corrupt("the names do not have their checksum");
  }
  std::vector<std::byte> metadata(header.metadata_bytes);
  if (!copy_out(memory, header.metadata_offset, metadata)) return catalog_bytes::memory_gone(where);
  if (crc32c(metadata) != header.metadata_checksum) return corrupt("the metadata does not have its checksum");
  TERRACE_ASSIGN_OR_RETURN(contents->metadata, parse_metadata(metadata, header.metadata_entries));

  // The copies above must not sink below the second look at the state.
  catalog_bytes::barrier(std::memory_order_acquire);  // pairs with the barrier of CatalogWriter::begin
  uint64_t generation = 0;
  const bool still_there = os::guarded({memory}, [&] {
    std::memcpy(&generation, &shared.generation, sizeof generation);
    state = load_state(shared);
  });
  if (!still_there) return catalog_bytes::memory_gone(where);
  if (state != static_cast<uint32_t>(CatalogState::published) || generation != header.generation) {
    return refuse(ErrorCode::busy, "tensor catalog: it was rewritten while it was read; try again");
  }

  RecordCheck check(memory, header, all_names);
  contents->tensors.reserve(records.size());
  contents->index.reserve(records.size());
  for (uint32_t index = 0; index < header.record_count; ++index) {
    TERRACE_ASSIGN_OR_RETURN(TensorView view, check.view(records[index], index));
    if (!contents->index.emplace(view.name, index).second) {
      return corrupt("tensor " + quoted_name(view.name) + " comes twice");
    }
    contents->data_bytes += view.bytes.size();
    contents->tensors.push_back(view);
  }
  TERRACE_RETURN_IF_ERROR(check.check_overlaps());
  return CatalogReader(std::move(contents));
} catch (const std::bad_alloc&) {
  return refuse(ErrorCode::out_of_memory, "tensor catalog: no local memory for its index");
}

Result<TensorView> CatalogReader::find(std::string_view name) const {
  const auto found = contents_->index.find(name);
  if (found == contents_->index.end()) {
    return Error{.code = ErrorCode::not_found,
                 .where = "CatalogReader::find",
                 .detail = "no tensor " + quoted_name(name) + " in this catalog"};
  }
  return tensors_[found->second];
}

const TensorMetadata& CatalogReader::metadata() const {
  return contents_->metadata;
}
uint64_t CatalogReader::generation() const {
  return contents_->header.generation;
}
LeaseEpoch CatalogReader::lease_epoch() const {
  return {contents_->header.owner_lease_epoch};
}
uint64_t CatalogReader::total_bytes() const {
  return contents_->header.total_bytes;
}
uint64_t CatalogReader::data_bytes() const {
  return contents_->data_bytes;
}

Status CatalogReader::verify(size_t index) const {
  const TensorView& view = tensors_[index];
  uint32_t sum = 0;
  if (!os::guarded({view.bytes}, [&] { sum = crc32c(view.bytes); }))
    return catalog_bytes::memory_gone("CatalogReader::verify");
  if (sum == view.crc32c) return {};
  return Error{.code = ErrorCode::corrupt,
               .where = "CatalogReader::verify",
               .detail = "tensor " + quoted_name(view.name) + ": its bytes do not have the recorded checksum"};
}

}  // namespace terrace
