// SPDX-License-Identifier: Apache-2.0
// `terrace cert renew`: this client's certificate, renewed by the manager.
#pragma once

#include "cli/terminal/command_line.h"
#include "cli/terminal/output.h"

namespace terrace::cli {

void add_cert_renew_verb(Command cert, Context& context);

}  // namespace terrace::cli
