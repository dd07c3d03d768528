// SPDX-License-Identifier: Apache-2.0
#include "daemon/fsck/node_check.h"

#include <fcntl.h>

#include "core/base/unique_fd.h"
#include "daemon/memory/files/object_file.h"
#include "daemon/memory/numa/numa.h"
#include "daemon/model/kinds.h"

namespace terrace::daemon {
namespace {

const std::string prefix = prefix_of_kind(kinds::numa);

}  // namespace

std::vector<LiveMapping> scan_node_mappings(const std::string& runtime_directory,
                                            std::chrono::milliseconds time_max) {
  std::vector<LiveMapping> all;
  for (const std::string& directory : find_numa_directories(runtime_directory)) {
    auto scan = scan_processes(directory, time_max);
    if (!scan.ok()) continue;
    for (LiveMapping& mapping : scan->mappings) {
      mapping.object = prefix + mapping.object;
      all.push_back(std::move(mapping));
    }
  }
  return all;
}

Result<std::vector<ObservedObject>> list_node_objects(const std::string& runtime_directory) {
  std::vector<ObservedObject> all;
  for (const std::string& path : find_numa_directories(runtime_directory)) {
    const UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!directory.valid()) continue;  // another user's, in /dev/shm
    TERRACE_ASSIGN_OR_RETURN(std::vector<ObservedObject> objects, list_objects(directory.get(), path));
    for (ObservedObject& object : objects) {
      object.name = prefix + object.name;
      all.push_back(std::move(object));
    }
  }
  return all;
}

std::vector<SeenDevice> discover_nodes(const std::vector<KnownDevice>& known) {
  NumaBackend nodes(NumaOptions{.open = false}, nullptr);
  nodes.know_devices(known);
  (void)nodes.refresh();
  return nodes.discover();
}

}  // namespace terrace::daemon
