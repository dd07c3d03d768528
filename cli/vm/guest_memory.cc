// SPDX-License-Identifier: Apache-2.0
#include "cli/vm/guest_memory.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/clock.h"
#include "core/base/units.h"

namespace terrace::cli {

GuestMemory::GuestMemory(Session& session, Monitor& monitor, GuestOptions options,
                         std::function<void(std::string)> say)
    : session_(session), monitor_(monitor), options_(std::move(options)), say_(std::move(say)) {}

void GuestMemory::want(uint64_t bytes) {
  wanted_bytes_ = in_blocks(bytes);
  refusal_.reset();
  for (Part& part : parts_) {
    part.grows = true;
    part.refused_bytes.reset();
  }
}

Status GuestMemory::step() {
  try {
    TERRACE_RETURN_IF_ERROR(look());
    TERRACE_RETURN_IF_ERROR(give());
    TERRACE_RETURN_IF_ERROR(take());
    drop_empty();
    return {};
  } catch (const nlohmann::json::exception& error) {
    return strange_answer(error);
  }
}

// What the guest has of each part, and what QEMU believes that it should have.
Status GuestMemory::look() {
  TERRACE_ASSIGN_OR_RETURN(const nlohmann::json found, devices());
  for (Part& part : parts_) {
    const nlohmann::json* seen = nullptr;
    for (const nlohmann::json& device : found)
      if (device.value("data", nlohmann::json::object()).value("id", std::string()) == part.device)
        seen = &device;
    look_at(part, seen);
  }
  if (!another_) return {};
  return Error{ErrorCode::unavailable, 0, where,
               "the machine was started anew, without the memory that it had"};
}

void GuestMemory::look_at(Part& part, const nlohmann::json* device) {
  part.asked = false;
  if (device == nullptr) {
    // A device that never came, or a dimm that the guest has given up. QEMU itself removes no virtio-mem device.
    another_ = another_ || (part.listed && !part.dimm);
    if (part.listed && part.stays())
      wanted_bytes_ -= std::min(wanted_bytes_, part.device_bytes);  // it wanted less
    part.gone = true;
    part.plugged_bytes = part.requested_bytes = 0;
    return;
  }
  const nlohmann::json data = device->value("data", nlohmann::json::object());
  part.listed = true;
  part.plugged_bytes = data.value("size", uint64_t{0});
  if (!part.dimm) part.requested_bytes = data.value("requested-size", part.requested_bytes);
}

// How much of what is left to give this part takes; its lease grows first.
uint64_t GuestMemory::share_of(Part& part, uint64_t left) {
  if (part.dimm) return left == 0 ? 0 : part.device_bytes;
  const uint64_t share = std::min(left, part.device_bytes);
  const uint64_t most = part.lease->bytes() / block_bytes * block_bytes;
  if (share <= most) return share;
  if (part.resizable && part.grows && !part.cut) {
    const Result<LeaseInfo> grown = part.lease->resize(share);
    if (grown.ok()) return share;
    part.resizable = grown.error().code != ErrorCode::unsupported;
    part.grows = false;
  }
  return std::max(most, part.requested_bytes);
}

// Spreads what is wanted over the parts that stay, and adds one for what is left.
Status GuestMemory::give() {
  uint64_t left = wanted_bytes_;
  for (Part& part : parts_) {
    if (!part.stays()) continue;
    const uint64_t share = share_of(part, left);
    TERRACE_RETURN_IF_ERROR(request(part, share));
    left -= std::min(left, share);
  }
  if (left == 0 || refusal_.has_value()) return {};
  const Result<Part*> part = add_part(in_blocks(left));
  if (part.ok()) return request(**part, in_blocks(left));
  refusal_ = part.error();
  return {};
}

// What leaves is emptied once the rest has what it gets, or when half of its time is over.
Status GuestMemory::take() {
  const bool rest_has_it =
      std::all_of(parts_.begin(), parts_.end(), [](const Part& part) { return !part.stays() || part.idle(); });
  const uint64_t now_ns = SystemClock().now_ns();
  for (Part& part : parts_) {
    if (!part.leaving || part.lost || part.gone) continue;
    if (rest_has_it || (part.until_ns != 0 && now_ns >= part.until_ns))
      TERRACE_RETURN_IF_ERROR(request(part, 0));
  }
  return {};
}

// Gives back what the machine was seen to have nothing of, and was not asked to take since.
void GuestMemory::drop_empty() {
  for (Part& part : parts_)
    if (part.stays() && !part.asked && !part.dimm && part.requested_bytes != 0 && part.idle())
      shrink_lease(part);
  for (auto part = parts_.begin(); part != parts_.end();) {
    const bool empty = part->requested_bytes == 0 && part->plugged_bytes == 0 && (!part->dimm || part->gone);
    if (!empty || part->asked) {
      ++part;
      continue;
    }
    // A virtio-mem device stays in the machine (QEMU 7.2 cannot remove one): empty, it touches nothing.
    if (part->gone) (void)monitor_.ask("object-del", {{"id", part->device + "-memory"}});
    const std::string lease = "lease " + std::to_string(part->lease->id().value) + " (" + part->label + ")";
    const Status released = part->lost ? Status() : part->lease->release();
    if (!released.ok() && part->lease->state() != LeaseState::lost)
      say_(lease + " could not be given back now, it ends with its TTL: " + released.error().to_string());
    say_("the guest has given up " + lease);
    part = parts_.erase(part);
  }
}

void GuestMemory::take_away(LeaseId lease, uint64_t until_ns) {
  const uint64_t now_ns = SystemClock().now_ns();
  const uint64_t half_ns = until_ns > now_ns ? now_ns + (until_ns - now_ns) / 2 : now_ns;
  for (Part& part : parts_) {
    if (part.lease->id() != lease) continue;
    part.leaving = true;
    part.until_ns = part.until_ns == 0 ? half_ns : std::min(part.until_ns, half_ns);
    refusal_.reset();
  }
}

Status GuestMemory::replace_all() {
  const size_t before = parts_.size();
  if (std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.leaving; }))
    return Error{ErrorCode::busy, 0, where, "the guest has not given up yet what it was asked for before"};
  if (wanted_bytes_ == 0) return {};
  const Result<Part*> replacement = add_part(wanted_bytes_);
  if (!replacement.ok()) return replacement.error();
  for (size_t index = 0; index < before; ++index) parts_[index].leaving = true;
  refusal_.reset();
  return {};
}

