// SPDX-License-Identifier: Apache-2.0
// Doctor: memory, huge pages and the limits of address space.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "core/base/unique_fd.h"
#include "daemon/doctor/checks.h"

namespace terrace::doctor {
namespace {

constexpr const char* thp_directory = "/sys/kernel/mm/transparent_hugepage/";
constexpr uint64_t huge_page_bytes = 2 * mib;
constexpr uint64_t memory_bytes_min = 256 * mib;  // a daemon, a client and one small emulated device
constexpr long tmpfs_magic = 0x01021994;

uint64_t meminfo_bytes(const char* key) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    uint64_t kilobytes = 0;
    if (line.rfind(key, 0) == 0 && std::sscanf(line.c_str() + std::strlen(key), ": %" SCNu64, &kilobytes) == 1)
      return kilobytes * kib;
  }
  return 0;
}

// The limit of the innermost control group that has one (cgroup v2); 0: none.
uint64_t cgroup_limit_bytes() {
  std::string group = read_line("/proc/self/cgroup");
  const size_t at = group.find("0::");
  if (at == std::string::npos) return 0;
  uint64_t least = 0;
  for (std::string path = group.substr(at + 3); !path.empty();) {
    const std::string limit = read_line("/sys/fs/cgroup" + path + "/memory.max");
    const uint64_t bytes = std::strtoull(limit.c_str(), nullptr, 10);  // "max" reads as 0
    if (bytes != 0 && (least == 0 || bytes < least)) least = bytes;
    const size_t slash = path.rfind('/');
    path = slash == std::string::npos ? "" : path.substr(0, slash);
  }
  return least;
}

// What the child of check_tmpfs_huge_pages finds; its exit status.
enum Trial : int { trial_huge = 0, trial_small = 10, trial_namespace = 11, trial_mount = 12, trial_file = 13 };

// Mounts a tmpfs with huge=always in a mount namespace of its own, writes two aligned huge pages and looks
// whether the kernel mapped them as such. Runs in a child; whatever it does ends with it.
int try_huge_tmpfs(const char* directory) {
  if (unshare(CLONE_NEWNS) != 0) return trial_namespace;
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return trial_namespace;
  if (mount("terrace-doctor", directory, "tmpfs", MS_NOSUID | MS_NODEV, "huge=always,size=16m") != 0)
    return trial_mount;
  if (chdir(directory) != 0) return trial_mount;
  const UniqueFd file(::open("trial", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid() || ftruncate(file.get(), static_cast<off_t>(2 * huge_page_bytes)) != 0) return trial_file;
  void* address = mmap(nullptr, 3 * huge_page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return trial_file;
  const uint64_t aligned = round_up(reinterpret_cast<uint64_t>(address), huge_page_bytes);
  void* target = reinterpret_cast<void*>(aligned);
  if (mmap(target, 2 * huge_page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0) !=
      target)
    return trial_file;
  std::memset(target, 1, 2 * huge_page_bytes);
  std::ifstream smaps("/proc/self/smaps");
  char wanted[32];
  std::snprintf(wanted, sizeof(wanted), "%" PRIx64 "-", aligned);
  bool ours = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.rfind(wanted, 0) == 0) ours = true;
    uint64_t kilobytes = 0;
    if (ours && std::sscanf(line.c_str(), "ShmemPmdMapped: %" SCNu64, &kilobytes) == 1)
      return kilobytes * kib >= huge_page_bytes ? trial_huge : trial_small;
  }
  return trial_small;
}

// Runs the trial in a child over an empty directory of its own.
int run_huge_tmpfs_trial() {
  char directory[] = "/tmp/terrace-doctor-XXXXXX";
  if (mkdtemp(directory) == nullptr) return trial_file;
  const pid_t child = fork();
  if (child == 0) _exit(try_huge_tmpfs(directory));
  int status = -1;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  rmdir(directory);
  return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : trial_file;
}

}  // namespace

Check check_memory() {
  Check check{.name = "memory", .essential = true};
  const uint64_t total = meminfo_bytes("MemTotal");
  const uint64_t available = meminfo_bytes("MemAvailable");
  const uint64_t limit = cgroup_limit_bytes();
  check.found = format_size(total) + ", " + format_size(available) + " available";
  if (limit != 0 && limit < total) check.found += ", this control group is limited to " + format_size(limit);
  const uint64_t usable = limit != 0 && limit < available ? limit : available;
  if (total == 0) {
    check.state = CheckState::limited;
    check.found = "/proc/meminfo cannot be read";
    check.meaning = "how large emulated devices may be is unknown";
    check.fix = "mount /proc";
  } else if (usable < memory_bytes_min) {
    check.state = CheckState::missing;
    check.meaning = "too little for a daemon with even a small emulated device";
    check.fix = "free at least " + format_size(memory_bytes_min);
  } else {
    check.meaning = "emulated devices take their memory from this: keep their sum well below it";
  }
  return check;
}

