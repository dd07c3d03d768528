// SPDX-License-Identifier: Apache-2.0
// KvSpace: making one, attaching to it, and its public objects.
#include "terrace/kv_space.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "libclient/coherence/formatting.h"
#include "libclient/coherence/memory/coherent_memory.h"
#include "libclient/coherence/memory/noncoherent_memory.h"
#include "libclient/kv/kv_space_of.h"
#include "libclient/kv/local/local_store.h"
#include "libclient/kv/lossy_kv_space.h"
#include "terrace/tensor.h"

namespace terrace {
namespace {

constexpr uint64_t least_block_bytes = 4096;
constexpr uint64_t usual_max_block_bytes = 16ull << 20;
constexpr uint32_t uses_of_a_holder = 1024;

Error refuse_format(std::string detail) {
  return Error{
      .code = ErrorCode::invalid_argument, .where = "KvSpace::format", .detail = "KV space: " + detail};
}

// A block and its name in one chunk, and no more chunks than the format allows.
uint64_t chunk_bytes_for(uint64_t memory_bytes, uint64_t max_block_bytes) {
  constexpr uint64_t page = layout::space_part_alignment_bytes;
  const uint64_t by_count = (memory_bytes / layout::space_chunks_max + page) / page * page;
  return std::max(by_count, (max_block_bytes + page - 1) / page * page + page);
}

template <typename Memory>
Result<std::unique_ptr<MemberKvSpace>> attach_as(const coherence::Geometry& geometry, KvAttachOptions options) {
  auto space = std::make_unique<KvSpaceOf<Memory>>(geometry, std::move(options));
  TERRACE_RETURN_IF_ERROR(space->check());
  return std::unique_ptr<MemberKvSpace>(
      std::make_unique<LossyKvSpace>(std::move(space), std::span(geometry.base, geometry.total_bytes)));
}

}  // namespace

Status KvSpace::format(std::span<std::byte> memory, const KvFormatOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(const SpaceCoherence coherence, coherence_for(memory, options.coherence));
  const bool coherent = coherence == SpaceCoherence::coherent;
  if (options.block_bytes < least_block_bytes || options.block_bytes > usual_max_block_bytes)
    return refuse_format("block_bytes is 4 KiB to 16 MiB, not " + std::to_string(options.block_bytes) +
                         " bytes");
  if (memory.size() > uint64_t{64} << 40)
    return refuse_format("at most 64 TiB, not " + std::to_string(memory.size()) + " bytes");
  const uint64_t max_block_bytes = options.max_block_bytes.value_or(
      std::max(options.block_bytes, std::min<uint64_t>(usual_max_block_bytes, memory.size() / 64)));
  if (max_block_bytes < options.block_bytes || max_block_bytes > kv_block_bytes_limit)
    return refuse_format("max_block_bytes is block_bytes to 64 MiB, not " + std::to_string(max_block_bytes) +
                         " bytes");
  // Each part can have all the blocks, at three quarters of its directory.
  const uint64_t blocks = std::max<uint64_t>(16, memory.size() / options.block_bytes);
  return coherence::format_space(
      "KvSpace::format", memory,
      {.parts = options.parts,
       .records = static_cast<uint32_t>(std::min<uint64_t>(blocks * 4 / 3, layout::space_records_max)),
       .pins = options.pins,
       .seats = options.seats,
       .features = options.checksums.value_or(!coherent) ? layout::space_feature_checksums : 0,
       .mode = coherent ? layout::SpaceMode::coherent : layout::SpaceMode::noncoherent,
       .lease_epoch = options.lease_epoch.value,
       .chunk_bytes = chunk_bytes_for(memory.size(), max_block_bytes),
       .content = coherence::SpaceContent::blocks,
       .uses = uses_of_a_holder},
      options.ownership);
}

Result<std::unique_ptr<KvSpace>> KvSpace::attach(std::span<std::byte> memory, KvAttachOptions options) {
  TERRACE_ASSIGN_OR_RETURN(auto space, attach_member(memory, std::move(options)));
  return std::unique_ptr<KvSpace>(std::move(space));
}

Result<std::unique_ptr<MemberKvSpace>> attach_member(std::span<std::byte> memory, KvAttachOptions options) {
  if (memory.size() < sizeof(layout::SpaceHeader) || reinterpret_cast<uintptr_t>(memory.data()) % 64 != 0)
    return Error{.code = ErrorCode::not_found,
                 .where = "KvSpace::attach",
                 .detail = "KV space: the memory is shorter than a header, or not 64-byte aligned"};
  return coherence::unless_lost("KvSpace::attach", memory, [&]() -> Result<std::unique_ptr<MemberKvSpace>> {
    TERRACE_ASSIGN_OR_RETURN(const coherence::Geometry geometry,
                             coherence::read_geometry(memory, coherence::SpaceContent::blocks));
    if (geometry.mode == layout::SpaceMode::coherent)
      return attach_as<coherence::CoherentMemory>(geometry, std::move(options));
    return attach_as<coherence::NonCoherentMemory>(geometry, std::move(options));
  });
}

Result<uint64_t> prefix_by_exists(KvSpace& space, const KvNamespace& name_space,
                                  std::span<const std::string_view> keys) {
  constexpr size_t step = 64;
  bool found[step];
  for (size_t from = 0; from < keys.size(); from += step) {
    const size_t count = std::min(step, keys.size() - from);
    TERRACE_RETURN_IF_ERROR(space.exists(name_space, keys.subspan(from, count), std::span(found, count)));
    for (size_t index = 0; index < count; ++index)
      if (!found[index]) return from + index;
  }
  return keys.size();
}

Result<uint64_t> data_bytes_of(std::span<std::byte> memory) {
  return coherence::unless_lost("KvSpace", memory, [&]() -> Result<uint64_t> {
    TERRACE_ASSIGN_OR_RETURN(const coherence::Geometry geometry,
                             coherence::read_geometry(memory, coherence::SpaceContent::blocks));
    return geometry.data_bytes;
  });
}

Result<KvFormatOptions> format_options_of(std::span<std::byte> memory) {
  return coherence::unless_lost("KvSpace", memory, [&]() -> Result<KvFormatOptions> {
    TERRACE_ASSIGN_OR_RETURN(const coherence::Geometry geometry,
                             coherence::read_geometry(memory, coherence::SpaceContent::blocks));
    // The directory was rounded up to a power of two: blocks of at most this size fill the memory before it.
    const uint64_t block_bytes =
        std::clamp(geometry.total_bytes / std::max<uint64_t>(1, uint64_t{geometry.records} * 3 / 4 + 1),
                   least_block_bytes, usual_max_block_bytes);
    const uint64_t max_block_bytes =
        std::min(kv_block_bytes_limit, geometry.chunk_bytes - layout::space_part_alignment_bytes);
    return KvFormatOptions{.parts = geometry.parts,
                           .seats = geometry.seats,
                           .block_bytes = std::min(block_bytes, max_block_bytes),
                           .max_block_bytes = max_block_bytes,
                           .pins = geometry.pins,
                           .coherence = geometry.mode == layout::SpaceMode::coherent
                                            ? SpaceCoherence::coherent
                                            : SpaceCoherence::noncoherent,
                           .checksums = geometry.checksums()};
  });
}

Result<KvNamespace> KvNamespace::of(std::string_view name) {
  const bool controls =
      std::any_of(name.begin(), name.end(), [](unsigned char byte) { return byte < 32 || byte == 127; });
  if (name.size() > kv_namespace_bytes_max || controls || !is_utf8(name))
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "KvNamespace::of",
                 .detail = "KV space: a namespace is at most 255 bytes of UTF-8 without control characters"};
  KvNamespace name_space;
  name_space.name_ = name;
  return name_space;
}

