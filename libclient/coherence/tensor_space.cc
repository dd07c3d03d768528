// SPDX-License-Identifier: Apache-2.0
#include "terrace/tensor_space.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/os/lossy_access.h"
#include "libclient/coherence/formatting.h"
#include "libclient/coherence/lossy_space.h"
#include "libclient/coherence/memory/coherent_memory.h"
#include "libclient/coherence/memory/noncoherent_memory.h"
#include "libclient/coherence/space_of.h"

namespace terrace {

using coherence::Outcome;
using coherence::Step;

static_assert((layout::word_live | layout::word_linked) == uint64_t{3} << 62);  // SharedTensor::stable_word
static_assert(
    static_cast<uint64_t>(SpaceOwnership::manager) == static_cast<uint64_t>(layout::OwnershipKind::manager) &&
    static_cast<uint64_t>(SpaceOwnership::hosts) == static_cast<uint64_t>(layout::OwnershipKind::hosts) &&
    static_cast<uint64_t>(SpaceOwnership::locks) == static_cast<uint64_t>(layout::OwnershipKind::locks) &&
    static_cast<uint64_t>(SpaceOwnership::program) == static_cast<uint64_t>(layout::OwnershipKind::program));

namespace {

constexpr uint32_t seats_by_default = 8;
constexpr uint64_t attempts_at_least = 64;
constexpr uint64_t attempts_hot = 200'000;  // some milliseconds; then the processor is given up in between

template <typename Memory>
Result<std::unique_ptr<TensorSpace>> attach_as(const coherence::Geometry& geometry, AttachOptions options) {
  auto space = std::make_unique<SpaceOf<Memory>>(geometry, std::move(options));
  TERRACE_RETURN_IF_ERROR(space->claim());
  return std::unique_ptr<TensorSpace>(
      std::make_unique<LossySpace>(std::move(space), std::span(geometry.base, geometry.total_bytes)));
}

Result<std::unique_ptr<TensorSpace>> attach_to(std::span<std::byte> memory, AttachOptions options) {
  TERRACE_ASSIGN_OR_RETURN(const coherence::Geometry geometry,
                           coherence::read_geometry(memory, coherence::SpaceContent::tensors));
  if (geometry.mode == layout::SpaceMode::coherent)
    return attach_as<coherence::CoherentMemory>(geometry, std::move(options));
  return attach_as<coherence::NonCoherentMemory>(geometry, std::move(options));
}

}  // namespace

Status TensorSpace::format(std::span<std::byte> memory, const SpaceOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(const SpaceCoherence coherence, coherence_for(memory, options.coherence));
  const bool coherent = coherence == SpaceCoherence::coherent;
  const uint32_t seats_left = layout::space_holders_max - std::min(options.parts, layout::space_holders_max);
  return coherence::format_space(
      "TensorSpace::format", memory,
      {.parts = options.parts,
       .records = options.records_per_part,
       .pins = options.pins_per_part,
       .seats = options.seats.value_or(std::min(seats_by_default, seats_left)),
       .features = options.checksums.value_or(!coherent) ? layout::space_feature_checksums : 0,
       .mode = coherent ? layout::SpaceMode::coherent : layout::SpaceMode::noncoherent,
       .lease_epoch = options.lease_epoch.value},
      options.ownership);
}

Result<std::unique_ptr<TensorSpace>> TensorSpace::attach(std::span<std::byte> memory, AttachOptions options) {
  if (memory.size() < sizeof(layout::SpaceHeader) || reinterpret_cast<uintptr_t>(memory.data()) % 64 != 0)
    return Error{.code = ErrorCode::not_found,
                 .where = "TensorSpace::attach",
                 .detail = "tensor space: the memory is shorter than a header, or not 64-byte aligned"};
  return coherence::unless_lost("TensorSpace::attach", memory,
                                [&] { return attach_to(memory, std::move(options)); });
}

uint64_t TensorSpace::look_at(const uint64_t* word) {
  return os::load_alone(word);
}

bool Waiting::again(Outcome outcome) {
  const bool may_change = outcome == Outcome::writing || outcome == Outcome::blank ||
                          outcome == Outcome::pinned || outcome == Outcome::raced;
  if (!may_change || os::LossyAccesses::lost_address() != nullptr) return false;
  ++attempts_;
  if (outcome == Outcome::raced && attempts_ < attempts_at_least) return true;
  if (wait_ns_ == 0) return false;
  if (begin_ns_ == 0) begin_ns_ = clock_.now_ns();
  if (attempts_ % 16 == 0 && clock_.now_ns() - begin_ns_ >= wait_ns_) return false;
  if (attempts_ > attempts_hot) std::this_thread::sleep_for(std::chrono::microseconds(50));
  return true;
}

Error SpaceBase::error_of(Outcome outcome, const SharedTensor& tensor, bool dead) {
  const std::string who = "tensor " + quoted_name(tensor.name());
  const auto make = [](ErrorCode code, std::string detail) {
    return Error{.code = code, .where = "TensorSpace", .detail = std::move(detail)};
  };
  if (dead)
    return make(
        ErrorCode::unavailable,
        who + ": its writer died while it wrote the only slot; it has content again once a new owner of part " +
            std::to_string(tensor.part()) + " publishes it");
  switch (outcome) {
    case Outcome::writing: return make(ErrorCode::busy, who + " is being written; wait longer");
    case Outcome::blank: return make(ErrorCode::busy, who + ": no such version was published yet; wait longer");
    case Outcome::raced:
      return make(ErrorCode::busy, who + " is written faster than it can be read; wait longer");
    case Outcome::pinned:
      return make(ErrorCode::busy, who + ": the bytes are read in place by another holder; wait longer");
    case Outcome::disowned:
      return make(ErrorCode::permission_denied, who + ": part " + std::to_string(tensor.part()) +
                                                    " has another owner by now; attach again to get a part");
    case Outcome::gone: return make(ErrorCode::not_found, who + " was removed");
    case Outcome::corrupt: return make(ErrorCode::corrupt, who + ": the bytes do not have their checksum");
    case Outcome::full:
      return make(ErrorCode::limit_exceeded,
                  who + ": this holder reads as many tensors in place as it has pins; drop one");
    default: return make(ErrorCode::internal, who + ": an answer that does not belong here");
  }
}

Error SpaceBase::read_only(const SharedTensor& tensor) {
  return Error{.code = ErrorCode::permission_denied,
               .where = "TensorSpace",
               .detail = "tensor " + quoted_name(tensor.name()) +
                         ": this holder owns no part and can only copy; attach with ownership"};
}

Error SpaceBase::without_seats(const SharedTensor& tensor) {
  return Error{.code = ErrorCode::permission_denied,
               .where = "TensorSpace",
               .detail = "tensor " + quoted_name(tensor.name()) +
                         ": this holder owns no part and can only copy, as the space has no seats; format it "
                         "anew with seats, or attach with a part"};
}

Error SpaceBase::foreign(const SharedTensor& tensor) {
  return Error{.code = ErrorCode::permission_denied,
               .where = "TensorSpace",
               .detail = "tensor " + quoted_name(tensor.name()) + " is in part " +
                         std::to_string(tensor.part()) + ", which another holder owns"};
}

Error SpaceBase::not_removed(const SharedTensor& tensor, bool dead) {
  const std::string who =
      "tensor " + quoted_name(tensor.name()) + ": the owner of part " + std::to_string(tensor.part());
  return Error{.code = dead ? ErrorCode::unavailable : ErrorCode::busy,
               .where = "TensorSpace",
               .detail = dead ? who + " has died; who takes the part over may remove it"
                              : who +
                                    " has not removed it yet: somebody reads it in place, or the owner made no "
                                    "call; wait longer, or let it call tend()"};
}

TensorIdentity SharedTensor::identity() const {
  if (located_ == nullptr) return {};
  return {.memory = base_,
          .part = located_->part,
          .record = located_->record,
          .incarnation = located_->incarnation};
}

TensorPin::TensorPin(TensorPin&& other) noexcept
    : space_(std::exchange(other.space_, nullptr)),
      pin_(other.pin_),
      version_(other.version_),
      bytes_(std::exchange(other.bytes_, {})) {}

TensorPin& TensorPin::operator=(TensorPin&& other) noexcept {
  if (this == &other) return *this;
  reset();
  space_ = std::exchange(other.space_, nullptr);
  pin_ = other.pin_;
  version_ = other.version_;
  bytes_ = std::exchange(other.bytes_, {});
  return *this;
}

void TensorPin::reset() {
  const os::LossyAccesses accesses;
  if (space_ != nullptr) std::exchange(space_, nullptr)->unpin(pin_);
  bytes_ = {};
}

TensorWrite::TensorWrite(std::unique_ptr<State> state) : state_(std::move(state)) {}
TensorWrite::TensorWrite(TensorWrite&& other) noexcept = default;

TensorWrite::~TensorWrite() {
  const os::LossyAccesses accesses;
  if (state_ != nullptr && state_->open) state_->space->abort_write(state_->ticket);
}

std::span<std::byte> TensorWrite::bytes() const {
  return state_->ticket.bytes;
}

uint64_t TensorWrite::publish() {
  TERRACE_CHECK(state_->open, "a version is published once");
  state_->open = false;
  const os::LossyAccesses accesses;
  const uint64_t version = state_->space->finish_write(state_->ticket);
  return os::LossyAccesses::lost_address() == nullptr ? version : 0;
}

Status TensorWrite::fill(std::span<const std::byte> from) {
  TERRACE_CHECK(state_->open, "a version is filled before it is published");
  const std::span<const std::byte> slot = state_->ticket.bytes;
  if (from.size() != slot.size())
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "TensorWrite::fill",
                 .detail = "the tensor has " + std::to_string(slot.size()) + " bytes, not " +
                           std::to_string(from.size())};
  return coherence::unless_lost("TensorWrite::fill", slot, [&]() -> Status {
    state_->space->fill_write(state_->ticket, from);
    return {};
  });
}

}  // namespace terrace
