// SPDX-License-Identifier: Apache-2.0
// The bytes of a part that a hostile holder wrote, in a space that is otherwise whole: every reader's call, and
// a take-over, stay inside the memory. The input is laid over the part's owner line, pins, claims and records (and the
// first names); checksums are fixed then, as a hostile holder would.
//
// The first byte says which header numbers are changed, so that the header's checks are reached, too.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "core/base/check.h"
#include "core/base/crc32c.h"
#include "libclient/coherence/geometry.h"
#include "terrace/tensor_space.h"

using namespace terrace;

namespace {

constexpr size_t space_bytes = 4096 + 2 * 4096 + 4 * 4096;  // header and seats, two parts, four chunks

class AlwaysGranted final : public OwnershipSource {
 public:
  Result<uint64_t> claim(uint32_t, const std::function<uint64_t()>& last_epoch) override {
    return last_epoch() + 1;
  }
  void release(uint32_t) override {}
  bool is_dead(uint32_t, uint64_t epoch) override { return epoch % 2 == 0; }
};

void fix_header_checksum(std::span<std::byte> memory) {
  layout::SpaceHeader header;
  std::memcpy(&header, memory.data(), sizeof header);
  header.checksum = crc32c(std::as_bytes(std::span(&header, 1)).first(layout::space_header_checked_bytes));
  std::memcpy(memory.data(), &header, sizeof header);
}

void fix_record_checksums(const coherence::Geometry& geometry) {
  for (uint32_t index = 0; index < geometry.records; ++index) {
    layout::SpaceRecord* const record = geometry.record(0, index);
    if (!coherence::possible(record->shape, geometry)) continue;
    const std::string_view name(reinterpret_cast<const char*>(geometry.data() + record->shape.extent_offset),
                                record->shape.name_bytes);
    record->slots.name_hash = coherence::name_hash(name);
    record->shape.checksum =
        coherence::shape_checksum(record->shape, record->slots.incarnation, record->slots.name_hash, name);
  }
}

void use(TensorSpace& space, std::span<const std::byte> memory) {
  for (const SharedTensor& tensor : space.list()) {
    TERRACE_CHECK(tensor.bytes() <= memory.size(), "a tensor fits the memory");
    std::vector<std::byte> copy(tensor.bytes());
    (void)space.read(tensor, copy);
    (void)space.version(tensor);
    (void)space.is_current(tensor, 2);
    const Result<SharedTensor> opened = space.open(tensor.name());
    TERRACE_CHECK(opened.ok() || is_utf8(opened.error().detail), "an error text is text");
    const Result<TensorPin> pin = space.pin(tensor);
    if (pin.ok())
      TERRACE_CHECK(pin->bytes().data() >= memory.data() &&
                        pin->bytes().data() + pin->bytes().size() <= memory.data() + memory.size(),
                    "what is pinned lies in the memory");
    const Result<uint64_t> published = space.publish(tensor, copy);
    if (published.ok()) TERRACE_CHECK(space.read(tensor, copy).ok(), "what was published can be read");
    (void)space.remove(tensor);
  }
  (void)space.create({.name = "new", .dtype = DType::f32, .shape = {16}});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  void* allocated = nullptr;
  TERRACE_CHECK(::posix_memalign(&allocated, 4096, space_bytes) == 0, "memory for a test input");
  const std::unique_ptr<void, void (*)(void*)> owner(allocated, std::free);
  const std::span<std::byte> memory(static_cast<std::byte*>(allocated), space_bytes);
  std::memset(memory.data(), 0, memory.size());
  TERRACE_CHECK(TensorSpace::format(memory, {.parts = 2, .records_per_part = 8, .pins_per_part = 8}).ok(),
                "the space has room");
  const bool header = (data[0] & 1) != 0;
  std::byte* const target = memory.data() + (header ? 8 : 4096);
  std::memcpy(target, data + 1, std::min(size - 1, header ? size_t{244} : memory.size() - 4096));
  fix_header_checksum(memory);
  layout::SpaceHeader copy;
  std::memcpy(&copy, memory.data(), sizeof copy);
  const Result<coherence::Geometry> geometry = coherence::check_header(copy, memory);
  if (!geometry.ok()) return 0;
  if (geometry->records <= 64) fix_record_checksums(*geometry);
  if (geometry->records > 1024 || geometry->pins > 4096) return 0;  // the memory bounds them: this cannot be
  const auto ownership = std::make_shared<AlwaysGranted>();
  // Part 1 reads what the hostile holder of part 0 wrote; then part 0 is taken over.
  for (const uint32_t part : {geometry->parts - 1, 0u}) {
    const auto space = TensorSpace::attach(memory, {.ownership = ownership, .part = part});
    if (space.ok()) use(**space, memory);
  }
  return 0;
}
