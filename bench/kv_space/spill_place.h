// SPDX-License-Identifier: Apache-2.0
// A folder for a spill, below $TMPDIR, which goes with this.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "bench/kv_space/support.h"

namespace terrace::bench::kv {

class SpillPlace {
 public:
  SpillPlace() {
    const char* const tmp = std::getenv("TMPDIR");
    name_ = std::string(tmp != nullptr ? tmp : "/tmp") + "/terrace-bench-spill-XXXXXX";
    if (::mkdtemp(name_.data()) == nullptr) give_up("no folder for the spill");
  }
  ~SpillPlace() { std::filesystem::remove_all(name_); }
  SpillPlace(const SpillPlace&) = delete;
  SpillPlace& operator=(const SpillPlace&) = delete;
  const std::string& name() const { return name_; }
  std::string plain() const { return name_ + "/plain"; }

 private:
  std::string name_;
};

}  // namespace terrace::bench::kv
