// SPDX-License-Identifier: Apache-2.0
// The bytes that tensors of a space had at one moment, as a Snapshot that a checkpoint drains.
//
// The cut   Every tensor's newest version is pinned; then each is checked to be still the newest. If all are,
//           all were so at one moment, between the last pin and the first check. A tensor with a newer version
//           is pinned again while its old pin stays. Both slots are taken then, its writer can begin no write,
//           and the version is the newest at the next check. So each is pinned twice at most; not so if copied.
// Threads   take() is the caller's; view() and release() are the draining thread's.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "terrace/checkpoint.h"

namespace terrace::checkpoint {

// Local memory of whole pages.
class LocalBytes {
 public:
  LocalBytes() = default;
  static Result<LocalBytes> make(uint64_t bytes);
  LocalBytes(LocalBytes&& other) noexcept : bytes_(other.bytes_) { other.bytes_ = {}; }
  LocalBytes& operator=(LocalBytes&& other) noexcept;
  ~LocalBytes() { reset(); }
  void reset();
  std::span<std::byte> get() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

class SpaceCut final : public Snapshot {
 public:
  // As CheckpointDirectory::checkpoint.
  static Result<std::unique_ptr<SpaceCut>> take(TensorSpace& space, std::span<const SharedTensor> tensors,
                                                const SpaceCheckpointOptions& options);
  ~SpaceCut() override;

  std::vector<TensorView> views() const;

  std::vector<std::span<const std::byte>> view(std::span<const std::byte> part) const override {
    return {part};
  }
  void release(std::span<const std::byte> part) override;
  SnapshotStatus status() const override { return status_; }

 private:
  struct Taken {
    SharedTensor tensor;
    TensorPin pin = {}, brake = {};  // the newest version, and an older one while the cut is made
    bool pinned = false;
    LocalBytes copy = {};
    uint64_t version = 0;
    std::span<const std::byte> bytes = {};
    uint64_t bytes_left = 0;
  };
  explicit SpaceCut(TensorSpace& space) : space_(space) {}
  Status hold_still(const SpaceCheckpointOptions& options, uint64_t deadline_ns);
  Status take_one(Taken& taken, uint64_t deadline_ns);
  Status copy_one(Taken& taken);
  static void let_go(Taken& taken);

  TensorSpace& space_;
  std::vector<Taken> taken_;  // by address, once the cut is made
  SnapshotStatus status_;
};

}  // namespace terrace::checkpoint
