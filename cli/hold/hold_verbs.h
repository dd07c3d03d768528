// SPDX-License-Identifier: Apache-2.0
// `terrace lease exec` and `terrace lease hold`, as cli/verbs adds them to its family.
#pragma once

#include "cli/terminal/command_line.h"
#include "cli/terminal/output.h"

namespace terrace::cli {

void add_lease_exec_verb(Command lease, Context& context);
void add_lease_hold_verb(Command lease, Context& context);

}  // namespace terrace::cli
