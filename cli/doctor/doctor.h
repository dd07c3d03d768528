// Checks this machine's features for Terrace. Each check tries the feature itself where it can (a system call,
// an ioctl, a mount in a throw-away namespace) rather than trust a version number. It makes no lasting change,
// and says how to fix a missing feature.
//
// Place     `terrace doctor`; needs no daemon.
// Threads   One; check_tmpfs_huge_pages() forks.
#pragma once

#include <string>
#include <vector>

#include "cli/terminal/output.h"
#include "daemon/inventory/inventory.h"

namespace terrace::cli {

enum class CheckState : uint8_t {
  ok,
  limited,  // works, with less: `meaning` says what
  missing,  // does not work here
};

struct Check {
  std::string name;  // stable, snake_case; the JSON key
  CheckState state = CheckState::ok;
  std::string found = {};    // what was seen
  std::string meaning = {};  // what that means for Terrace
  std::string fix = {};      // what to do about it; empty when ok
  bool essential = false;    // missing: the emulated service cannot run at all
};

const char* state_name(CheckState state);  // "ok", "limited", "missing"

// doctor_kernel.cc
Check check_kernel();
Check check_userfaultfd();
Check check_userfaultfd_shmem();  // write protection of shared memory, tried on a page
Check check_pagemap_scan();
Check check_io_uring();
Check check_time_slice();  // of threads that wait for a disk or a socket

// doctor_migration.cc
// Whether the daemon at `socket_path` gives this user /dev/userfaultfd, and whether that is of use: tried.
Check check_userfaultfd_device(const std::string& socket_path);
// Pure: what the checks above come to for programs of this user.
Check check_migration(const std::vector<Check>& checks);

// doctor_memory.cc
Check check_memory();
Check check_dev_shm();
Check check_shmem_huge_pages();
Check check_tmpfs_huge_pages();
Check check_hugetlb();
Check check_map_count();
Check check_overcommit();
Check check_open_files();

// doctor_devices.cc
Check check_cxl(const inventory::Inventory& inventory);
Check check_cxl_modules(const inventory::Inventory& inventory);
Check check_dax(const inventory::Inventory& inventory);
Check check_numa(const inventory::Inventory& inventory);
Check check_processor();
Check check_cuda();

// doctor_hardware.cc: what goes wrong with CXL and DAX memory again and again. Pure functions of an inventory;
// each is ok where it finds nothing.
Check check_cxl_driver(const inventory::Inventory& inventory);    // devices that no driver took
Check check_cxl_ports(const inventory::Inventory& inventory);     // silent zeros
Check check_cxl_decoders(const inventory::Inventory& inventory);  // none free
Check check_cxl_regions(const inventory::Inventory& inventory);   // not committed, not enabled
Check check_soft_reserved(const inventory::Inventory& inventory);
Check check_dax_mode(const inventory::Inventory& inventory);  // came up as system-ram, or with no driver
Check check_dax_alignment(const inventory::Inventory& inventory);
Check check_auto_online(const inventory::Inventory& inventory);
Check check_privilege(const inventory::Inventory& inventory);
// All of them where there is CXL or DAX hardware; none where there is not.
std::vector<Check> check_hardware(const inventory::Inventory& inventory);

// doctor.cc
Check check_socket(const std::string& path);
// All checks, in the order in which they are shown.
std::vector<Check> run_checks(const std::string& socket_path);
// Whether the basic emulated service can run: no essential check is missing.
bool basic_service_possible(const std::vector<Check>& checks);
std::string format_checks(const std::vector<Check>& checks);

// Small readers for files of /proc and /sys; empty or 0 when unreadable.
std::string read_line(const std::string& path);
// The word in brackets of "always within_size [never]".
std::string selected_word(const std::string& line);

}  // namespace terrace::cli
