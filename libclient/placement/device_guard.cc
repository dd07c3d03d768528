// SPDX-License-Identifier: Apache-2.0
// What the core asks of tier hbm for a tensor, and the guards that a program holds.
#include <algorithm>
#include <chrono>
#include <utility>

#include "libclient/placement/core.h"

namespace terrace {

using placement::OpenDeviceGuard;

DeviceGuard::DeviceGuard(std::shared_ptr<OpenDeviceGuard> open) : open_(std::move(open)) {}

uint64_t DeviceGuard::address() const {
  return open_ == nullptr ? 0 : open_->address;
}

uint64_t DeviceGuard::bytes() const {
  return open_ == nullptr ? 0 : open_->bytes;
}

std::shared_ptr<DeviceBuffer> DeviceGuard::buffer() const {
  if (open_ == nullptr || open_->opened.buffer == nullptr) return nullptr;
  return {open_, open_->opened.buffer.get()};  // whoever has it has the guard
}

Result<dlpack::Memory> DeviceGuard::dlpack_memory() const {
  if (open_ == nullptr) return Error{ErrorCode::invalid_argument, 0, "DeviceGuard", "the guard is closed"};
  return dlpack::Memory{.data = reinterpret_cast<const void*>(open_->address),
                        .device = dlpack::device_of(open_->storage->core->device_info()),
                        .dtype = open_->storage->dtype,
                        .shape = open_->shape,
                        .strides = open_->strides,
                        .keep = open_,
                        .read_only = !open_->writes};
}

void DeviceGuard::close() {
  open_.reset();
}

namespace placement {
namespace {

// A move of the host's bytes, and the end of a replica.
class BothMoves final : public MoveHandle {
 public:
  BothMoves(std::shared_ptr<MoveHandle> host, std::shared_ptr<MoveHandle> replica)
      : host_(std::move(host)), replica_(std::move(replica)) {}
  bool done() const override { return host_->done() && replica_->done(); }
  Status wait(uint64_t timeout_ns) override {
    const auto begin = std::chrono::steady_clock::now();
    TERRACE_RETURN_IF_ERROR(replica_->wait(timeout_ns));
    const auto waited =
        static_cast<uint64_t>((std::chrono::steady_clock::now() - begin) / std::chrono::nanoseconds(1));
    return host_->wait(timeout_ns - std::min(timeout_ns, waited));
  }
  uint64_t bytes_there() const override { return host_->bytes_there(); }

 private:
  std::shared_ptr<MoveHandle> host_, replica_;
};

Error no_device(const std::string& words) {
  return {ErrorCode::unsupported, 0, "TensorPool",
          words + ": the pool has no tier hbm (TensorPoolOptions::device)"};
}

}  // namespace

OpenDeviceGuard::~OpenDeviceGuard() {
  if (entered) storage->core->close(*this);
}

Result<std::shared_ptr<OpenDeviceGuard>> Core::open_device(const std::shared_ptr<Storage>& storage, bool write,
                                                           const DeviceGuardOptions& options) {
  if (device_ == nullptr) return no_device(in_words(*storage));
  TERRACE_RETURN_IF_ERROR(check_leases());
  auto guard = std::make_shared<OpenDeviceGuard>();
  guard->storage = storage;
  guard->writes = write;
  if (storage->replica == nullptr) return guard;  // no bytes
  TERRACE_ASSIGN_OR_RETURN(guard->opened, device_->open(*storage->replica, write, options));
  guard->entered = true;
  return guard;
}

void Core::close(OpenDeviceGuard& guard) {
  if (in_child()) {  // neither the locks nor the device are this process's: its copies are kept for ever
    new std::shared_ptr<DeviceBuffer>(std::move(guard.opened.buffer));
    return;
  }
  guard.opened.buffer = nullptr;
  device_->close(*guard.storage->replica, guard.writes, guard.opened.ticket);
}

Status Core::write_back(Storage& storage) {
  return storage.replica == nullptr ? Status() : device_->host_opens(*storage.replica, false);
}

Status Core::discard_hbm(Storage& storage) {
  return storage.replica == nullptr ? Status() : device_->discard(*storage.replica);
}

Result<std::shared_ptr<MoveHandle>> Core::to_hbm(Storage& storage, bool pin) {
  if (device_ == nullptr) return no_device(in_words(storage));
  if (pin && storage.pins > 0)
    return Error{ErrorCode::busy, 0, "TensorPool",
                 in_words(storage) + " is pinned in " + std::string(tier_name(storage.pin_tier))};
  if (storage.replica == nullptr) {  // no bytes
    auto state = std::make_shared<MoveState>();
    state->finish({});
    return std::shared_ptr<MoveHandle>(std::move(state));
  }
  TERRACE_ASSIGN_OR_RETURN(auto state, pin ? device_->pin(*storage.replica) : device_->bring(*storage.replica));
  return std::shared_ptr<MoveHandle>(std::move(state));
}

Result<std::shared_ptr<MoveHandle>> Core::move_from_hbm(Storage& storage, std::span<std::byte> bytes,
                                                        Tier tier) {
  if (tier == Tier::hbm || storage.replica == nullptr) return move(storage, bytes, tier);
  if (device_->pins(*storage.replica) > 0)
    return Error{ErrorCode::busy, 0, "TensorPool", in_words(storage) + " is pinned in hbm"};
  TERRACE_ASSIGN_OR_RETURN(auto host, move(storage, bytes, tier));
  TERRACE_ASSIGN_OR_RETURN(auto replica, device_->release(*storage.replica));
  return std::shared_ptr<MoveHandle>(std::make_shared<BothMoves>(std::move(host), std::move(replica)));
}

}  // namespace placement
}  // namespace terrace
