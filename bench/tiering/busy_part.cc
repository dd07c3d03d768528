// SPDX-License-Identifier: Apache-2.0
// A program that shares its processor with others: does migration know when it ran?
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "bench/tiering/busy.h"
#include "bench/tiering/support.h"

namespace terrace::bench {
namespace {

// Processes that do nothing but run, on one processor or on any.
class Spinners {
 public:
  Spinners(int count, int processor) {
    for (int i = 0; i < count; ++i) {
      const pid_t pid = ::fork();
      if (pid < 0) die("cannot start other work");
      if (pid == 0) spin(processor);
      pids_.push_back(pid);
    }
  }
  ~Spinners() {
    for (pid_t pid : pids_) ::kill(pid, SIGKILL);
    for (pid_t pid : pids_) ::waitpid(pid, nullptr, 0);
  }

 private:
  [[noreturn]] static void spin(int processor) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (processor >= 0) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(processor, &one);
      ::sched_setaffinity(0, sizeof(one), &one);
    }
    for (volatile uint64_t i = 0;;) i = i + 1;
  }
  std::vector<pid_t> pids_;
};

// This program again, as the one that is measured.
nlohmann::json run_program(const std::vector<std::string>& arguments) {
  std::string command = "exec /proc/self/exe";
  char self[4096];
  const ssize_t length = ::readlink("/proc/self/exe", self, sizeof(self) - 1);
  if (length <= 0) die("cannot find this program");
  command = "exec '" + std::string(self, static_cast<size_t>(length)) + "' --part program";
  for (const std::string& argument : arguments) command += " " + argument;
  FILE* output = ::popen(command.c_str(), "re");
  if (output == nullptr) die("cannot start the measured program");
  std::string text;
  char block[4096];
  while (const size_t got = std::fread(block, 1, sizeof(block), output)) text.append(block, got);
  if (::pclose(output) != 0) die("the measured program failed");
  return nlohmann::json::parse(text);
}

int some_processor() {
  cpu_set_t mine;
  ::sched_getaffinity(0, sizeof(mine), &mine);
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &mine)) return i;
  return 0;
}

void print(const char* what, const nlohmann::json& phase) {
  std::printf(
      "%s: %.2f of the oracle's share of accesses from DDR (%.3f of %.3f; at first %.3f, least %.3f), "
      "found after %.1f s of its CPU time; told %.3f\n",
      what, phase["share_of_oracle"].get<double>(), phase["share"].get<double>(), phase["oracle"].get<double>(),
      phase["first_share"].get<double>(), phase["least_share"].get<double>(),
      phase["found_cpu_s"].get<double>(), phase["told_share"].get<double>());
}

}  // namespace

void measure_busy(const Sizes& sizes, nlohmann::json& out) {
  const std::string begin = sizes.smoke ? "0.5" : "10", jump = sizes.smoke ? "0.5" : "4";
  const std::vector<std::string> small =
      sizes.smoke ? std::vector<std::string>{"--granules", "64", "--ddr-granules", "10"}
                  : std::vector<std::string>{};
  const int processor = some_processor();
  auto arguments = small;
  arguments.insert(arguments.end(), {"--begin", begin, "--jump", jump, "--on", std::to_string(processor)});
  {
    const Spinners spinners(3, processor);
    const nlohmann::json result = run_program(arguments);
    const nlohmann::json& start = result["start"];
    print("beside three spinners", start);
    print("after a jump", result["jump"]);
    out["busy_share_of_oracle"] = start["share_of_oracle"];
    out["busy_least_over_static"] = start["least_share"].get<double>() / start["first_share"].get<double>();
    out["busy_found_cpu_s"] = start["found_cpu_s"];
    out["busy_jump_found_cpu_s"] = result["jump"]["found_cpu_s"];
    out["busy_told_off_points"] = 100 * (start["told_share"].get<double>() - start["share"].get<double>());
    out["busy_engine_cpu_pct"] = result["engine_cpu_pct"];
    out["busy_detail"] = result;
  }
  arguments = small;
  arguments.insert(arguments.end(),
                   {"--begin", sizes.smoke ? "0.5" : "6", "--stationary", sizes.smoke ? "2" : "60"});
  {
    const Spinners spinners(9, -1);  // and the program: a load of 10
    const nlohmann::json result = run_program(arguments);
    const nlohmann::json& stationary = result["stationary"];
    out["stationary_swaps_pct"] = stationary["swaps_pct"];
    out["stationary_detail"] = result;
    std::printf(
        "a stationary minute at load 10: swaps of %.1f %% of DDR, at least %.2f of the oracle's share\n",
        stationary["swaps_pct"].get<double>(), stationary["least_share_of_oracle"].get<double>());
  }
}

}  // namespace terrace::bench