Result<KvNamespace> KvNamespace::of(std::string_view tenant, std::string_view model, std::string_view tokenizer,
                                    std::string_view layout, std::string_view dtype) {
  std::string name;
  int pieces = 0;
  for (const std::string_view piece : {tenant, model, tokenizer, layout, dtype}) {
    if (pieces++ != 0) name += '/';
    for (const char letter : piece)
      name += letter == '/' ? "%2F" : letter == '%' ? "%25" : std::string(1, letter);
  }
  return of(name);
}

KvView::KvView(KvView&& other) noexcept
    : space_(std::exchange(other.space_, nullptr)),
      pin_(other.pin_),
      copy_(std::exchange(other.copy_, nullptr)),
      bytes_(std::exchange(other.bytes_, {})) {}

KvView& KvView::operator=(KvView&& other) noexcept {
  if (this == &other) return *this;
  reset();
  space_ = std::exchange(other.space_, nullptr);
  pin_ = other.pin_;
  copy_ = std::exchange(other.copy_, nullptr);
  bytes_ = std::exchange(other.bytes_, {});
  return *this;
}

void KvView::reset() {
  if (copy_ != nullptr) kv::LocalRef::of(std::exchange(copy_, nullptr)).reset();
  const os::LossyAccesses accesses(os::LossyAccesses::Often{});
  if (space_ != nullptr) std::exchange(space_, nullptr)->unpin(pin_);
  bytes_ = {};
}

