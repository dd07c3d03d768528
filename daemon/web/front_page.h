// SPDX-License-Identifier: Apache-2.0
// What a browser sees at /: where everything is. Without scripts.
#pragma once

#include <string>

namespace terrace::daemon {

std::string front_page();

}  // namespace terrace::daemon
