// SPDX-License-Identifier: Apache-2.0
// bench_kv_space: what a KV space costs, by processes that share memory with no manager, and whether each block that
// they read is the right one while some of them are killed.
//
//   bench_kv_space [--smoke] [--json FILE] [--part NAME]... [--seconds N]
//
// Ends with 1 when a block was wrong. An aim that is missed is said, and no failure.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>

#include "bench/kv_space/parts.h"

namespace terrace::bench::kv {
namespace {

struct Options {
  Sizes sizes;
  std::string json_file;
  std::vector<std::string> parts;
};

int run_parts(const Options& options) {
  const auto wanted = [&](const char* part) {
    return options.parts.empty() ||
           std::find(options.parts.begin(), options.parts.end(), part) != options.parts.end();
  };
  Figures figures;
  bool right = true;
  if (wanted("copies")) measure_copies(options.sizes, figures);
  if (wanted("lookups")) measure_lookups(options.sizes, figures);
  if (wanted("members")) measure_members(options.sizes, figures);
  if (wanted("scaling")) measure_scaling(options.sizes, figures);
  if (wanted("recovery")) measure_recovery(options.sizes, figures);
  if (wanted("others")) measure_others(options.sizes, figures);
  if (wanted("spill")) measure_spill(options.sizes, figures);
  if (wanted("local")) measure_local(options.sizes, figures);
  if (wanted("hit_rate")) measure_hit_rate(options.sizes, figures);
  if (wanted("checked")) right = check_blocks(options.sizes, figures);
  if (!options.json_file.empty()) {
    std::ofstream file(options.json_file);
    file << figures.json().dump(2) << "\n";
    if (!file.flush()) give_up("cannot write " + options.json_file);
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace terrace::bench::kv

int main(int argc, char** argv) {
  using namespace terrace::bench::kv;
  Options options;
  Sizes& sizes = options.sizes;
  std::string role, path;
  uint32_t index = 0;
  int control_fd = -1, memory_fd = -1;
  CLI::App app("KV spaces: speed beside memcpy and other stores, recovery, and whether blocks are right");
  app.add_flag("--smoke", sizes.smoke, "Small and short");
  app.add_option("--json", options.json_file, "Also write the numbers there");
  app.add_option("--part", options.parts, "Only these questions; default: all")
      ->check(CLI::IsMember({"copies", "lookups", "members", "scaling", "recovery", "others", "spill", "local",
                             "hit_rate", "checked"}));
  app.add_option("--seconds", sizes.seconds, "How long blocks are checked while processes are killed");
  app.add_option("--blocks", sizes.many_blocks, "How many blocks of 4 KiB are looked up, and taken over");
  app.add_flag("--plant", sizes.plant, "Put wrong blocks now and then, to show that this is seen");
  app.add_option("--role", role)->group("");
  app.add_option("--index", index)->group("");
  app.add_option("--control-fd", control_fd)->group("");
  app.add_option("--memory-fd", memory_fd)->group("");
  app.add_option("--path", path)->group("");
  CLI11_PARSE(app, argc, argv);
  if (role == "remove") return remove_when_over(control_fd, path);
  if (!role.empty()) return run_role(role, index, control_fd, memory_fd);
  if (sizes.smoke) {
    if (app.count("--seconds") == 0) sizes.seconds = 2;
    if (app.count("--blocks") == 0) sizes.many_blocks = 20'000;
    sizes.rounds = 2;
    sizes.round_ns = 20 * terrace::ns_per_ms;
  }
  return run_parts(options);
}
