// SPDX-License-Identifier: Apache-2.0
#include "bench/lease/manager.h"

#include <capnp/rpc-twoparty.h>
#include <fcntl.h>
#include <kj/async-io.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "bench/lease/client.h"
#include "core/schema/terrace.capnp.h"

namespace terrace::bench {
namespace {

using Clock = std::chrono::steady_clock;

// A program beside this one in the build tree.
std::string built(const char* place) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / place).string();
}

bool answers(const std::string& socket) {
  if (::access(socket.c_str(), F_OK) != 0) return false;
  try {
    Loop loop;
    Client client(loop, socket);
    return true;
  } catch (const kj::Exception&) {
    return false;
  }
}

class EchoGateway final : public rpc::Gateway::Server {
  kj::Promise<void> hello(HelloContext) override { return kj::READY_NOW; }
};

[[noreturn]] void serve_echo(const std::string& socket) {
  auto io = kj::setupAsyncIo();
  capnp::TwoPartyServer server(kj::heap<EchoGateway>());
  auto address = io.provider->getNetwork().parseAddress(("unix:" + socket).c_str()).wait(io.waitScope);
  auto listener = address->listen();
  server.listen(*listener).wait(io.waitScope);
  ::_exit(0);
}

// std::exit() runs no destructors of what lives on a stack: what of this process would stay.
struct Leftovers {
  pid_t of = 0, manager = 0;
  std::string objects;  // where it is mounted
  std::set<std::string> directories;
};
Leftovers& leftovers() {
  static Leftovers of_this_program;
  return of_this_program;
}

void stop_manager() {
  Leftovers& left = leftovers();
  if (left.manager > 0 && ::kill(left.manager, SIGTERM) == 0) ::waitpid(left.manager, nullptr, 0);
  left.manager = 0;
  if (!left.objects.empty()) ::umount2(left.objects.c_str(), MNT_DETACH);  // it stays while leases do
  left.objects.clear();
}

}  // namespace

void die(const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, what.c_str());
  if (leftovers().of == ::getpid()) {  // not in a forked child
    stop_manager();
    std::error_code ignored;
    for (const std::string& directory : leftovers().directories)
      std::filesystem::remove_all(directory, ignored);
  }
  std::exit(1);
}

ScratchDirectory::ScratchDirectory(const std::string& parent) : path_(parent + "/terrace-bench-XXXXXX") {
  if (::mkdtemp(path_.data()) == nullptr) die("no directory can be made in " + parent);
  leftovers().of = ::getpid();
  leftovers().directories.insert(path_);
}
ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  leftovers().directories.erase(path_);
}

Manager::Manager(ManagerOptions options) : options_(std::move(options)) {
  socket_ = options_.directory + "/run/terraced.sock";
  start();
  Loop loop;
  Client client(loop, socket_);
  client.compose_pool("emu:a", "p");
}

void Manager::start() {
  std::vector<std::string> words = {built("daemon/terraced"),
                                    "--runtime-dir",
                                    options_.directory + "/run",
                                    "--state",
                                    options_.state_directory + "/state.db",
                                    "--emulate",
                                    "a=" + std::to_string(options_.pool_bytes >> 20) + "M",
                                    "--log-level",
                                    "warning"};
  if (options_.overcommit) words.push_back("--emulate-overcommit");
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  leftovers().of = ::getpid();
  leftovers().manager = pid_;
  leftovers().objects = options_.directory + "/run/objects";
  for (int i = 0; i < 60'000; ++i) {
    if (answers(socket_)) return;
    if (::waitpid(pid_, nullptr, WNOHANG) == pid_) {
      leftovers().manager = 0;
      die("terraced ended at its start");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  die("terraced does not answer");
}

Manager::~Manager() {
  stop_manager();
}

double Manager::restart() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  const auto begin = Clock::now();
  start();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

uint64_t Manager::rss_bytes() const {
  std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
  }
  die("terraced has no VmRSS");
}

double Manager::cpu_seconds() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
  std::string line;
  std::getline(file, line);
  std::istringstream fields(line.substr(line.rfind(')') + 2));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

EchoServer::EchoServer(const std::string& directory) : socket_(directory + "/echo.sock") {
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    serve_echo(socket_);
  }
  for (int i = 0; i < 5000; ++i) {
    if (answers(socket_)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  die("the echo server does not answer");
}

EchoServer::~EchoServer() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace terrace::bench
