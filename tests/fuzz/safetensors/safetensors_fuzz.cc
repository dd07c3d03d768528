// SPDX-License-Identifier: Apache-2.0
// The bytes of a whole safetensors file: the length, the header, the tensors. Whatever is accepted must lie in
// the file without holes, fit a catalog, and give a header that is accepted again.
#include <cstdint>
#include <cstring>

#include "core/base/check.h"
#include "terrace/safetensors.h"

using namespace terrace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint64_t header_bytes = 0;
  if (size < sizeof header_bytes) return 0;
  std::memcpy(&header_bytes, data, sizeof header_bytes);
  if (header_bytes > size - sizeof header_bytes) header_bytes = size - sizeof header_bytes;
  const auto file = std::as_bytes(std::span(data, size));
  const auto index = parse_safetensors_header(file.subspan(8, header_bytes), size, "input");
  if (!index.ok()) {
    TERRACE_CHECK(is_utf8(index.error().detail), "an error text is text");
    return 0;
  }
  std::vector<TensorSpec> specs;
  std::vector<TensorView> views;
  uint64_t end = index->buffer_offset;
  for (const SafetensorsEntry& entry : index->tensors) {
    TERRACE_CHECK(entry.file_offset == end, "tensors follow each other");
    end += entry.bytes;
    TERRACE_CHECK(end <= size, "tensors lie in the file");
    specs.push_back({.name = entry.name, .dtype = entry.dtype, .shape = entry.shape});
    views.push_back({.name = entry.name,
                     .dtype = entry.dtype,
                     .shape = entry.shape,
                     .bytes = file.subspan(entry.file_offset, entry.bytes)});
  }
  TERRACE_CHECK(end == size, "no byte belongs to none");
  TERRACE_CHECK(CatalogPlan::make(specs, index->metadata).ok(), "what is accepted fits a catalog");
  const auto header = safetensors_header(views, index->metadata);
  TERRACE_CHECK(header.ok(), "what is accepted can be written");
  const auto again = parse_safetensors_header(std::as_bytes(std::span(*header)).subspan(8),
                                              header->size() + (size - index->buffer_offset), "again");
  TERRACE_CHECK(again.ok() && again->tensors.size() == index->tensors.size(), "what was written is accepted");
  return 0;
}
