// SPDX-License-Identifier: Apache-2.0
// bench_tiering: what migration costs, whether it loses anything, and where hot memory ends up.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>

#include "bench/tiering/support.h"

int main(int argc, char** argv) {
  using namespace terrace::bench;
  Sizes sizes;
  std::string json_file, part;
  CLI::App app("Migration between DDR and CXL memory, both memory files of this machine");
  app.add_flag("--smoke", sizes.smoke, "A short run, to see that it works");
  app.add_option("--json", json_file, "Also write the numbers there");
  app.add_option("--soak", sizes.soak_s, "Seconds of the soak (default 60)");
  app.add_option("--part", part, "One of: mover, sampler, policy, soak (default: all)");
  CLI11_PARSE(app, argc, argv);
  if (sizes.smoke) {
    sizes.rounds = 1;
    sizes.soak_s = 2;
    sizes.settle_s = 2;
  }
  nlohmann::json out;
  if (part.empty() || part == "mover") measure_mover(sizes, out);
  if (part.empty() || part == "sampler") measure_sampler(sizes, out);
  if (part.empty() || part == "policy") measure_policy(sizes, out);
  if (part.empty() || part == "soak") measure_soak(sizes, out);
  if (!json_file.empty()) {
    std::ofstream file(json_file);
    file << out.dump(2) << "\n";
    if (!file.flush()) die("cannot write " + json_file);
  }
  return 0;
}
