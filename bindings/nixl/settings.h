// SPDX-License-Identifier: Apache-2.0
// The parameters of the backend, and lines to stderr. docs/operations/nixl.md lists the parameters.
//
// Threads   read_settings() while the engine is made; complain() from all.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace terrace::nixl {

struct Settings {
  std::string socket;      // of the manager; empty: the usual one
  std::string space;       // label or number of the lease with the KV space; empty: no objects
  std::string name_space;  // of its keys
  bool replaces = true;    // a write of a key that is there: true: its block is replaced; false: it stays
  uint64_t ttl_s = 0;      // of what is put; 0: no end
  std::vector<std::string> leases;  // labels or numbers: memory that is registered may lie in them
  bool publishes = true;  // what the program stored to registered memory is written back before notifications
  uint32_t threads = 1;   // that copy beside the caller
  std::string listen;     // a folder, or ADDRESS:PORT; empty: an abstract unix socket
};

using Parameters = std::unordered_map<std::string, std::string>;

// What is not in `parameters` is looked up in the environment, as TERRACE_NIXL_NAME. Returns the first value that is
// wrong, with what would be right; empty: all are right.
std::string read_settings(const Parameters& parameters, Settings& settings);
// All there are, with their defaults, as NIXL shows them.
Parameters default_parameters();

// A line to stderr: NIXL hands on no more than a number.
void complain(const std::string& text);

}  // namespace terrace::nixl
