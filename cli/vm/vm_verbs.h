// SPDX-License-Identifier: Apache-2.0
// The verbs of `terrace vm`, which vm.cc puts together.
#pragma once

#include "cli/terminal/command_line.h"
#include "cli/terminal/output.h"
#include "cli/vm/vm_keeper.h"

namespace terrace::cli {

void add_vm_run_verb(Command vm, Context& context);
void add_vm_attach_verb(Command vm, Context& context);

// The label, and what both take. `arguments` must stay where it is.
struct VmArguments {
  KeeperOptions keeper;
  std::string mode = "exclusive";
  std::string model = "auto";
};
void add_vm_memory_options(Command verb, VmArguments& arguments);
// Errors    invalid_argument   a size that no guest can take
Status check_vm_arguments(VmArguments& arguments);

}  // namespace terrace::cli
