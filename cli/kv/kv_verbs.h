// SPDX-License-Identifier: Apache-2.0
// The verbs of `terrace kv`, and what they share.
//
// Threads   The main thread.
#pragma once

#include <optional>
#include <string>

#include "cli/terminal/command_line.h"
#include "cli/terminal/output.h"
#include "core/base/result.h"
#include "terrace/kv_space.h"

namespace terrace::cli {

void add_kv_format_verb(Command kv, Context& context);
void add_kv_show_verbs(Command kv, Context& context);   // stat, list, verify
void add_kv_block_verbs(Command kv, Context& context);  // put, get, erase
void add_kv_room_verbs(Command kv, Context& context);   // evict, flush
void add_kv_policy_verb(Command kv, Context& context);
void add_kv_member_verbs(Command kv, Context& context);  // grow, shrink
void add_kv_serve_verb(Command kv, Context& context);

// The positional argument WHERE.
Option add_kv_where(Command verb, std::string& where);
Option add_kv_namespace(Command verb, std::string& name);

}  // namespace terrace::cli
