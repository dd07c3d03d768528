// SPDX-License-Identifier: Apache-2.0
// The daemon's own store (daemon/store: journal, SQLite, mark) on the simulated disk, beside the rows that it has to have:
// what was acknowledged is in every later load, what was refused in none, and a batch that a crash or an error cut off is
// there as a whole or not at all.
//
// Place     tests/sim/disk, between EngineStore and daemon/store. Lives as long as the disk, over all processes.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "daemon/store/store.h"
#include "tests/sim/disk/sim_disk.h"
#include "tests/sim/manager/sim_store.h"

namespace terrace::sim {

class RealStore {
 public:
  // `rows` is kept as the truth. `later` runs what it is given some time later, unless the process has died.
  RealStore(Environment& environment, SimStore& rows, std::function<void(std::function<void()>)> later);
  ~RealStore();

  Result<daemon::Image> load();
  Status commit(const daemon::Delta& delta);
  // The process dies within the next few calls of the disk.
  void die_soon() { disk_.die_after(environment_.prng().below(12)); }
  void end_process(bool power_lost);

 private:
  Status open();
  void check(const daemon::Image& image);

  Environment& environment_;
  SimStore& rows_;
  std::function<void(std::function<void()>)> later_;
  std::shared_ptr<bool> opened_;  // as long as the store is there
  SimDisk disk_;
  uint64_t segment_bytes_;
  int checkpoint_frames_;
  std::unique_ptr<daemon::Store> store_;   // of the process
  std::optional<daemon::Delta> in_doubt_;  // its commit ended in none of the ways that say what became of it
};

}  // namespace terrace::sim
