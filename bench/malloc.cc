// What the preload library costs: one malloc/free pair under it and under plain glibc, in turn in the same run.
//
//   bench_malloc [--smoke] [--json FILE]
//
// small_pair_extra_ns     64 B: what the shim adds to a request that it passes on
// large_pair_over_glibc   1 MiB from the DDR part: the shim's page-run heap over glibc's
// leased_pair_over_glibc  1 MiB from leased memory
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "allocator/supply/broker.h"
#include "core/base/unique_fd.h"
#include "tests/support/fake_session.h"

using namespace terrace;

namespace {

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "bench_malloc: %s\n", what.c_str());
  std::exit(1);
}

std::filesystem::path own_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

// The child's number. `socket`: empty for plain glibc.
double measure(const std::string& socket, uint64_t bytes, long pairs) {
  int ends[2];
  if (::pipe(ends) != 0) die("pipe");
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  std::string program = own_folder() / "bench_malloc_child";
  std::string size = std::to_string(bytes), count = std::to_string(pairs);
  std::string library = "LD_PRELOAD=" + (own_folder() / "../allocator/libterrace_malloc.so").string();
  std::string supply_variable = "TERRACE_SUPPLY=" + socket;
  std::vector<char*> words = {program.data(), size.data(), count.data(), nullptr};
  std::vector<char*> variables = {nullptr};
  if (!socket.empty()) variables = {library.data(), supply_variable.data(), nullptr};
  pid_t child = ::fork();
  if (child == 0) {
    ::dup2(write_end.get(), STDOUT_FILENO);
    ::execve(program.c_str(), words.data(), variables.data());
    ::_exit(127);
  }
  write_end.reset();
  char text[64] = {};
  ssize_t got = ::read(read_end.get(), text, sizeof(text) - 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (got <= 0 || status != 0) die("the measured program failed");
  return std::atof(text);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::unique_ptr<supply::Broker> start_broker(test::FakeSession& session, uint64_t ddr_bytes) {
  supply::BrokerOptions options;
  options.ddr_bytes = ddr_bytes;
  options.cxl_bytes = 256 * mib;
  auto broker = supply::Broker::start(session, options);
  if (!broker.ok()) die(broker.error().to_string());
  return std::move(*broker);
}

}  // namespace

int main(int argc, char** argv) {
  bool smoke = false;
  std::string json_file;
  CLI::App app("The cost of malloc under libterrace_malloc.so");
  app.add_flag("--smoke", smoke, "A short run, to see that it works");
  app.add_option("--json", json_file, "Also write the numbers there");
  CLI11_PARSE(app, argc, argv);

  const int rounds = smoke ? 1 : 7;
  const long small_pairs = smoke ? 20'000 : 1'000'000;
  const long large_pairs = smoke ? 500 : 30'000;
  test::FakeSession session(gib);
  auto with_ddr = start_broker(session, 256 * mib);
  auto without_ddr = start_broker(session, 0);
  std::vector<double> small_glibc, small_shim, large_glibc, large_shim, leased_shim;
  for (int round = 0; round < rounds; ++round) {
    small_glibc.push_back(measure("", 64, small_pairs));
    small_shim.push_back(measure(with_ddr->socket_path(), 64, small_pairs));
    large_glibc.push_back(measure("", mib, large_pairs));
    large_shim.push_back(measure(with_ddr->socket_path(), mib, large_pairs));
    leased_shim.push_back(measure(without_ddr->socket_path(), mib, large_pairs));
  }
  if (with_ddr->stats().totals.allocations_ddr == 0 || without_ddr->stats().totals.allocations_cxl == 0)
    die("the measured program did not use the window: nothing was measured");

  double extra = median(small_shim) - median(small_glibc);
  double large = median(large_shim) / median(large_glibc);
  double leased = median(leased_shim) / median(large_glibc);
  std::printf("malloc/free pair, median of %d rounds in turn\n", rounds);
  std::printf("  64 B    glibc %8.2f ns   shim %8.2f ns   extra %.2f ns\n", median(small_glibc),
              median(small_shim), extra);
  std::printf("  1 MiB   glibc %8.1f ns   shim, DDR %8.1f ns (x %.2f)   shim, leased %8.1f ns (x %.2f)\n",
              median(large_glibc), median(large_shim), large, median(leased_shim), leased);
  if (!json_file.empty()) {
    nlohmann::json document = {{"small_pair_glibc_ns", median(small_glibc)},
                               {"small_pair_shim_ns", median(small_shim)},
                               {"small_pair_extra_ns", extra},
                               {"large_pair_glibc_ns", median(large_glibc)},
                               {"large_pair_shim_ns", median(large_shim)},
                               {"large_pair_over_glibc", large},
                               {"leased_pair_shim_ns", median(leased_shim)},
                               {"leased_pair_over_glibc", leased}};
    std::ofstream file(json_file);
    file << document.dump(2) << "\n";
    if (!file.flush()) die("cannot write " + json_file);
  }
  return 0;
}
