// SPDX-License-Identifier: Apache-2.0
// What the environment asks for, and lines to stderr. docs/operations/llama.md lists the variables.
//
// Threads   read_settings() in ggml_backend_init; the rest from all.
#pragma once

#include <cstdint>
#include <string>

namespace terrace::plugin {

struct Settings {
  std::string pool;        // TERRACE_GGML_POOL; empty: the only one
  std::string lease;       // TERRACE_GGML_LEASE: the label of a lease that is there; empty: new ones
  std::string label;       // TERRACE_GGML_LABEL: of new leases
  uint64_t ddr_bytes = 0;  // TERRACE_GGML_DDR; set to half of the host's free memory when it is not given
  uint64_t cxl_bytes = 0;  // TERRACE_GGML_CXL; 0: as much as is asked for
  bool required = false;   // TERRACE_GGML_REQUIRED
  bool mapped = false;     // TERRACE_GGML_WEIGHTS=mapped: a model file stays where it is mapped
  bool steps = false;      // TERRACE_GGML_STEPS=follow: the pool learns the order of layers
  int guard_wait = 0;      // TERRACE_GGML_WAIT: TERRACE_WAIT_...
  bool verbose = false;    // TERRACE_GGML_VERBOSE
};

// Returns the first variable that is wrong, with what would be right; empty: all are.
std::string read_settings(Settings& settings);

// "64M", "1.5G", "4096": bytes. false: it is none.
bool parse_size(const std::string& text, uint64_t& bytes);
// "1.50 GiB"
std::string size_text(uint64_t bytes);

// A line to stderr, with "terrace: " in front.
void complain(const std::string& text);

}  // namespace terrace::plugin
