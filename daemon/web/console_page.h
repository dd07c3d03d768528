// What is answered below /console/.
#pragma once

#include <string_view>

#include "daemon/web/api.h"

namespace terrace::daemon {

// What of a request decides how a file is sent.
struct FileWishes {
  std::string_view accepted;  // Accept-Encoding
  std::string_view known;     // If-None-Match
};

bool has_console();
// `path`: "/console", or begins with "/console/".
WebAnswer answer_console(std::string_view path, const FileWishes& wishes);

}  // namespace terrace::daemon
