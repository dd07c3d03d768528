// SPDX-License-Identifier: Apache-2.0
// Hardware that is composed into devices: regions of CXL memory devices, dax devices as memory of the kernel's. Kinds of
// memory that can, have one (Backend::composition()). Its calls are a worker's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"

namespace terrace::daemon {

// CXL memory devices to be made one region, in their order of interleaving.
struct RegionRequest {
  std::vector<std::string> memdevs;  // serials
  uint32_t granularity_bytes = 0;    // of the interleaving; 0: the largest that all decoders can do
  uint64_t bytes = 0;                // 0: all there is
};

class Composition {
 public:
  virtual ~Composition() = default;

  // Composes memdevs into a region, which is a device from then on: its serial. On a worker.
  virtual Result<std::string> create_region(const RegionRequest& request) = 0;
  virtual Status destroy_region(const std::string& serial) = 0;
  // Gives a dax device to the kernel as memory of a CPU-less node, which is a device from then on: its serial.
  virtual Result<std::string> online(const std::string& serial) = 0;
  // The way back.
  // Errors    busy   pages of it are in use
  virtual Status offline(const std::string& serial) = 0;
};

}  // namespace terrace::daemon