KvWrite::KvWrite(std::unique_ptr<State> state) : state_(std::move(state)) {}
KvWrite::KvWrite(KvWrite&& other) noexcept = default;

KvWrite::~KvWrite() {
  const os::LossyAccesses accesses;
  if (state_ != nullptr && state_->open) state_->space->abort_write(*state_);
}

std::span<std::byte> KvWrite::bytes() const {
  return state_->bytes;
}

Status KvWrite::publish() {
  TERRACE_CHECK(state_->open, "a block is published once");
  state_->open = false;
  return coherence::unless_lost("KvWrite::publish", state_->memory,
                                [&] { return state_->space->finish_write(*state_); });
}

Status KvWrite::fill(std::span<const std::byte> from) {
  TERRACE_CHECK(state_->open, "a block is filled before it is published");
  if (from.size() != state_->bytes.size())
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "KvWrite::fill",
                 .detail = "the block has " + std::to_string(state_->bytes.size()) + " bytes, not " +
                           std::to_string(from.size())};
  return coherence::unless_lost("KvWrite::fill", state_->bytes, [&]() -> Status {
    state_->space->fill_write(*state_, from);
    return {};
  });
}

Error KvSpaceBase::refuse(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = "KvSpace", .detail = std::move(detail)};
}

Status KvSpaceBase::check_key(std::string_view key) {
  if (!key.empty() && key.size() <= kv_key_bytes_max) return {};
  return refuse(ErrorCode::invalid_argument,
                "KV space: a key is 1 to 512 bytes, not " + std::to_string(key.size()));
}

std::string KvSpaceBase::who(std::string_view key) {
  constexpr char digits[] = "0123456789abcdef";
  const bool text =
      std::all_of(key.begin(), key.end(), [](unsigned char byte) { return byte >= 32 && byte < 127; });
  std::string shown = text ? "'" : "0x";
  for (const unsigned char byte : key.substr(0, 64)) {
    if (text)
      shown += static_cast<char>(byte);
    else
      shown += {digits[byte >> 4], digits[byte & 15]};
  }
  return "block " + shown + (key.size() > 64 ? "..." : "") + (text ? "'" : "");
}

const KvNamespace& KvSpaceBase::own_name_space() {
  static const KvNamespace own = [] {
    KvNamespace name_space;
    name_space.name_ = kv::own_name_space;
    return name_space;
  }();
  return own;
}

Error KvSpaceBase::not_found(std::string_view key) {
  return refuse(ErrorCode::not_found, who(key) + " is not there");
}

Error KvSpaceBase::read_only() {
  return refuse(
      ErrorCode::permission_denied,
      "KV space: this holder was attached to copy only; attach with ownership, and to put with `puts`");
}

Error KvSpaceBase::in_child() {
  return refuse(ErrorCode::unavailable,
                "the KV space belongs to the process that forked this one; map the memory and attach again");
}

Error KvSpaceBase::too_short(std::string_view key, uint64_t given, uint64_t needed) {
  return refuse(ErrorCode::invalid_argument, who(key) + " has " + std::to_string(needed) +
                                                 " bytes, more than the " + std::to_string(given) + " given");
}

Error KvSpaceBase::error_of(coherence::Outcome outcome, std::string_view key) {
  using coherence::Outcome;
  switch (outcome) {
    case Outcome::gone: return not_found(key);
    case Outcome::raced: return refuse(ErrorCode::busy, who(key) + " keeps changing; try again");
    case Outcome::corrupt:
      return refuse(ErrorCode::corrupt, who(key) + " does not have its checksum or its name; erase it");
    case Outcome::full:
      return refuse(ErrorCode::limit_exceeded,
                    who(key) + ": this holder reads as many blocks in place as it has pins; drop one");
    case Outcome::pinned: return refuse(ErrorCode::busy, who(key) + " is read in place");
    case Outcome::disowned:
      return refuse(ErrorCode::permission_denied,
                    who(key) + ": this holder's part has another owner by now; attach again");
    case Outcome::no_record:
      return refuse(ErrorCode::capacity_exhausted,
                    who(key) + ": the part has no directory entry left; format the space for smaller blocks");
    default: return refuse(ErrorCode::internal, who(key) + ": an answer that does not belong here");
  }
}

}  // namespace terrace
