// SPDX-License-Identifier: Apache-2.0
// The processes of a run, which its broker knows.
#pragma once

#include <vector>

#include "allocator/supply/broker.h"
#include "cli/program/supervisor.h"

namespace terrace::cli {

// `broker` outlives it.
class RunProcesses final : public Leftovers {
 public:
  explicit RunProcesses(supply::Broker& broker) : broker_(broker) {}
  void look() override { broker_.scan(); }
  bool in_use() override { return broker_.in_use(); }
  std::vector<pid_t> processes() override { return broker_.processes(); }

 private:
  supply::Broker& broker_;
};

}  // namespace terrace::cli
