// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstring>

#include "core/base/clock.h"
#include "core/base/units.h"
#include "core/os/fault_guard.h"
#include "libclient/tensor/catalog_bytes.h"
#include "libclient/tensor/parallel.h"
#include "terrace/catalog.h"

namespace terrace {
namespace {

using layout::CatalogHeader;
using layout::CatalogState;
using layout::TensorRecord;

Error refuse(ErrorCode code, const char* where, std::string detail) {
  return Error{.code = code, .where = where, .detail = std::move(detail)};
}

// release pairs with the acquire of CatalogReader::open: who sees `published` sees all that it stands for.
void store_state(CatalogHeader& header, CatalogState state) {
  std::atomic_ref<uint32_t>(header.state).store(static_cast<uint32_t>(state), std::memory_order_release);
}

}  // namespace

CatalogWriter::CatalogWriter(std::span<std::byte> memory, CatalogPlan plan, CatalogWriterOptions options)
    : memory_(memory),
      plan_(std::move(plan)),
      options_(std::move(options)),
      progress_(plan_.tensors().size()) {}

void CatalogWriter::persist(uint64_t offset, uint64_t bytes) const {
  if (options_.persist && bytes > 0) options_.persist(memory_.subspan(offset, bytes));
}

Result<CatalogWriter> CatalogWriter::begin(std::span<std::byte> memory, CatalogPlan plan,
                                           CatalogWriterOptions options) {
  if (memory.size() < plan.required_bytes()) {
    return refuse(ErrorCode::capacity_exhausted, "CatalogWriter::begin",
                  "the catalog needs " + std::to_string(plan.required_bytes()) + " bytes, the memory has " +
                      std::to_string(memory.size()));
  }
  if (reinterpret_cast<uintptr_t>(memory.data()) % layout::tensor_alignment_bytes != 0) {
    return refuse(ErrorCode::invalid_argument, "CatalogWriter::begin", "the memory must be 64-byte aligned");
  }
  CatalogWriter writer(memory, std::move(plan), std::move(options));
  auto& header = *reinterpret_cast<CatalogHeader*>(memory.data());
  const bool there = os::guarded({memory}, [&] {
    if (header.magic == layout::catalog_magic) writer.generation_ = header.generation + 1;
    // First of all nobody may take what was here for complete, even if this process dies at the next
    // instruction.
    store_state(header, CatalogState::building);
    // pairs with CatalogReader::open: the stores below stay below.
    catalog_bytes::barrier(std::memory_order_release);
  });
  if (!there) return catalog_bytes::memory_gone("CatalogWriter::begin");
  writer.persist(0, sizeof header);

  const CatalogPlan& p = writer.plan_;
  CatalogHeader fresh{};
  fresh.magic = layout::catalog_magic;
  fresh.version_major = layout::catalog_version_major;
  fresh.version_minor = layout::catalog_version_minor;
  fresh.header_bytes = sizeof(CatalogHeader);
  fresh.total_bytes = p.total_bytes_;
  fresh.record_bytes = sizeof(TensorRecord);
  fresh.record_count = static_cast<uint32_t>(p.tensors_.size());
  fresh.records_offset = sizeof(CatalogHeader);
  fresh.names_offset = p.names_offset_;
  fresh.names_bytes = p.names_bytes_;
  fresh.data_offset = p.data_offset_;
  fresh.data_bytes = p.total_bytes_ - p.data_offset_;
  fresh.metadata_offset = p.metadata_offset_;
  fresh.metadata_bytes = p.metadata_bytes_;
  fresh.metadata_entries = static_cast<uint32_t>(p.metadata_.size());
  fresh.created_unix_s = wall_clock_ns() / ns_per_s;
  fresh.owner_lease_epoch = writer.options_.lease_epoch.value;
  fresh.generation = writer.generation_;
  const bool written = os::guarded({memory}, [&] {
    std::memcpy(memory.data(), &fresh, offsetof(CatalogHeader, state));
    writer.write_names_and_metadata();
  });
  if (!written) return catalog_bytes::memory_gone("CatalogWriter::begin");
  writer.persist(0, sizeof header);
  return writer;
}

void CatalogWriter::write_names_and_metadata() {
  std::byte* names = memory_.data() + plan_.names_offset_;
  for (const TensorSpec& tensor : plan_.tensors_) {
    std::memcpy(names, tensor.name.data(), tensor.name.size());
    names += tensor.name.size();
  }
  std::byte* entry = memory_.data() + plan_.metadata_offset_;
  for (const auto& [key, value] : plan_.metadata_) {
    const uint32_t sizes[2] = {static_cast<uint32_t>(key.size()), static_cast<uint32_t>(value.size())};
    std::memcpy(entry, sizes, sizeof sizes);
    std::memcpy(entry + sizeof sizes, key.data(), key.size());
    std::memcpy(entry + sizeof sizes + key.size(), value.data(), value.size());
    entry += sizeof sizes + key.size() + value.size();
  }
}

std::span<std::byte> CatalogWriter::data(size_t index) {
  return memory_.subspan(plan_.places_[index].offset, plan_.places_[index].bytes);
}

Status CatalogWriter::add(std::string_view name, std::span<const std::byte> bytes) {
  for (size_t index = 0; index < plan_.tensors_.size(); ++index) {
    if (plan_.tensors_[index].name != name) continue;
    if (progress_[index].filled) {
      return refuse(ErrorCode::already_exists, "CatalogWriter::add",
                    "tensor " + quoted_name(name) + " was added before");
    }
    if (bytes.size() != plan_.places_[index].bytes) {
      return refuse(ErrorCode::invalid_argument, "CatalogWriter::add",
                    "tensor " + quoted_name(name) + " was planned with " +
                        std::to_string(plan_.places_[index].bytes) + " bytes, not " +
                        std::to_string(bytes.size()));
    }
    const std::span<std::byte> into = data(index);
    if (!bytes.empty() && !os::guarded({into}, [&] { std::memcpy(into.data(), bytes.data(), bytes.size()); }))
      return catalog_bytes::memory_gone("CatalogWriter::add");
    filled(index, crc32c(bytes));
    return {};
  }
  return refuse(ErrorCode::not_found, "CatalogWriter::add",
                "tensor " + quoted_name(name) + " is not in the plan");
}

void CatalogWriter::filled(size_t index, std::optional<uint32_t> crc32c) {
  progress_[index] = {.filled = true, .crc32c = crc32c};
}

void CatalogWriter::write_records() {
  auto* records = reinterpret_cast<TensorRecord*>(memory_.data() + sizeof(CatalogHeader));
  for (size_t index = 0; index < plan_.tensors_.size(); ++index) {
    const TensorSpec& tensor = plan_.tensors_[index];
    const CatalogPlan::Place& place = plan_.places_[index];
    TensorRecord record{};
    record.name_hash = catalog_bytes::name_hash(tensor.name);
    record.id = static_cast<uint32_t>(index);
    record.state = static_cast<uint32_t>(layout::TensorState::stable);
    record.version = 2;
    record.owner_lease_epoch = options_.lease_epoch.value;
    record.data_checksum = *progress_[index].crc32c;
    record.line_checksum = catalog_bytes::hot_line_checksum(record);
    record.data_offset = place.offset;
    record.data_bytes = place.bytes;
    record.slot_stride_bytes = round_up(place.bytes, layout::tensor_alignment_bytes);
    record.slot_count = 1;
    record.name_bytes = static_cast<uint32_t>(tensor.name.size());
    record.name_offset = place.name_offset;
    record.dtype = static_cast<uint8_t>(tensor.dtype);
    record.rank = static_cast<uint8_t>(tensor.shape.rank());
    record.hint = static_cast<uint8_t>(tensor.hint);
    record.flags = tensor.flags;
    const Strides strides = row_major_strides(tensor.shape);
    for (uint32_t dimension = 0; dimension < tensor.shape.rank(); ++dimension) {
      record.shape[dimension] = tensor.shape[dimension];
      record.strides[dimension] = strides[dimension];
    }
    std::memcpy(&records[index], &record, sizeof record);
  }
}

// Records and header, with the checksums of all that is described; not the state.
void CatalogWriter::write_description() {
  write_records();
  auto& header = *reinterpret_cast<CatalogHeader*>(memory_.data());
  CatalogHeader fresh;
  std::memcpy(&fresh, &header, sizeof fresh);
  const std::span<const std::byte> memory = memory_;
  fresh.records_checksum = 0;
  for (size_t index = 0; index < plan_.tensors_.size(); ++index) {
    const auto* record = reinterpret_cast<const TensorRecord*>(memory_.data() + sizeof header) + index;
    fresh.records_checksum = catalog_bytes::cold_lines_checksum(*record, fresh.records_checksum);
  }
  fresh.names_checksum = crc32c(memory.subspan(plan_.names_offset_, plan_.names_bytes_));
  fresh.metadata_checksum = crc32c(memory.subspan(plan_.metadata_offset_, plan_.metadata_bytes_));
  fresh.header_checksum = catalog_bytes::header_checksum(fresh);
  std::memcpy(&header, &fresh, offsetof(CatalogHeader, state));
}

Status CatalogWriter::publish() {
  if (published_) return refuse(ErrorCode::already_exists, "CatalogWriter::publish", "published before");
  std::vector<size_t> unchecked;
  for (size_t index = 0; index < progress_.size(); ++index) {
    if (!progress_[index].filled) {
      return refuse(ErrorCode::invalid_argument, "CatalogWriter::publish",
                    "tensor " + quoted_name(plan_.tensors_[index].name) + " was planned but never added");
    }
    if (!progress_[index].crc32c) unchecked.push_back(index);
  }
  std::atomic<bool> gone = false;
  parallel_for(unchecked.size(), worker_threads(options_.threads, unchecked.size()), [&](size_t at) {
    const size_t index = unchecked[at];
    uint32_t sum = 0;
    if (!os::guarded({data(index)}, [&] { sum = crc32c(data(index)); })) gone = true;
    progress_[index].crc32c = sum;
  });
  if (gone || !os::guarded({memory_}, [this] { write_description(); }))
    return catalog_bytes::memory_gone("CatalogWriter::publish");

  // Data and description first, the word that makes them valid alone and last (C1).
  persist(0, plan_.total_bytes_);
  const bool there = os::guarded({memory_}, [this] {
    store_state(*reinterpret_cast<CatalogHeader*>(memory_.data()), CatalogState::published);
  });
  if (!there) return catalog_bytes::memory_gone("CatalogWriter::publish");
  persist(offsetof(CatalogHeader, state), 64);
  published_ = true;
  return {};
}

}  // namespace terrace
