// SPDX-License-Identifier: Apache-2.0
// Checks a machine's features for Terrace. Each check tries the feature itself where it can (a system call, an ioctl,
// a mount in a throw-away namespace) rather than trust a version number. It makes no lasting change, and says how to
// fix a missing feature.
//
// Place     `terrace doctor` runs them in its own process; the manager has them run in a helper process
//           (daemon/helper), so that a driver that hangs, or that is not to be loaded into a manager, stays out of it.
// Threads   One; blocks. check_tmpfs_huge_pages() forks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "daemon/inventory/inventory.h"

namespace terrace::doctor {

enum class CheckState : uint8_t {
  ok,
  limited,  // works, with less: `meaning` says what
  missing,  // does not work here
};

// What a check is about, in the order in which people read them.
enum class CheckGroup : uint8_t { machine, memory, limits, migration, hardware, access };

struct Check {
  std::string name;  // stable, snake_case; the JSON key
  CheckState state = CheckState::ok;
  std::string found = {};    // what was seen
  std::string meaning = {};  // what that means for Terrace
  std::string fix = {};      // what to do about it; empty when ok
  bool essential = false;    // missing: the emulated service cannot run at all
};

const char* state_name(CheckState state);  // "ok", "limited", "missing"
const char* group_name(CheckGroup group);  // "machine", ...
// Of a check by its name; one that is not known here is about the machine.
CheckGroup group_of(std::string_view name);

// kernel.cc
Check check_kernel();
Check check_userfaultfd();
Check check_userfaultfd_shmem();  // write protection of shared memory, tried on a page
Check check_pagemap_scan();
Check check_io_uring();
Check check_time_slice();  // of threads that wait for a disk or a socket

// memory.cc
Check check_memory();
Check check_dev_shm();
Check check_shmem_huge_pages();
Check check_tmpfs_huge_pages();
Check check_hugetlb();
Check check_map_count();
Check check_overcommit();
Check check_open_files();

// devices.cc
Check check_cxl(const inventory::Inventory& inventory);
Check check_cxl_modules(const inventory::Inventory& inventory);
Check check_dax(const inventory::Inventory& inventory);
Check check_numa(const inventory::Inventory& inventory);
Check check_processor();
Check check_cuda();  // loads the driver into this process, for good

// hardware.cc: what goes wrong with CXL and DAX memory again and again. Pure functions of an inventory; each is ok
// where it finds nothing.
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

// checks.cc
// Pure: what the checks above come to for programs of this user.
Check check_migration(const std::vector<Check>& checks);
// All checks of a machine, in the order in which they are shown. `of_user`: those of who asks, which
// check_migration() counts.
std::vector<Check> run_checks(std::vector<Check> of_user = {});
// Whether the basic emulated service can run: no essential check is missing.
bool basic_service_possible(const std::vector<Check>& checks);

// From one process to another.
std::string pack(const std::vector<Check>& checks);
// Errors    corrupt   not what pack() makes
Result<std::vector<Check>> unpack(std::string_view bytes);

// Small readers for files of /proc and /sys; empty or 0 when unreadable.
std::string read_line(const std::string& path);
// The word in brackets of "always within_size [never]".
std::string selected_word(const std::string& line);
std::string comma_list(const std::vector<std::string>& words);

}  // namespace terrace::doctor
