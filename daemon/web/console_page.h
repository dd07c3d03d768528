// SPDX-License-Identifier: Apache-2.0
// What is answered below /console/.
#pragma once

#include <string_view>

#include "daemon/web/web_answer.h"

namespace terrace::daemon {

bool has_console();
// `path`: "/console", or begins with "/console/".
WebAnswer answer_console(std::string_view path, const FileWishes& wishes);

}  // namespace terrace::daemon
