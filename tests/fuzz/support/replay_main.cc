// SPDX-License-Identifier: Apache-2.0
// A main for fuzz targets where libFuzzer is not built in: runs the target once on every file that it is given,
// and on every file of every directory. A finding ends the process, as it does under libFuzzer. No input at all
// is a failure: a corpus that is not found must not pass.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

bool run_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "%s: cannot be read\n", path.c_str());
    return false;
  }
  // Exactly as long as the input, so that ASan sees a read behind its end.
  const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
  const std::vector<uint8_t> input(text.begin(), text.end());
  std::fprintf(stderr, "%s: %zu bytes\n", path.c_str(), input.size());
  LLVMFuzzerTestOneInput(input.data(), input.size());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> inputs;
  for (int index = 1; index < argc; ++index) {
    const std::filesystem::path path = argv[index];
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      inputs.push_back(path);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.is_regular_file()) inputs.push_back(entry.path());
    }
  }
  std::sort(inputs.begin(), inputs.end());
  size_t done = 0;
  for (const auto& path : inputs) done += run_file(path) ? 1 : 0;
  std::printf("replayed %zu of %zu inputs\n", done, inputs.size());
  return done > 0 && done == inputs.size() ? 0 : 1;
}
