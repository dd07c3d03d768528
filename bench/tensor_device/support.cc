// SPDX-License-Identifier: Apache-2.0
#include "bench/tensor_device/support.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace terrace::bench {

void die(const std::string& text) {
  std::fprintf(stderr, "bench_tensor_device: %s\n", text.c_str());
  std::exit(1);
}

void must(const Status& status) {
  if (!status.ok()) die(status.error().to_string());
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace terrace::bench
