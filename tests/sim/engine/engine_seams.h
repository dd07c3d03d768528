// SPDX-License-Identifier: Apache-2.0
// What the engine stands on, in the simulation: time, rows and memory. Each call may fail as the seed says, may be
// where the process dies, and is checked: nobody is shut out, and nothing erased or cut, by a decision that a crash
// could undo.
//
// Place     tests/sim/engine, between daemon/event_loop and SimStore, SimBackend. One of each for a process.
#pragma once

#include <string>
#include <vector>

#include "core/base/clock.h"
#include "daemon/memory/backend.h"
#include "daemon/store/store.h"
#include "tests/sim/disk/real_store.h"
#include "tests/sim/engine/fate.h"
#include "tests/sim/manager/sim_backend.h"
#include "tests/sim/manager/sim_store.h"

namespace terrace::sim {

class EngineClock final : public Clock {
 public:
  explicit EngineClock(const Environment& environment) : environment_(environment) {}
  uint64_t now_ns() const override { return environment_.now_ns(); }
  std::string boot_id() const override { return "boot-" + std::to_string(boot_); }
  void reboot() { ++boot_; }

 private:
  const Environment& environment_;
  uint64_t boot_ = 1;
};

class EngineStore final : public daemon::Store {
 public:
  // `durable` is told of each batch that commit() says is durable. Where there is a `real` store, that one is asked.
  EngineStore(Environment& environment, SimStore& store, RealStore* real, Fate& fate,
              std::function<void(const daemon::Delta&)> durable);

  Result<daemon::Image> load() override;
  Status commit(const daemon::Delta& delta) override;
  bool quick() const override { return quick_; }

 private:
  Status commit_to_real(const daemon::Delta& delta);

  Environment& environment_;
  SimStore& store_;
  RealStore* real_;
  Fate& fate_;
  std::function<void(const daemon::Delta&)> durable_;
  bool quick_;
  std::optional<daemon::Delta> late_;  // a planted defect's: said to be durable, and not there
};

class EngineMemory final : public daemon::Backend {
 public:
  EngineMemory(Environment& environment, SimBackend& backend, const SimStore& store, Fate& fate);

  // Before it serves, what no row knows is destroyed, and that does not fail.
  void serving() { serving_ = true; }
  void recovering() { serving_ = false; }
  // A planted defect's: what a recovery asks to be done again is not done.
  void ignore(std::string object) { ignored_.insert(std::move(object)); }

  std::string_view kind() const override { return "emulated"; }
  std::vector<daemon::SeenDevice> discover() override;
  Status refresh() override;
  Status carve(const std::string& name, uint64_t bytes, const std::vector<daemon::Extent>& extents) override;
  Result<UniqueFd> open(const std::string& name, daemon::ObjectAccess access) override;
  Status fence(const std::string& name) override;
  Result<uint64_t> scrub(const std::string& name) override;
  bool erases_in_place(std::string_view) const override { return backend_.erases_in_place(); }
  Status erase(const std::string& name, const std::vector<daemon::Extent>& extents, uint64_t offset,
               uint64_t length) override;
  Status resize(const std::string& name, uint64_t from_bytes, uint64_t to_bytes,
                const std::vector<daemon::Extent>& extents) override;
  Status rebind(const std::string& from, const std::string& to, uint64_t bytes,
                const std::vector<daemon::Extent>& extents) override;
  Status copy(const std::string& from, const std::string& to, uint64_t bytes) override;
  bool quick(std::string_view, uint64_t bytes) const override { return bytes <= quick_bytes_; }
  Result<std::vector<daemon::ObservedObject>> list() override;
  Result<daemon::ObservedObject> usage(const std::string& name) override;
  std::string describe_memory() const override { return "the simulation's memory"; }
  bool huge_pages(std::string_view) const override { return false; }

 private:
  // Does `work` of the kind that `effect` says: whole, in part, or not at all.
  template <typename Work>
  Status perform(const char* what, const std::string& object, const daemon::Effect& effect, bool may_pass,
                 Work work);
  bool taken_back(const daemon::LeaseRow* row) const;
  const daemon::LeaseRow* row_of(const std::string& object) const;
  bool is_orphan(const std::string& object) const { return !serving_ && row_of(object) == nullptr; }
  void check_taken_back(const std::string& object, const char* done);
  void check_resize(const daemon::ResizeObject& effect);

  Environment& environment_;
  SimBackend& backend_;
  const SimStore& store_;
  Fate& fate_;
  uint64_t quick_bytes_;
  bool serving_ = false;
  std::set<std::string> ignored_;
};

}  // namespace terrace::sim
