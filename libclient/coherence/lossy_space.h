// SPDX-License-Identifier: Apache-2.0
// A space whose memory may go away at any moment, when its lease ends. Each call goes to the space behind it. A
// call that missed the memory answers lease_expired instead of its result. From then on every call does so at
// once: the space's state of its part may be wrong.
//
// The protocol below goes on without the memory until the call ends (coherent_memory.h), so that locks are
// released and objects destroyed. The holders' own loads and stores in place are not covered.
//
// Threads   Any number.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/os/lossy_access.h"
#include "libclient/coherence/space_base.h"

namespace terrace {

// What is wrong when accesses at `address` fail, of a space in `memory`.
Error lost_memory(const char* where, const void* address, std::span<const std::byte> memory);

class LossySpace final : public TensorSpace {
 public:
  LossySpace(std::unique_ptr<SpaceBase> space, std::span<const std::byte> memory)
      : space_(std::move(space)), memory_(memory) {}
  ~LossySpace() override {
    const os::LossyAccesses accesses;
    space_.reset();
  }

  std::optional<uint32_t> part() const override { return space_->part(); }
  std::optional<uint32_t> seat() const override { return space_->seat(); }
  uint32_t parts() const override { return space_->parts(); }
  SpaceCoherence coherence() const override { return space_->coherence(); }
  uint64_t free_bytes() const override {
    const auto bytes = survive([&] { return Result(space_->free_bytes()); });
    return bytes.ok() ? *bytes : 0;
  }
  uint64_t largest_free_bytes() const override {
    const auto bytes = survive([&] { return Result(space_->largest_free_bytes()); });
    return bytes.ok() ? *bytes : 0;
  }

  Result<SharedTensor> create(const TensorSpec& spec, const CreateOptions& options) override {
    return survive([&] { return space_->create(spec, options); });
  }
  Result<SharedTensor> open(std::string_view name) override {
    return survive([&] { return space_->open(name); });
  }
  std::vector<SharedTensor> list() override {
    auto tensors = survive([&] { return Result(space_->list()); });
    return tensors.ok() ? *std::move(tensors) : std::vector<SharedTensor>();
  }
  Status remove(const SharedTensor& tensor, uint64_t wait_ns) override {
    return survive([&] { return space_->remove(tensor, wait_ns); });
  }
  uint64_t tend() override {
    const auto removed = survive([&] { return Result(space_->tend()); });
    return removed.ok() ? *removed : 0;
  }
  Result<uint64_t> version(const SharedTensor& tensor) override {
    return survive([&] { return space_->version(tensor); });
  }
  Result<uint64_t> read(const SharedTensor& tensor, std::span<std::byte> into, uint64_t known,
                        uint64_t wait_ns) override {
    return survive([&] { return space_->read(tensor, into, known, wait_ns); });
  }
  Result<TensorPin> pin(const SharedTensor& tensor, uint64_t wait_ns) override {
    return survive([&] { return space_->pin(tensor, wait_ns); });
  }
  Result<uint64_t> wait_for_version(const SharedTensor& tensor, uint64_t version, uint64_t wait_ns) override {
    return survive([&] { return space_->wait_for_version(tensor, version, wait_ns); });
  }
  Result<TensorWrite> write(const SharedTensor& tensor, uint64_t wait_ns) override {
    return survive([&] { return space_->write(tensor, wait_ns); });
  }
  Result<uint64_t> publish(const SharedTensor& tensor, std::span<const std::byte> bytes,
                           uint64_t wait_ns) override {
    return survive([&] { return space_->publish(tensor, bytes, wait_ns); });
  }
  Status health() const override;

 protected:
  bool is_current_slowly(const SharedTensor& tensor, uint64_t version) override {
    const auto current = survive([&] { return Result(space_->is_current(tensor, version)); });
    return current.ok() && *current;
  }
  // Pins hold the space behind this one.
  void unpin(uint32_t) override {}

 private:
  template <typename Call>
  auto survive(Call call) const -> decltype(call()) {
    if (lost_.load(std::memory_order_relaxed)) [[unlikely]]
      return lost_memory("TensorSpace", memory_.data(), memory_);
    const os::LossyAccesses accesses;
    auto answer = call();
    if (os::LossyAccesses::lost_address() != nullptr) [[unlikely]]
      return lost_at(os::LossyAccesses::lost_address());
    return answer;
  }
  Error lost_at(const void* address) const;

  std::unique_ptr<SpaceBase> space_;
  const std::span<const std::byte> memory_;
  mutable std::atomic<bool> lost_ = false;
};

}  // namespace terrace
