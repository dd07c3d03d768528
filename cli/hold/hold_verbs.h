// SPDX-License-Identifier: Apache-2.0
// `terrace lease exec`, `hold`, `path` and `cdi`, as cli/verbs adds them to its family.
#pragma once

#include "cli/terminal/command_line.h"
#include "cli/terminal/output.h"

namespace terrace::cli {

void add_lease_exec_verb(Command lease, Context& context);
void add_lease_hold_verb(Command lease, Context& context);
void add_lease_path_verb(Command lease, Context& context);
void add_lease_cdi_verb(Command lease, Context& context);  // cli/containers

}  // namespace terrace::cli