void GuestMemory::lost(LeaseId lease) {
  for (Part& part : parts_)
    if (part.lease->id() == lease) part.lost = true;
}

void GuestMemory::keep_what_is_there() {
  for (Part& part : parts_) {
    if (!part.dimm || !part.leaving || part.until_ns != 0 || part.gone) continue;
    part.leaving = false;
    part.requested_bytes = part.device_bytes;
  }
  uint64_t bytes = 0;
  for (const Part& part : parts_)
    if (part.stays()) bytes += std::min(part.plugged_bytes, part.lease->bytes());
  want(bytes);
}

void GuestMemory::take_by_force() {
  for (Part& part : parts_)
    if (!part.lost && !part.gone && part.plugged_bytes > part.requested_bytes) take_rest_of(part);
}

bool GuestMemory::settled() const {
  return std::all_of(parts_.begin(), parts_.end(),
                     [](const Part& part) {
                       return part.lost ||
                              (part.stays() && !part.asked && (part.idle() || part.refused_bytes.has_value()));
                     }) &&
         (plugged_bytes() >= wanted_bytes_ || refusal_.has_value());
}

bool GuestMemory::empty() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.lost; });
}

uint64_t GuestMemory::plugged_bytes() const {
  uint64_t bytes = 0;
  for (const Part& part : parts_)
    if (!part.lost) bytes += part.plugged_bytes;
  return bytes;
}

nlohmann::json GuestMemory::describe() const {
  nlohmann::json parts = nlohmann::json::array();
  for (const Part& part : parts_)
    parts.push_back({{"lease", part.lease->id().value},
                     {"label", part.label},
                     {"bytes", part.lease->bytes()},
                     {"model", part.dimm ? "dimm" : "virtio-mem"},
                     {"device", part.device},
                     {"device_bytes", part.device_bytes},
                     {"requested_bytes", part.requested_bytes},
                     {"plugged_bytes", part.plugged_bytes},
                     {"leaving", part.leaving},
                     {"lost", part.lost}});
  return {{"label", options_.label},
          {"wanted_bytes", wanted_bytes_},
          {"plugged_bytes", plugged_bytes()},
          {"settled", settled()},
          {"refused", refusal_.has_value() ? nlohmann::json(refusal_->to_string()) : nlohmann::json()},
          {"parts", std::move(parts)}};
}

}  // namespace terrace::cli
