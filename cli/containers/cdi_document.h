// SPDX-License-Identifier: Apache-2.0
// A lease as a device of the Container Device Interface (CDI): the file from which podman, containerd, CRI-O and Docker
// learn what to put into a container that asks for terrace.dev/lease=NAME.
//
// Place     `terrace lease cdi`; pure but for the files' names.
// Threads   Any.
// Source    https://github.com/cncf-tags/container-device-interface, SPEC.md 0.5.0: names, mounts, environment
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/base/result.h"

namespace terrace::cli {

inline constexpr const char* cdi_kind = "terrace.dev/lease";

// One lease for containers. Paths "of the host" are on this machine, the others inside of the container.
struct CdiLease {
  uint64_t id = 0;
  std::string label;
  std::string name;  // of the device, as valid_cdi_name()
  uint64_t bytes = 0;
  bool read_only = false;
  std::string host_path, path;                    // of the memory; empty: none is mounted
  std::string host_socket, socket_mount, socket;  // what is mounted where, and the socket there; empty: none
};

// A letter or digit at both ends, between them also "_-.:".
bool valid_cdi_name(const std::string& name);
// The label where it can be one, else "lease-ID".
std::string cdi_name_of(uint64_t id, const std::string& label);

nlohmann::json cdi_document(const CdiLease& lease);

// The file of a lease in a directory of such files.
std::string cdi_file(const std::string& directory, uint64_t id);
// The lease whose file in `directory` has a device of that name; 0: none.
Result<uint64_t> find_cdi_file(const std::string& directory, const std::string& name);

}  // namespace terrace::cli
