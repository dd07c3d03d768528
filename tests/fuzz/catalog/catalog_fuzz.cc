// SPDX-License-Identifier: Apache-2.0
// The bytes of a lease that should hold a tensor catalog. Checksums are fixed first: they guard against
// accidents, a hostile writer computes them too. Whatever is accepted must give views inside the memory only.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/base/check.h"
#include "terrace/catalog.h"
#include "tests/support/fix_catalog.h"

using namespace terrace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A copy at a page's start, exactly as long as the input, so that ASan guards its end.
  void* copy = nullptr;
  TERRACE_CHECK(::posix_memalign(&copy, 4096, size) == 0, "memory for a test input");
  const std::unique_ptr<void, void (*)(void*)> owner(copy, std::free);
  if (size > 0) std::memcpy(copy, data, size);
  const std::span<std::byte> memory(static_cast<std::byte*>(copy), size);
  fix_catalog(memory);
  const Result<CatalogReader> reader = CatalogReader::open(memory);
  if (!reader.ok()) {
    TERRACE_CHECK(is_utf8(reader.error().detail), "an error text is text");
    return 0;
  }
  for (size_t index = 0; index < reader->size(); ++index) {
    const TensorView& view = (*reader)[index];
    TERRACE_CHECK(view.bytes.data() >= memory.data() && view.bytes.size() <= memory.size() &&
                      view.bytes.data() + view.bytes.size() <= memory.data() + memory.size(),
                  "a view lies in the memory");
    TERRACE_CHECK(is_utf8(view.name) && reader->find(view.name).ok(), "a name is text and is found");
    (void)reader->verify(index);
  }
  return 0;
}
