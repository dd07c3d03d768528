// SPDX-License-Identifier: Apache-2.0
// The bytes of a whole GGUF file. Whatever is accepted must lie in the file, without overlaps, behind the header, and
// fit a catalog.
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "core/base/check.h"
#include "libclient/io/gguf_header.h"

using namespace terrace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  const ReadAt read_at = [&](uint64_t offset, std::span<std::byte> bytes) {
    TERRACE_CHECK(offset <= size && bytes.size() <= size - offset, "nothing beyond the file is read");
    std::memcpy(bytes.data(), file.data() + offset, bytes.size());
    return Status();
  };
  const auto index = read_gguf_header(read_at, size, "input");
  if (!index.ok()) {
    TERRACE_CHECK(is_utf8(index.error().detail), "an error text is text");
    return 0;
  }
  TERRACE_CHECK(is_gguf(file), "what is accepted begins with GGUF");
  std::vector<TensorSpec> specs;
  uint64_t end = index->buffer_offset;
  for (const SafetensorsEntry& entry : index->tensors) {
    TERRACE_CHECK(entry.file_offset >= end, "tensors lie behind the header, and behind each other");
    end = entry.file_offset + entry.bytes;
    TERRACE_CHECK(end <= size, "tensors lie in the file");
    specs.push_back({.name = entry.name, .dtype = entry.dtype, .shape = entry.shape});
  }
  const auto plan = CatalogPlan::make(specs, index->metadata);
  TERRACE_CHECK(plan.ok(), "what is accepted fits a catalog");
  for (size_t at = 0; at < specs.size(); ++at)
    TERRACE_CHECK(plan->tensor_bytes(at) == index->tensors[at].bytes, "a tensor is as large as its shape says");
  return 0;
}
