// SPDX-License-Identifier: Apache-2.0
// `terrace cert revoke` and `terrace cert list`: taking certificates back before they end.
#pragma once

#include "cli/terminal/command_line.h"
#include "cli/terminal/output.h"
#include "cli/tools/cert_files.h"

namespace terrace::cli {

void add_cert_revocation_verbs(Command cert, Context& context);

// A certificate, or a list, is valid for so many days.
Status check_days(int64_t days);

// Remembers what was issued, before anybody has it.
Status note_issued(const std::string& directory, const std::string& certificate_pem);
// A list of nobody, so that managers can be told of the file from the first day.
Status write_first_list(const Ca& ca);

}  // namespace terrace::cli
