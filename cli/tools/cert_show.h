// SPDX-License-Identifier: Apache-2.0
// `terrace cert show`: whose a certificate is, what it gives, and until when.
#pragma once

#include "cli/terminal/command_line.h"
#include "cli/terminal/output.h"

namespace terrace::cli {

void add_cert_show_verb(Command cert, Context& context);

}  // namespace terrace::cli
