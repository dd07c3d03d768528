// SPDX-License-Identifier: Apache-2.0
// `terrace device litmus`: tests whether memory is coherent. litmus.cc asks the manager and shows the
// result; litmus_path.cc plays one of two sides on a path, without the manager.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/terminal/verb.h"
#include "core/litmus/report.h"
#include "core/litmus/side.h"

namespace terrace::cli {

class AdminClient;

struct LitmusPath {
  std::string path;
  uint64_t offset_bytes = 0;
  litmus::Role role = litmus::Role::first;
  uint64_t rounds = litmus::rounds_default;
  uint64_t wait_ns = 60 * ns_per_s;  // for the other side to come
  bool yes = false;
};

// Plays one side; the other one runs on this or another host, over the same bytes, of which
// litmus::region_bytes are overwritten.
//
// Errors    cancelled, invalid_argument   not agreed to; or the path, the offset or the rounds cannot be used
//           busy          a manager on this host has adopted the memory, or as litmus::Side
//           unavailable   the other side did not come, or is not heard of any more
//           io_error      the memory failed under an access (SIGBUS)
Result<litmus::Report> litmus_on_path(const Context& context, const LitmusPath& wanted);

nlohmann::json litmus_json(const litmus::Report& report);
// The table of shapes, examples of what was seen, and the note.
std::string litmus_text(const litmus::Report& report);

void add_litmus_verb(Command device, Context& context);

// Devices of a pool that is said to be coherent which no run since the manager's start has found so, each with
// why in words: "emu:a (not looked at)".
std::vector<std::string> not_known_coherent(AdminClient& client, const std::string& pool);
std::string say_not_known_coherent(const std::vector<std::string>& devices);

}  // namespace terrace::cli
