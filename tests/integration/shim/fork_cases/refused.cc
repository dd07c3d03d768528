// SPDX-License-Identifier: Apache-2.0
// Programs that shut themselves in: no supervisor in reach, no descriptor, no memory for a copy.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "tests/integration/shim/fork_cases/cases.h"

namespace {

// Whether a thread of this process has a userfaultfd: the engine's has descriptors of its own.
bool engine_has_begun() {
  bool found = false;
  DIR* tasks = opendir("/proc/self/task");
  for (dirent* task = tasks == nullptr ? nullptr : readdir(tasks); task != nullptr; task = readdir(tasks)) {
    const std::string folder = std::string("/proc/self/task/") + task->d_name + "/fd/";
    DIR* open_files = opendir(folder.c_str());
    for (dirent* one = open_files == nullptr ? nullptr : readdir(open_files); one != nullptr;
         one = readdir(open_files)) {
      char target[64] = {};
      if (readlink((folder + one->d_name).c_str(), target, sizeof target - 1) > 0 &&
          strstr(target, "userfaultfd"))
        found = true;
    }
    if (open_files != nullptr) closedir(open_files);
  }
  if (tasks != nullptr) closedir(tasks);
  return found;
}

// One that is still starting would look for the supervisor from inside of the empty root, where fork may meet it.
void wait_for_engine() {
  const char* policy = getenv("TERRACE_TEST_POLICY");
  if (policy == nullptr || strcmp(policy, "static") == 0) return;
  for (int i = 0; i < 3000 && !engine_has_begun(); ++i) usleep(10'000);
  usleep(200'000);
}

void enter_empty_root() {
  wait_for_engine();
  char folder[] = "/tmp/terrace-empty-XXXXXX";
  int parent = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent < 0 || mkdtemp(folder) == nullptr || chroot(folder) != 0 || chdir("/") != 0) wrong("chroot");
  if (unlinkat(parent, strrchr(folder, '/') + 1, AT_REMOVEDIR) != 0) wrong("cannot remove the empty root");
  close(parent);
}

void after_chroot() {
  // The supervisor's socket cannot be reached any more; with one thread the switch is made by copying.
  Blocks blocks = make_blocks(1);
  enter_empty_root();
  pid_t pid = fork();
  if (pid < 0) wrong("fork failed after chroot");
  if (pid == 0) {
    store_all(blocks, 33);
    churn(44);
    _exit(0);
  }
  store_all(blocks, 80);
  reap(pid);
  check_blocks(blocks, 80, "after chroot: the parent sees the child's stores");
  churn(20);
  puts("copied");
}

void refused_with_threads() {
  // The same with a second thread that may be storing: fork must fail, and nothing may be shared. Where memory
  // migrates, the engine's thread still has the descriptors, and fork must succeed.
  const char* policy = getenv("TERRACE_TEST_POLICY");
  const bool migrates = policy != nullptr && strcmp(policy, "static") != 0;
  Blocks blocks = make_blocks(1);
  std::thread other([] {
    while (!stop) usleep(1000);
  });
  enter_empty_root();
  errno = 0;
  pid_t pid = fork();
  if (pid == 0) {
    store_all(blocks, 70);
    _exit(0);
  }
  if (migrates) {
    if (pid < 0) wrong("fork failed");
    store_all(blocks, 1);
    reap(pid);
  } else if (pid > 0 || errno != EAGAIN) {
    wrong("fork must fail with EAGAIN");
  }
  check_blocks(blocks, 1, "a fork after chroot changed memory");
  churn(20);
  stop = true;
  other.join();
}

rlimit limit_to(int resource, rlim_t value) {
  rlimit before{}, now{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &before) != 0) wrong("getrlimit");
  now = before;
  now.rlim_cur = value;
  if (setrlimit(static_cast<__rlimit_resource>(resource), &now) != 0) wrong("setrlimit");
  return before;
}

rlim_t data_bytes_now() {
  FILE* file = fopen("/proc/self/status", "r");
  char line[256];
  unsigned long kib = 0;
  while (file != nullptr && fgets(line, sizeof(line), file) != nullptr)
    if (sscanf(line, "VmData: %lu kB", &kib) == 1) break;
  if (file != nullptr) fclose(file);
  if (kib == 0) wrong("no VmData");
  return rlim_t{kib} << 10;
}

void refused_half_way() {
  // Neither a descriptor for the switch nor memory for the whole copy: the fork is refused, and what is stored
  // afterwards must outlive the next forks, by copy and by mapping.
  constexpr size_t large = 192u << 20;
  auto* block = static_cast<unsigned char*>(malloc(large));
  if (block == nullptr) wrong("no memory");
  auto fork_once = [&](unsigned char value, const char* what) {
    memset(block, value, large);
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) {
      for (size_t at = 0; at < large; at += 4096)
        if (block[at] != value) wrong(what);
      _exit(0);
    }
    reap(pid);
    for (size_t at = 0; at < large; at += 4096)
      if (block[at] != value) wrong(what);
  };
  memset(block, 1, large);
  rlimit data = limit_to(RLIMIT_DATA, data_bytes_now() + (100u << 20));
  rlimit files = limit_to(RLIMIT_NOFILE, 0);
  errno = 0;
  pid_t pid = fork();
  if (pid == 0) _exit(0);
  if (pid > 0 || errno != EAGAIN) wrong("fork must fail with EAGAIN");
  memset(block, 2, large);
  setrlimit(RLIMIT_NOFILE, &files);
  fork_once(2, "stores after a refused fork were lost (mapped)");

  auto* second = static_cast<unsigned char*>(malloc(large));
  if (second == nullptr) wrong("no memory");
  block = second;
  memset(block, 3, large);
  limit_to(RLIMIT_NOFILE, 0);
  if (fork() >= 0) wrong("fork must fail");
  setrlimit(RLIMIT_DATA, &data);
  fork_once(4, "stores after a refused fork were lost (copied)");
  setrlimit(RLIMIT_NOFILE, &files);
  fork_once(5, "stores after a copy were lost");
}

void no_descriptors() {
  // Everything is closed before the first large request, and again after it: nothing of ours breaks.
  for (int fd = 3; fd < 256; ++fd) close(fd);
  Blocks blocks = make_blocks(1);
  for (int fd = 3; fd < 256; ++fd)
    if (fcntl(fd, F_GETFD) != -1) wrong("a descriptor stays open in the program");
  for (int fd = 0; fd < 3; ++fd) close(fd);
  pid_t pid = fork();
  if (pid == 0) {
    store_all(blocks, 33);
    churn(44);
    _exit(0);
  }
  int status = 0;
  if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) _exit(3);
  for (size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i][100] != static_cast<unsigned char>(1 + i % 7)) _exit(4);
  _exit(0);
}

}  // namespace

std::span<const Case> shut_in_cases() {
  static constexpr Case cases[] = {{"after_chroot", after_chroot},
                                   {"refused_with_threads", refused_with_threads},
                                   {"refused_half_way", refused_half_way},
                                   {"no_descriptors", no_descriptors}};
  return cases;
}
