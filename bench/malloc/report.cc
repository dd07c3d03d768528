// SPDX-License-Identifier: Apache-2.0
#include "bench/malloc/report.h"

#include <cmath>
#include <cstdio>

namespace terrace::bench {
namespace {

double rounded(double value) {
  return std::round(value * 1e4) / 1e4;
}

}  // namespace

void Report::figure(const std::string& key, double value, Aim aim) {
  lines_.push_back({key, "", value, aim});
  document_[key] = rounded(value);
}

void Report::missing(const std::string& key, const std::string& why, Aim aim) {
  lines_.push_back({key, why, 0, aim});
  document_[key] = nullptr;
  document_[key + "_missing"] = why;
}

void Report::print() const {
  std::printf("%-44s %12s   %-12s\n", "key", "value", "to reach");
  size_t met = 0;
  for (const Line& line : lines_) {
    const char* sign = line.aim.at_most ? "<=" : ">=";
    if (!line.why.empty()) {
      std::printf("%-44s %12s   %s %-9g  missing: %s\n", line.key.c_str(), "-", sign, line.aim.value,
                  line.why.c_str());
      continue;
    }
    const bool reached = line.aim.at_most ? line.value <= line.aim.value : line.value >= line.aim.value;
    met += reached ? 1 : 0;
    std::printf("%-44s %12.3f   %s %-9g  %s\n", line.key.c_str(), line.value, sign, line.aim.value,
                reached ? "met" : "not met");
  }
  std::printf("%zu of %zu met\n", met, lines_.size());
}

}  // namespace terrace::bench
