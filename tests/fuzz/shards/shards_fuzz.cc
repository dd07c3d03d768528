// SPDX-License-Identifier: Apache-2.0
// The text of an index of shards. Whatever is accepted names files of the index's own folder only.
#include <cstdint>
#include <string_view>

#include "core/base/check.h"
#include "libclient/io/shard_index.h"
#include "terrace/tensor.h"

using namespace terrace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto files = parse_shard_index(text, "input");
  if (!files.ok()) {
    TERRACE_CHECK(is_utf8(files.error().detail), "an error text is text");
    return 0;
  }
  for (const auto& [tensor, file] : *files) {
    TERRACE_CHECK(is_utf8(tensor) && is_utf8(file), "names are text");
    TERRACE_CHECK(!file.empty() && file != "." && file != "..", "a file's name names a file");
    TERRACE_CHECK(file.find('/') == std::string::npos && file.find('\0') == std::string::npos,
                  "a file lies beside the index");
  }
  return 0;
}
