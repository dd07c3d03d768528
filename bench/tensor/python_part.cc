// SPDX-License-Identifier: Apache-2.0
// What Python pays to see a tensor: bench/tensor/python_view.py, run with the package of this build.
#include <cstdio>
#include <string>

#include "bench/tensor/parts.h"

namespace terrace::bench {
namespace {

// What a command prints. Nothing when it fails.
std::string output_of(const std::string& command) {
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::string text;
  char part[4096];
  while (const size_t got = std::fread(part, 1, sizeof part, pipe)) text.append(part, got);
  return ::pclose(pipe) == 0 ? text : std::string();
}

}  // namespace

void measure_python_view(const Sizes& sizes, nlohmann::json& out) {
  const std::string package = TERRACE_PYTHON_PACKAGE;
  if (package.empty()) {
    std::printf("python: not measured: this build has no package, or one that is sanitized\n");
    return;
  }
  const std::string text =
      output_of("PYTHONPATH='" + package + "' /usr/bin/python3 -B '" +
                TERRACE_SOURCE_FOLDER "/bench/tensor/python_view.py'" + (sizes.smoke ? " --smoke" : ""));
  const nlohmann::json measured = nlohmann::json::parse(text, nullptr, false);
  if (!measured.is_object()) die("python_view.py failed");
  for (const auto& item : measured.items()) {
    out[item.key()] = item.value();
    std::printf("%-28s %s\n", item.key().c_str(), item.value().dump().c_str());
  }
}

}  // namespace terrace::bench
