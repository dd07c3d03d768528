// SPDX-License-Identifier: Apache-2.0
// bench_tensor: what tensors cost, alone and shared, and how well they are placed.
//
//   bench_tensor [--smoke] [--json FILE] [--part NAME]...
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "bench/tensor/parts.h"

namespace terrace::bench {

void die(const std::string& text) {
  std::fprintf(stderr, "bench_tensor: %s\n", text.c_str());
  std::exit(1);
}

void must(const Status& status, const char* what) {
  if (!status.ok()) die(std::string(what) + ": " + status.error().to_string());
}

}  // namespace terrace::bench

int main(int argc, char** argv) {
  using namespace terrace::bench;
  struct Part {
    const char* name;
    void (*measure)(const Sizes&, nlohmann::json&);
  };
  constexpr Part parts[] = {{"layer_pass", measure_layer_pass}, {"optimizer_pass", measure_optimizer_pass},
                            {"acquire", measure_acquire_check}, {"open", measure_open_by_name},
                            {"handoff", measure_handoff},       {"python", measure_python_view},
                            {"files", measure_files},           {"checkpoint", measure_checkpoint}};
  Sizes sizes;
  std::string json_file;
  std::vector<std::string> wanted;
  CLI::App app("Tensors across tiers and holders");
  app.add_flag("--smoke", sizes.smoke, "A short run, to see that it works");
  app.add_option("--json", json_file, "Also write the numbers there");
  app.add_option("--part", wanted,
                 "Only these: layer_pass, optimizer_pass, acquire, open, handoff, python, files, checkpoint");
  app.add_option("--dir", sizes.directory, "Where to put files (/var/tmp)");
  CLI11_PARSE(app, argc, argv);
  nlohmann::json out = nlohmann::json::object();
  for (const Part& part : parts)
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), part.name) != wanted.end())
      part.measure(sizes, out);
  if (!json_file.empty()) {
    std::ofstream file(json_file);
    file << out.dump(2) << "\n";
    if (!file.flush()) die("cannot write " + json_file);
  }
  return 0;
}
