// What a durable grant and release cost: pairs per second through a real terraced, its state on a real disk,
// the descriptor received and the memory mapped; over what the disk allows, measured in the same run.
//
//   bench_lease [--smoke] [--json FILE] [--dir DIRECTORY] [--seconds S]
//
// A pair is two commits (grant, release), each one fdatasync when nobody else commits at the same moment;
// with more clients commits are shared. `..._over_fdatasync` is pairs over fdatasyncs per second.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/base/units.h"
#include "terrace/mapping.h"
#include "terrace/session.h"

using namespace terrace;
using Clock = std::chrono::steady_clock;

namespace {

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "bench_lease: %s\n", what.c_str());
  std::exit(1);
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A program beside this one in the build tree.
std::string built(const char* place) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / place).string();
}

pid_t start(const std::vector<std::string>& words) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int quiet = ::open("/dev/null", O_WRONLY);
  ::dup2(quiet, STDOUT_FILENO);
  ::execv(arguments[0], arguments.data());
  ::_exit(127);
}

void run(const std::vector<std::string>& words) {
  int status = 0;
  ::waitpid(start(words), &status, 0);
  if (status != 0) die("'" + words[0] + " " + words[1] + " ...' failed");
}

class Daemon {
 public:
  explicit Daemon(const std::string& directory) : directory_(directory) {
    socket_ = directory + "/run/terraced.sock";
    pid_ = start({built("daemon/terraced"), "--runtime-dir", directory + "/run", "--state",
                  directory + "/state/state.db", "--emulate", "a=512M", "--log-level", "warning"});
    for (int i = 0; i < 500 && ::access(socket_.c_str(), F_OK) != 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    run({built("cli/terrace"), "--socket", socket_, "device", "adopt", "emu:a"});
    run({built("cli/terrace"), "--socket", socket_, "pool", "create", "p", "--device", "emu:a"});
  }
  ~Daemon() {
    ::kill(pid_, SIGTERM);
    ::waitpid(pid_, nullptr, 0);
  }
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;
  const std::string& socket() const { return socket_; }

 private:
  std::string directory_, socket_;
  pid_t pid_ = -1;
};

double fdatasyncs_per_s(const std::string& directory, double seconds) {
  const std::string path = directory + "/probe";
  const UniqueFd file(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  if (!file.valid()) die("cannot write in " + directory);
  const std::vector<char> page(4096, 'x');
  const auto begin = Clock::now();
  uint64_t count = 0;
  while (seconds_since(begin) < seconds) {  // appends, as a write-ahead log does, and starts over now and then
    const auto at = static_cast<off_t>(count % 1000 * page.size());
    if (::pwrite(file.get(), page.data(), page.size(), at) < 0 || ::fdatasync(file.get()) != 0)
      die("fdatasync failed");
    ++count;
  }
  ::unlink(path.c_str());
  return static_cast<double>(count) / seconds_since(begin);
}

double pairs_per_s(const std::string& socket, int clients, double seconds) {
  std::atomic<uint64_t> pairs{0};
  std::vector<std::thread> threads;
  const auto begin = Clock::now();
  for (int i = 0; i < clients; ++i) {
    threads.emplace_back([&] {
      SessionOptions options;
      options.socket_path = socket;
      auto session = Session::connect(options);
      if (!session.ok()) die(session.error().to_string());
      while (seconds_since(begin) < seconds) {
        LeaseRequest request;
        request.bytes = 2 * mib;
        auto lease = (*session)->grant(request);
        if (!lease.ok()) die(lease.error().to_string());
        {
          auto mapping = Mapping::map(*lease);
          if (!mapping.ok()) die(mapping.error().to_string());
          (*mapping)->bytes()[0] = std::byte{1};
        }
        if (Status status = (*lease)->release(); !status.ok()) die(status.error().to_string());
        ++pairs;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return static_cast<double>(pairs.load()) / seconds_since(begin);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  bool smoke = false;
  std::string json_file, parent = std::filesystem::temp_directory_path().string();
  double seconds = 2;
  CLI::App app{"Durable grant and release pairs per second, over the disk's fdatasyncs per second."};
  app.add_flag("--smoke", smoke, "a run short enough for the test suite");
  app.add_option("--json", json_file, "write the figures there");
  app.add_option("--dir", parent, "a directory on the disk to measure");
  app.add_option("--seconds", seconds, "of each measurement");
  CLI11_PARSE(app, argc, argv);
  if (smoke) seconds = 0.2;
  const int rounds = smoke ? 1 : 5;

  std::string directory = parent + "/terrace-bench-XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr) die("no directory can be made in " + parent);
  std::vector<double> syncs, ones, fours;
  {
    Daemon daemon(directory);
    for (int round = 0; round < rounds; ++round) {  // alternating, so that a drifting machine touches all alike
      syncs.push_back(fdatasyncs_per_s(directory, seconds));
      ones.push_back(pairs_per_s(daemon.socket(), 1, seconds));
      fours.push_back(pairs_per_s(daemon.socket(), 4, seconds));
    }
  }
  std::filesystem::remove_all(directory);
  const nlohmann::json figures{
      {"fdatasync_per_s", median(syncs)},
      {"grant_release_durable_pairs_per_s_1", median(ones)},
      {"grant_release_durable_pairs_per_s_4", median(fours)},
      {"grant_release_durable_1_over_fdatasync", median(ones) / median(syncs)},
      {"grant_release_durable_4_over_fdatasync", median(fours) / median(syncs)},
      {"rounds", rounds},
  };
  std::printf("%s\n", figures.dump(2).c_str());
  if (!json_file.empty()) std::ofstream(json_file) << figures.dump(2) << '\n';
  return 0;
}
