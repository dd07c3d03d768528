// SPDX-License-Identifier: Apache-2.0
// The bytes of a spill folder that somebody else wrote: its map's header, or an index and a frame. Every reader's call, a
// recovery and an insertion stay inside the memory, and what is found lies inside the data. Checksums of records are
// fixed, as who means harm would.
//
// The first byte says which file the rest is of, and bit 1 whether checksums are fixed.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "core/base/check.h"
#include "core/base/crc32c.h"
#include "libclient/kv/spill/slot_index.h"
#include "libclient/kv/spill/spill_map.h"

using namespace terrace;
using namespace terrace::kv;

namespace {

void header_of(const uint8_t* data, size_t size) {
  layout::SpillHeader header{};
  std::memcpy(&header, data, std::min(size, sizeof header));
  if (size > 0 && (data[size - 1] & 1) != 0) {
    header.magic = layout::spill_magic;
    header.version = layout::spill_version;
    header.features = 0;
  }
  header.checksum = crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(layout::SpillHeader, checksum)));
  const auto geometry = check_spill_header(header, uint64_t{1} << 40, "input");
  if (!geometry.ok()) return;
  TERRACE_CHECK(geometry->segments <= layout::spill_segments_max && geometry->map_bytes() <= uint64_t{1} << 40,
                "the map has room for the segments");
  TERRACE_CHECK(geometry->max_block_bytes <= geometry->segment_bytes && geometry->buckets != 0,
                "sizes make sense");
  TERRACE_CHECK(geometry->data_bytes() / geometry->segment_bytes == geometry->segments, "no length is cut");
}

void index_of(const uint8_t* data, size_t size, bool fixed) {
  const Result<SpillGeometry> geometry = spill_geometry({.bytes = 4 << 20, .block_bytes = 1 << 20});
  TERRACE_CHECK(geometry.ok() && geometry->buckets <= 16, "a small index");
  const uint64_t bytes = geometry->buckets * layout::spill_bucket_bytes;
  void* allocated = nullptr;
  TERRACE_CHECK(::posix_memalign(&allocated, 4096, bytes) == 0, "memory for a test input");
  const std::unique_ptr<void, void (*)(void*)> owner(allocated, std::free);
  auto* const memory = static_cast<std::byte*>(allocated);
  std::memset(memory, 0, bytes);
  std::memcpy(memory, data, std::min<size_t>(size, bytes));
  SlotIndex index(memory, *geometry, 3);
  std::vector<BlockKey> keys;
  for (uint64_t record = 0; record < geometry->records(); ++record) {
    layout::SpillRecord* const at =
        reinterpret_cast<layout::SpillRecord*>(memory + record / layout::spill_bucket_records *
                                                            layout::spill_bucket_bytes) +
        1 + record % layout::spill_bucket_records;
    layout::SpillRecord copy;
    std::memcpy(&copy, at, sizeof copy);
    keys.push_back({copy.key[0], copy.key[1]});
    if (!fixed || copy.data_bytes > (1 << 20)) continue;
    const SpillBlock numbers{.key = keys.back(),
                             .offset = (copy.place & 0xffffffffff) * 4096,
                             .frame_bytes = (copy.place >> 40) * 4096,
                             .bytes = copy.data_bytes,
                             .hash = copy.hash,
                             .parent = copy.parent,
                             .name_space = copy.name_space,
                             .expires_unix_s = copy.expires_unix_s};
    const uint64_t word = copy.word;
    copy = spill_record_of(numbers, word & layout::spill_word_version_mask);
    copy.word = word;
    std::memcpy(at, &copy, sizeof copy);
  }
  const auto check = [&](const SpillBlock& block) {
    TERRACE_CHECK(block.offset / geometry->segment_bytes < geometry->segments &&
                      block.offset % geometry->segment_bytes + block.frame_bytes <= geometry->segment_bytes,
                  "a frame lies in one segment");
    TERRACE_CHECK(block.name_offset() < block.frame_bytes && block.bytes <= geometry->max_block_bytes,
                  "data and names lie in the frame");
    // Whatever is there instead of the frame.
    std::vector<std::byte> frame(block.frame_bytes);
    for (size_t at = 0; at < frame.size() && size != 0; ++at)
      frame[at] = static_cast<std::byte>(data[at % size]);
    TERRACE_CHECK(check_frame(block, frame, "space", "key") != FrameCheck::right, "no frame is made by chance");
    (void)check_frame(block, std::span(frame).first(std::min<size_t>(frame.size(), size)), "", "k");
    index.note_use(block.record);
    TERRACE_CHECK(index.uses(block.record) <= 15, "four bits");
  };
  for (uint64_t record = 0; record < geometry->records(); ++record)
    if (const auto block = index.at(record)) check(*block);
  for (const BlockKey& key : keys)
    if (const auto block = index.find(key)) check(*block);
  index.recover([](const SpillBlock& block) { return block.parent == 1; }, check);
  const BlockKey mine = key_of(namespace_hash("space"), "key");
  SpillBlock block{.key = mine, .frame_bytes = 4096, .bytes = 100, .hash = 1};
  const auto older = [](const SpillBlock& one, const SpillBlock& other) { return one.offset < other.offset; };
  if (index.insert(&block, 1, older)) {
    TERRACE_CHECK(index.holds(block) && index.find(mine).has_value(), "what was inserted is found");
    index.remove(block);
    TERRACE_CHECK(!index.holds(block), "what was removed is not there");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const os::LossyAccesses accesses;
  if ((data[0] & 1) != 0)
    header_of(data + 1, size - 1);
  else
    index_of(data + 1, size - 1, (data[0] & 2) != 0);
  return 0;
}
