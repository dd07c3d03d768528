// SPDX-License-Identifier: Apache-2.0
// Computes a graph in slices, and tells the pool before each which weights and caches it uses. So the pool learns the
// order in which layers come, and copies those that are next to DDR while others are computed.
//
// Threads   One object a backend; ggml computes one graph at a time on it.
#pragma once

#include <cstdint>
#include <vector>

#include "bindings/ggml/buffer.h"

namespace terrace::plugin {

class Steps {
 public:
  // On `cpu`, the host's own backend.
  ggml_status compute(ggml_backend_t cpu, ggml_cgraph* graph);

 private:
  struct Use {
    Block* block;
    uint64_t begin, end;  // bytes in the block
    bool operator==(const Use&) const = default;
  };
  struct Slice {
    int begin, end;  // nodes
    std::vector<Use> uses;
  };

  void plan(ggml_cgraph* graph);
  void note_step(const Use& first);

  std::vector<Slice> slices_;
  Use first_{};  // of this step: when it comes again, a new step begins
};

}  // namespace terrace::plugin
