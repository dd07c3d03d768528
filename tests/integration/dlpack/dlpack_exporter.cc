// SPDX-License-Identifier: Apache-2.0
// Tensors for dlpack_test.py: a C interface that makes DLPack tensors of host memory and of an emulated
// device's replicas, and tells what is still kept.
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "terrace/device_replicas.h"
#include "terrace/dlpack.h"

using namespace terrace;

namespace {

thread_local std::string last_error;
std::atomic<int> kept_count = 0;
std::shared_ptr<DeviceMemory> device;
std::unique_ptr<DeviceReplicas> replicas;

struct Kept {
  explicit Kept(std::vector<std::byte> data) : bytes(std::move(data)) { ++kept_count; }
  ~Kept() { --kept_count; }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  std::vector<std::byte> bytes;
};

template <typename Value>
void* give(Result<Value> result) {
  if (result.ok()) return *result;
  last_error = result.error().to_string();
  return nullptr;
}

Result<Shape> shape_of(const uint64_t* dimensions, uint32_t rank) {
  return Shape::from({dimensions, rank});
}

Result<dlpack::ManagedTensor*> host_tensor(const std::byte* bytes, uint64_t count, const char* dtype,
                                           const uint64_t* dimensions, uint32_t rank) {
  TERRACE_ASSIGN_OR_RETURN(const Shape shape, shape_of(dimensions, rank));
  const auto kept = std::make_shared<Kept>(std::vector<std::byte>(bytes, bytes + count));
  return dlpack::make({.data = kept->bytes.data(),
                       .dtype = dtype_from_name(dtype).value(),
                       .shape = shape,
                       .strides = row_major_strides(shape),
                       .keep = kept});
}

Result<dlpack::ManagedTensor*> replica(uint64_t id, const std::byte* bytes, uint64_t count, const char* dtype,
                                       const uint64_t* dimensions, uint32_t rank) {
  TERRACE_ASSIGN_OR_RETURN(const Shape shape, shape_of(dimensions, rank));
  TERRACE_ASSIGN_OR_RETURN(
      const Replica fetched,
      replicas->fetch({.id = id, .name = "t", .bytes = {bytes, count}, .version_now = {}}, 2));
  TERRACE_RETURN_IF_ERROR(fetched.ready().wait());
  TERRACE_ASSIGN_OR_RETURN(const dlpack::Memory memory,
                           fetched.dlpack_memory(dtype_from_name(dtype).value(), shape));
  return dlpack::make(memory);
}

}  // namespace

extern "C" {

const char* terrace_test_error() {
  return last_error.c_str();
}

int terrace_test_open(uint64_t capacity_bytes) {
  auto made = DeviceMemory::make_emulated({.capacity_bytes = capacity_bytes});
  if (!made.ok()) return 1;
  device = *made;
  auto cache = DeviceReplicas::make(device, {.budget_bytes = capacity_bytes});
  if (!cache.ok()) return 1;
  replicas = std::move(*cache);
  return 0;
}

void terrace_test_close() {
  replicas.reset();
}

uint64_t terrace_test_device_bytes() {
  const auto use = device->use();
  return use.ok() ? use->allocated_bytes : ~uint64_t{0};
}

int terrace_test_kept() {
  return kept_count;
}

void* terrace_test_host(const std::byte* bytes, uint64_t count, const char* dtype, const uint64_t* dimensions,
                        uint32_t rank) {
  return give(host_tensor(bytes, count, dtype, dimensions, rank));
}

void* terrace_test_replica(uint64_t id, const std::byte* bytes, uint64_t count, const char* dtype,
                           const uint64_t* dimensions, uint32_t rank) {
  return give(replica(id, bytes, count, dtype, dimensions, rank));
}

}  // extern "C"
