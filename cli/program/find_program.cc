// SPDX-License-Identifier: Apache-2.0
#include "cli/program/find_program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace terrace::cli {
namespace {

bool is_executable_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

Result<std::string> find_program(const std::string& program, const char* where) {
  if (program.find('/') != std::string::npos) {
    if (is_executable_file(program)) return program;
    if (::access(program.c_str(), F_OK) == 0)
      return Error{.code = ErrorCode::permission_denied,
                   .where = where,
                   .detail = program + " is not an executable file"};
    return Error{.code = ErrorCode::not_found, .where = where, .detail = "there is no program " + program};
  }
  const char* path = std::getenv("PATH");
  std::string_view rest = path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin";
  while (!program.empty()) {
    std::string_view folder = rest.substr(0, rest.find(':'));
    std::string candidate = (folder.empty() ? std::string(".") : std::string(folder)) + "/" + program;
    if (is_executable_file(candidate)) return candidate;
    if (folder.size() == rest.size()) break;
    rest.remove_prefix(folder.size() + 1);
  }
  return Error{
      .code = ErrorCode::not_found, .where = where, .detail = "there is no program '" + program + "' in PATH"};
}

}  // namespace terrace::cli
