// SPDX-License-Identifier: Apache-2.0
// libterrace's side of the engine: a Tiering is an Engine with a thread, a TieredRange a TieredMemory of it.
//
// Place     Behind libclient/include/terrace/tiering.h, the interface for programs.
// Threads   Engine::lock() orders programs' calls with rounds.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/os/memory_map.h"
#include "terrace/tiering.h"
#include "tiering/engine/engine.h"

namespace terrace {

class EngineTiering final : public Tiering {
 public:
  ~EngineTiering() override;
  Status begin(const TieringOptions& options);

  bool can_migrate() const override { return engine_.can_move(); }
  std::string why_not() const override { return why_not_; }
  Result<std::unique_ptr<TieredRange>> make_range(const TieredRangeOptions& options,
                                                  std::vector<std::shared_ptr<Lease>> leases) override;
  void set_copy_budget(uint64_t bytes_per_s) override;
  tiering::Engine& engine() { return engine_; }
  bool shares_ddr() const { return shares_ddr_; }
  // Where a further userfaultfd comes from; -1: from the kernel.
  int userfault_device() const { return device_.get(); }
  // Memory that lies behind a range of this Tiering: by its file. With the engine's lock.
  bool take_file(uint64_t device, uint64_t inode);
  void give_file(uint64_t device, uint64_t inode);

 private:
  tiering::Engine engine_;
  UniqueFd device_;
  std::string why_not_;
  bool shares_ddr_ = false;
  std::set<std::pair<uint64_t, uint64_t>> files_;
  std::thread thread_;
};

class EngineRange final : public TieredRange {
 public:
  explicit EngineRange(EngineTiering& tiering) : tiering_(tiering) {}
  ~EngineRange() override;
  Status make(const TieredRangeOptions& options, std::vector<std::shared_ptr<Lease>> leases);

  std::span<std::byte> bytes() override { return map_.bytes().first(memory_.bytes()); }
  uint64_t granule_bytes() const override { return memory_.granule_bytes(); }
  Result<Hold> hold(std::span<const std::byte> part) override;
  void announce(std::span<const std::byte> part, uint64_t in_ns) override;
  void note_access(std::span<const std::byte> part, uint32_t times) override;
  Tier tier_of(const void* address) const override;
  TieredRangeStatus status() const override;
  void pause() override;
  void resume() override;
  Status set_policy(const std::string& name) override;
  void set_ddr_bytes_max(uint64_t bytes) override;
  Result<uint64_t> move_to(std::span<const std::byte> part, Tier tier) override;
  Result<std::unique_ptr<Snapshot>> freeze(std::span<const std::span<const std::byte>> parts,
                                           std::span<const std::span<std::byte>> room) override;

 private:
  struct Part {
    uint32_t first = 0, count = 0;
  };
  void let_go(uint32_t first, uint32_t count) override { memory_.unhold(first, count); }
  Part part_of(std::span<const std::byte> bytes) const;  // count 0: not inside
  Status place(uint64_t ddr_bytes);

  EngineTiering& tiering_;
  os::MemoryMap map_;
  UniqueFd ddr_file_;
  // A lease, its own descriptor here, and what it was when it was mapped: after a move or a resize its memory
  // is another, which the range must not mix with the first.
  struct Segment {
    std::shared_ptr<Lease> lease;
    UniqueFd fd;
    LeaseEpoch epoch;
    uint64_t bytes = 0;
    uint64_t device = 0, inode = 0;
  };
  static const char* why_stop(void* segments);
  Error no_migration() const;
  Status add_leases(std::vector<std::shared_ptr<Lease>> leases);

  std::vector<Segment> segments_;
  tiering::TieredMemory memory_;
  std::atomic<bool> frozen_{false};  // one snapshot at a time
  uint32_t index_ = 0;
  bool added_ = false;
};

}  // namespace terrace
