// SPDX-License-Identifier: Apache-2.0
// Shared by the transfers of a pool's tensors and by checkpoints: makes a file's segments of tensors, and a
// pool's tensors of a file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libclient/io/safetensors_file.h"
#include "terrace/transfer.h"

namespace terrace {

// A part of a file: `bytes` at `file_offset`.
struct FileSegment {
  uint64_t file_offset = 0;
  std::span<const std::byte> bytes;
};

// A file before it is written. `header` is the first segment, on a page of its own, as the device wants it.
struct PoolFilePlan {
  std::shared_ptr<const std::string> header_memory;
  std::span<const std::byte> header;
  std::vector<FileSegment> segments;             // without holes, in order
  std::vector<std::shared_ptr<Tensor>> tensors;  // of a pool: kept as long as the plan
  uint64_t tensor_count = 0, total_bytes = 0, tensor_bytes = 0;
};

// Of named, row-major tensors whose bytes stay where they are. Tensors of whole pages come first, so that the
// device reads them where they are; then wide elements, so that all are aligned to their elements without
// holes; then by name.
//
// Errors    already_exists (a name given twice); those of safetensors_header
Result<PoolFilePlan> plan_file(std::vector<TensorView> tensors, const TensorMetadata& metadata,
                               const char* where);

// Errors as export_safetensors.
Result<PoolFilePlan> plan_pool_file(TensorPool& pool, std::span<const std::shared_ptr<Tensor>> tensors,
                                    const TensorMetadata& metadata, const char* where);

// What the kernel answers where a pool's memory went away under a read or a write, in words; other errors as they
// are.
Error lease_lost_error(const Error& error, const char* where, const std::string& path);

// The parts of `segments` that lie in [begin, end) of the file.
std::vector<FileSegment> segments_within(std::span<const FileSegment> segments, uint64_t begin, uint64_t end);

// The file's tensors of these names, each once, in the order of their bytes; no names: all. Errors: not_found,
// with every name that the file does not have; `at` is whose error it is.
Result<std::vector<SafetensorsEntry>> choose_entries(const SafetensorsIndex& index, const std::string& path,
                                                     const std::vector<std::string>& names, const char* at);

// The file's tensors in the pool: made, or found. In the order of `entries`.
Result<std::vector<std::shared_ptr<Tensor>>> tensors_for(TensorPool& pool, const std::string& path,
                                                         std::span<const SafetensorsEntry> entries,
                                                         const PoolImportOptions& options);

// Reads the tensors' bytes, holding them. `arrived` hears how many bytes from the first tensor's first one on
// are complete.
Status read_into_pool(TensorPool& pool, const SafetensorsFile& file, const std::string& path,
                      std::span<const SafetensorsEntry> entries,
                      std::span<const std::shared_ptr<Tensor>> tensors, const TransferOptions& options,
                      const std::function<void(uint64_t)>& arrived, TransferReport& report);

}  // namespace terrace
