// SPDX-License-Identifier: Apache-2.0
// What a hostile writer does after its change: gives a tensor catalog right checksums again, as far as its
// numbers let them be computed inside the memory.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "core/base/crc32c.h"
#include "core/layout/tensor_catalog.h"

namespace terrace {

inline void fix_catalog(std::span<std::byte> memory) {
  using layout::CatalogHeader;
  using layout::TensorRecord;
  if (memory.size() < sizeof(CatalogHeader)) return;
  CatalogHeader header;
  std::memcpy(&header, memory.data(), sizeof header);
  const auto part = [&](uint64_t offset, uint64_t length) -> std::span<std::byte> {
    if (offset > memory.size() || length > memory.size() - offset) return {};
    return memory.subspan(offset, length);
  };
  header.records_checksum = 0;
  const auto records = part(header.records_offset, uint64_t{header.record_count} * sizeof(TensorRecord));
  for (size_t at = 0; at < records.size(); at += sizeof(TensorRecord)) {
    const auto record = records.subspan(at, sizeof(TensorRecord));
    const uint32_t line = crc32c(record.first(layout::tensor_line_checked_bytes));
    std::memcpy(record.data() + offsetof(TensorRecord, line_checksum), &line, sizeof line);
    header.records_checksum =
        crc32c(record.subspan(layout::tensor_record_cold_offset), header.records_checksum);
  }
  header.names_checksum = crc32c(part(header.names_offset, header.names_bytes));
  header.metadata_checksum = crc32c(part(header.metadata_offset, header.metadata_bytes));
  const auto checked = std::as_bytes(std::span(&header, 1)).first(layout::catalog_header_checked_bytes);
  header.header_checksum = crc32c(checked);
  std::memcpy(memory.data(), &header, sizeof header);
}

}  // namespace terrace
