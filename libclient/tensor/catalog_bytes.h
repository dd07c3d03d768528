// SPDX-License-Identifier: Apache-2.0
// Pieces that the catalog's writer and reader must agree on.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "core/base/crc32c.h"
#include "core/base/result.h"
#include "core/layout/tensor_catalog.h"

namespace terrace::catalog_bytes {

// A barrier for this processor's loads and stores. g++ refuses it under ThreadSanitizer, which does not model
// it.
inline void barrier([[maybe_unused]] std::memory_order order) {
#if !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(order);
#endif
}

inline Error memory_gone(const char* where) {
  return Error{.code = ErrorCode::lease_expired,
               .where = where,
               .detail = "tensor catalog: its memory is gone: the lease has ended, or the file was cut"};
}

inline uint64_t name_hash(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline uint32_t header_checksum(const layout::CatalogHeader& header) {
  return crc32c(std::as_bytes(std::span(&header, 1)).first(layout::catalog_header_checked_bytes));
}

inline uint32_t hot_line_checksum(const layout::TensorRecord& record) {
  return crc32c(std::as_bytes(std::span(&record, 1)).first(layout::tensor_line_checked_bytes));
}

inline uint32_t cold_lines_checksum(const layout::TensorRecord& record, uint32_t previous) {
  return crc32c(std::as_bytes(std::span(&record, 1)).subspan(layout::tensor_record_cold_offset), previous);
}

}  // namespace terrace::catalog_bytes
