// SPDX-License-Identifier: Apache-2.0
#include "bench/malloc/heaps.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "allocator/supply/protocol.h"

namespace terrace::bench {
namespace {

constexpr const char* whole_heap_library = "libterrace_heap.so";
constexpr const char* large_objects_library = "libterrace_malloc.so";
constexpr const char* large_from = "65536";
constexpr const char* jemalloc_library = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
constexpr const char* memtier_library = "/usr/lib/x86_64-linux-gnu/libmemtier.so.0";
// Its files there have no name.
constexpr const char* memtier_two_tiers =
    "MEMKIND_MEM_TIERS=KIND:DRAM,RATIO:1;KIND:FS_DAX,PATH:/dev/"
    "shm,PMEM_SIZE_LIMIT:4G,RATIO:4;POLICY:STATIC_RATIO";

std::filesystem::path own_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

std::string chosen_whole_library, chosen_large_library;

std::string own_library(const char* name) {
  const std::string& chosen = name == whole_heap_library ? chosen_whole_library : chosen_large_library;
  if (!chosen.empty()) return chosen;
  std::filesystem::path path = own_folder() / "../allocator" / name;
  return std::filesystem::exists(path) ? std::filesystem::canonical(path).string() : std::string();
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> list;
  for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
  list.push_back(nullptr);
  return list;
}

pid_t spawn(const std::vector<std::string>& words, const std::vector<std::string>& environment, int out,
            int error) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  if (error >= 0) posix_spawn_file_actions_adddup2(&actions, error, STDERR_FILENO);
  pid_t child = -1;
  int failed = ::posix_spawn(&child, words.front().c_str(), &actions, nullptr, pointers(words).data(),
                             pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  return failed == 0 ? child : -1;
}

// What a program that failed said last; else nothing.
std::string last_line(int fd) {
  char text[4096];
  const ssize_t got = ::pread(fd, text, sizeof(text), std::max<off_t>(0, ::lseek(fd, 0, SEEK_END) - 4096));
  std::string said(text, got > 0 ? static_cast<size_t>(got) : 0);
  while (!said.empty() && said.back() == '\n') said.pop_back();
  return said.empty() ? said : " (" + said.substr(said.rfind('\n') + 1) + ")";
}

std::string ending(int status) {
  if (WIFSIGNALED(status)) return std::string("crashed: ") + ::strsignal(WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return "exit code " + std::to_string(WEXITSTATUS(status));
  return {};
}

}  // namespace

const char* name_of(Heap heap) {
  switch (heap) {
    case Heap::glibc: return "glibc";
    case Heap::jemalloc: return "jemalloc";
    case Heap::whole: return "whole";
    case Heap::tiered: return "tiered";
    case Heap::min_size: return "min_size";
    case Heap::memtier: return "memtier";
    case Heap::memtier_two_tiers: return "memtier_two_tiers";
  }
  return "";
}

std::string library_of(Heap heap) {
  auto if_there = [](const char* path) { return std::filesystem::exists(path) ? path : ""; };
  switch (heap) {
    case Heap::glibc: return {};
    case Heap::jemalloc: return if_there(jemalloc_library);
    case Heap::whole:
    case Heap::tiered: return own_library(whole_heap_library);
    case Heap::min_size: return own_library(large_objects_library);
    case Heap::memtier:
    case Heap::memtier_two_tiers: return if_there(memtier_library);
  }
  return {};
}

void choose_libraries(const std::string& whole, const std::string& large) {
  chosen_whole_library = whole;
  chosen_large_library = large;
}

Supply::Supply(uint64_t ddr_bytes, uint64_t cxl_bytes, bool moves) : session_(2 * cxl_bytes + 64 * mib) {
  supply::BrokerOptions options;
  options.ddr_bytes = ddr_bytes;
  options.cxl_bytes = cxl_bytes;
  if (moves) {
    auto device = session_.userfaultfd_device();
    if (device.ok()) userfault_device_ = std::move(*device);
    options.migration = {.policy = "benefit-density",
                         .copy_bytes_per_s = 2 * gib,
                         .round_ns = 0,
                         .userfault_device = userfault_device_.get()};
  }
  auto broker = supply::Broker::start(session_, options);
  if (!broker.ok()) die(broker.error().to_string());
  broker_ = std::move(*broker);
}

std::vector<std::string> environment_for(Heap heap, const Supply* supply) {
  std::vector<std::string> variables = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                                        "LC_ALL=C"};
  if (heap == Heap::glibc) return variables;
  variables.push_back("LD_PRELOAD=" + library_of(heap));
  if (heap == Heap::memtier) variables.push_back("MEMKIND_MEM_TIERS=KIND:DRAM,RATIO:1;POLICY:STATIC_RATIO");
  if (heap == Heap::memtier_two_tiers) variables.push_back(memtier_two_tiers);
  if (heap != Heap::whole && heap != Heap::tiered && heap != Heap::min_size) return variables;
  variables.push_back(std::string(supply::socket_variable) + "=" + supply->socket_path());
  variables.push_back(std::string(supply::seccomp_variable) + "=" + std::to_string(supply::seccomp_filters()));
  if (heap == Heap::min_size) variables.push_back(std::string(supply::min_size_variable) + "=" + large_from);
  return variables;
}

Outcome run_program(const std::vector<std::string>& words, const std::vector<std::string>& environment,
                    double limit_s) {
  Outcome outcome;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) die("pipe");
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  UniqueFd said(::memfd_create("stderr", MFD_CLOEXEC));
  const double begin = now_s();
  pid_t child = spawn(words, environment, write_end.get(), said.get());
  if (child < 0) {
    outcome.why = "cannot start " + words.front();
    return outcome;
  }
  write_end.reset();
  bool late = false;
  for (;;) {
    pollfd wait{.fd = read_end.get(), .events = POLLIN, .revents = 0};
    const double left_s = limit_s - (now_s() - begin);
    if (!late && (left_s <= 0 || ::poll(&wait, 1, static_cast<int>(left_s * 1000) + 1) == 0)) {
      late = true;
      ::kill(child, SIGKILL);
    }
    char text[4096];
    ssize_t got = ::read(read_end.get(), text, sizeof(text));
    if (got <= 0) break;
    outcome.output.append(text, static_cast<size_t>(got));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  outcome.took_ms = (now_s() - begin) * 1000;
  outcome.why = late ? "not done after " + std::to_string(static_cast<int>(limit_s)) + " s" : ending(status);
  char* rest = nullptr;
  outcome.figure = std::strtod(outcome.output.c_str(), &rest);
  outcome.by_cpu = std::strtod(rest, nullptr);
  if (!outcome.why.empty()) outcome.why += last_line(said.get());
  return outcome;
}

Outcome run_part(const std::string& part, const std::vector<uint64_t>& numbers, Heap heap,
                 const Supply* supply) {
  std::vector<std::string> words = {own_folder() / "bench_malloc_child", part};
  for (uint64_t number : numbers) words.push_back(std::to_string(number));
  Outcome outcome = run_program(words, environment_for(heap, supply));
  if (outcome.why.empty() && outcome.output.empty()) outcome.why = "printed nothing";
  return outcome;
}

int start_program(const std::vector<std::string>& words, const std::vector<std::string>& environment,
                  const std::string& log_file) {
  UniqueFd log(::open(log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) die("cannot write " + log_file);
  return spawn(words, environment, log.get(), log.get());
}

double now_s() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void die(const std::string& what) {
  std::fprintf(stderr, "bench_malloc: %s\n", what.c_str());
  std::exit(1);
}

}  // namespace terrace::bench