Check check_dev_shm() {
  Check check{.name = "dev_shm", .essential = geteuid() != 0};
  struct statfs kind {};
  struct statvfs space {};
  if (statfs("/dev/shm", &kind) != 0 || kind.f_type != tmpfs_magic || statvfs("/dev/shm", &space) != 0) {
    check.state = geteuid() == 0 ? CheckState::limited : CheckState::missing;
    check.found = "/dev/shm is no tmpfs";
    check.meaning = geteuid() == 0 ? "a daemon that runs as root mounts its own tmpfs and does not need it"
                                   : "a daemon without root keeps emulated memory there";
    check.fix = "mount -t tmpfs tmpfs /dev/shm";
    return check;
  }
  const uint64_t size = uint64_t{space.f_blocks} * space.f_frsize;
  const uint64_t room = uint64_t{space.f_bavail} * space.f_frsize;
  check.found = format_size(size) + ", " + format_size(room) + " free";
  const bool writable = access("/dev/shm", W_OK | X_OK) == 0;
  if (!writable || room < 64 * mib) {
    check.state = geteuid() == 0 ? CheckState::limited : CheckState::missing;
    check.found += writable ? "" : ", not writable for this user";
    check.meaning = "a daemon without root cannot keep emulated memory there";
    check.fix = writable ? "mount -o remount,size=2G /dev/shm (docker: --shm-size=2g)" : "chmod 1777 /dev/shm";
  } else {
    check.meaning = "bounds the emulated pool of a daemon without root (root mounts its own)";
  }
  return check;
}

Check check_shmem_huge_pages() {
  Check check{.name = "shmem_huge_pages"};
  const std::string line = read_line(std::string(thp_directory) + "shmem_enabled");
  const std::string chosen = selected_word(line);
  check.found = line.empty() ? "no transparent huge pages for shared memory" : "shmem_enabled: " + chosen;
  if (line.empty()) {
    check.state = CheckState::missing;
    check.meaning = "shared memory is in 4 KiB pages: more TLB misses, slower moves";
    check.fix = "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE";
  } else if (chosen == "never" || chosen == "deny") {
    check.state = CheckState::limited;
    check.meaning =
        chosen == "deny"
            ? "no shared memory is in huge pages, not even on a mount that asks for them"
            : "memory of memfd and /dev/shm is in 4 KiB pages: where it migrates, a look for hot granules "
              "costs "
              "some hundred times as much, so they are sampled; a mount with huge=always is not affected";
    check.fix = std::string("echo advise > ") + thp_directory + "shmem_enabled";
  } else {
    check.meaning = "shared memory can be in huge pages";
  }
  return check;
}

Check check_tmpfs_huge_pages() {
  Check check{.name = "tmpfs_huge_pages"};
  switch (run_huge_tmpfs_trial()) {
    case trial_huge:
      check.found = "a tmpfs mounted with huge=always gives 2 MiB pages (tried)";
      check.meaning = "the daemon's own tmpfs keeps leases in huge pages";
      return check;
    case trial_small:
      check.found = "a tmpfs with huge=always can be mounted, but gave 4 KiB pages";
      check.fix = "free memory may be fragmented: echo 1 > /proc/sys/vm/compact_memory; see shmem_huge_pages";
      break;
    case trial_mount:
      check.found = "a tmpfs with huge=always cannot be mounted";
      check.fix = "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE";
      break;
    case trial_namespace:
      check.found = "this user may not mount";
      check.fix = "run the daemon as root (in a container: with CAP_SYS_ADMIN)";
      break;
    default:
      check.found = "the trial mount could not be used";
      check.fix = "see shmem_huge_pages";
      break;
  }
  check.state = CheckState::limited;
  check.meaning = "leases of the emulated pool are in 4 KiB pages: correct, with more TLB misses";
  return check;
}

Check check_hugetlb() {
  Check check{.name = "hugetlb"};
  const std::string directory = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  const uint64_t total = std::strtoull(read_line(directory + "nr_hugepages").c_str(), nullptr, 10);
  const uint64_t room = std::strtoull(read_line(directory + "free_hugepages").c_str(), nullptr, 10);
  check.found = std::to_string(room) + " of " + std::to_string(total) + " reserved 2 MiB pages free";
  if (room == 0) {
    check.state = CheckState::limited;
    check.meaning = "moves use transparent huge pages; reserved ones are a little faster and never split";
    check.fix = "echo 512 > /proc/sys/vm/nr_hugepages";
  } else {
    check.meaning = "can back the fast tier of migrated memory";
  }
  return check;
}

Check check_map_count() {
  Check check{.name = "max_map_count"};
  const uint64_t maps = std::strtoull(read_line("/proc/sys/vm/max_map_count").c_str(), nullptr, 10);
  check.found = "vm.max_map_count=" + std::to_string(maps);
  // In the worst case every second granule is elsewhere: one VMA a granule.
  check.meaning =
      "enough for " + format_size(maps * huge_page_bytes) +
      " whose granules alternate between tiers; a range that migrates keeps to a quarter of it, and leaves "
      "out moves that would need more";
  if (maps < 65'000) {
    check.state = CheckState::limited;
    check.fix = "sysctl vm.max_map_count=1048576";
  }
  return check;
}

Check check_overcommit() {
  Check check{.name = "overcommit"};
  const std::string mode = read_line("/proc/sys/vm/overcommit_memory");
  check.found = "vm.overcommit_memory=" + mode;
  if (mode == "2") {
    check.state = CheckState::limited;
    check.meaning =
        "strict accounting: large reserved address ranges may be refused, and fork of a large program too";
    check.fix = "sysctl vm.overcommit_memory=0, or raise vm.overcommit_ratio";
  } else {
    check.meaning = "address ranges can be reserved before there is memory behind them";
  }
  return check;
}

Check check_open_files() {
  Check check{.name = "open_files"};
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  check.found =
      "soft limit " + std::to_string(limit.rlim_cur) + ", hard limit " + std::to_string(limit.rlim_max);
  check.meaning = "a client holds one descriptor a lease, the daemon one a connection";
  if (limit.rlim_max < 4096) {
    check.state = CheckState::limited;
    check.fix = "raise LimitNOFILE of the service, or ulimit -n";
  }
  return check;
}

}  // namespace terrace::doctor
