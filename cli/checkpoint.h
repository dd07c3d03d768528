// `terrace checkpoint`: checkpoints of tensors in a directory.
#pragma once

#include "cli/cli.h"

namespace terrace::cli {

void add_checkpoint_verbs(CLI::App& app, Context& context);

}  // namespace terrace::cli
