// SPDX-License-Identifier: Apache-2.0
// What DLPack's consumers are told of host and device memory, and that the memory lives as long as they have
// it.
#include "terrace/dlpack.h"

#include "terrace/device_replicas.h"
#include "tests/unit/device/device_fixture.h"

using namespace terrace;
using namespace terrace::test;

TEST_CASE("dlpack: a host tensor is described as it lies, and kept until the deleter is called") {
  auto kept = std::make_shared<Bytes>(random_bytes(1000, 1));
  const std::weak_ptr<Bytes> alive = kept;
  Strides strides{};
  strides[0] = 10;
  strides[1] = 2;
  dlpack::ManagedTensor* managed = must(dlpack::make({.data = kept->data() + 4,
                                                      .device = dlpack::host(),
                                                      .dtype = DType::f32,
                                                      .shape = {3, 5},
                                                      .strides = strides,
                                                      .keep = kept}));
  CHECK(managed->tensor.data == kept->data() + 4);
  CHECK(managed->tensor.device.type == dlpack::DeviceType::cpu);
  CHECK(managed->tensor.rank == 2);
  CHECK(managed->tensor.shape[1] == 5);
  CHECK(managed->tensor.strides[0] == 10);
  CHECK(managed->tensor.strides[1] == 2);
  CHECK(managed->tensor.byte_offset == 0);
  CHECK(managed->tensor.dtype.code == dlpack::TypeCode::ieee_float);
  CHECK(managed->tensor.dtype.bits == 32);
  CHECK(managed->tensor.dtype.lanes == 1);
  kept.reset();
  CHECK_FALSE(alive.expired());
  managed->deleter(managed);
  CHECK(alive.expired());
}

TEST_CASE("dlpack: element types are named as DLPack does, or refused where it has no name") {
  const auto named = [](DType dtype) { return must(dlpack::data_type(dtype, true)); };
  CHECK(named(DType::boolean).code == dlpack::TypeCode::boolean);
  CHECK(named(DType::boolean).bits == 8);
  CHECK(named(DType::bf16).code == dlpack::TypeCode::bfloat);
  CHECK(named(DType::bf16).bits == 16);
  CHECK(named(DType::c64).code == dlpack::TypeCode::complex_float);
  CHECK(named(DType::c64).bits == 64);
  CHECK(named(DType::i64).code == dlpack::TypeCode::signed_integer);
  CHECK(named(DType::u16).code == dlpack::TypeCode::unsigned_integer);
  for (const DType dtype : {DType::f8_e4m3, DType::f8_e5m2, DType::f8_e4m3fnuz, DType::f8_e5m2fnuz,
                            DType::f8_e8m0, DType::f6_e2m3, DType::f6_e3m2, DType::f4}) {
    const auto refused = dlpack::data_type(dtype, true);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::unsupported);
    CHECK(must(dlpack::data_type(dtype, false)).bits == dtype_bits(dtype));
  }
}

TEST_CASE("dlpack: what is read-only says so in a versioned tensor, and is refused in an old one") {
  const Bytes bytes(64);
  const dlpack::Memory memory{.data = bytes.data(),
                              .dtype = DType::f8_e4m3,
                              .shape = {64},
                              .strides = row_major_strides({64}),
                              .read_only = true};
  CHECK(dlpack::make(memory).error().code == ErrorCode::unsupported);
  dlpack::ManagedTensorVersioned* managed = must(dlpack::make_versioned(memory));
  CHECK(managed->version.major == 1);
  CHECK(managed->version.minor == 1);  // eight-bit floats came with it
  CHECK(managed->flags == dlpack::flag_read_only);
  CHECK(managed->tensor.dtype.code == dlpack::TypeCode::float8_e4m3fn);
  managed->deleter(managed);
}

TEST_CASE("dlpack: scalars, tensors without elements, and more elements than it counts") {
  const Bytes bytes(64);
  dlpack::ManagedTensor* scalar = must(dlpack::make({.data = bytes.data(), .dtype = DType::i32}));
  CHECK(scalar->tensor.rank == 0);
  CHECK(scalar->tensor.data == bytes.data());
  scalar->deleter(scalar);
  dlpack::ManagedTensor* empty =
      must(dlpack::make({.data = bytes.data(), .dtype = DType::i32, .shape = {4, 0}}));
  CHECK(empty->tensor.data == nullptr);
  empty->deleter(empty);
  CHECK(dlpack::make({.data = bytes.data(), .shape = {uint64_t{1} << 63}}).error().code ==
        ErrorCode::invalid_argument);
}

TEST_CASE("dlpack: a replica is pinned while a consumer has it, also without the cache") {
  const auto device = emulated({.capacity_bytes = 8 * mib, .upload_bytes_per_s = 4 * mib});
  auto replicas = must(DeviceReplicas::make(device, {.budget_bytes = 1 * mib}));
  const Bytes bytes = random_bytes(256 * kib, 5);
  Replica replica = must(replicas->fetch({.id = 1, .name = "w", .bytes = bytes, .version_now = {}}, 2));
  CHECK(replica.dlpack_memory(DType::f32, {65536}).error().code == ErrorCode::busy);
  must(replica.ready().wait());
  const auto too_large = replica.dlpack_memory(DType::f64, {40000});
  REQUIRE_FALSE(too_large.ok());
  CHECK(says(too_large.error(), "needs 57856 more"));
  dlpack::ManagedTensor* managed = must(dlpack::make(must(replica.dlpack_memory(DType::f32, {256, 256}))));
  CHECK(managed->tensor.device.type == dlpack::DeviceType::cpu);  // an emulated device's memory is the host's
  CHECK(std::memcmp(managed->tensor.data, bytes.data(), bytes.size()) == 0);
  replica.release();
  CHECK(replicas->stats().pinned_bytes == 256 * kib);
  replicas.reset();
  CHECK(std::memcmp(managed->tensor.data, bytes.data(), bytes.size()) == 0);
  managed->deleter(managed);
  CHECK(must(device->use()).allocated_bytes == 0);
}

TEST_CASE("dlpack: a CUDA device's memory is told by its kind, number and address") {
  FakeDriver driver;
  CudaDeviceOptions options = driver.options();
  options.ordinal = 1;
  const auto device = must(DeviceMemory::open_cuda(options));
  auto replicas = must(DeviceReplicas::make(device, {.budget_bytes = 1 * mib}));
  const Bytes bytes = random_bytes(4096, 6);
  const Replica replica = must(replicas->fetch({.id = 1, .name = "w", .bytes = bytes, .version_now = {}}, 2));
  must(replica.ready().wait());
  dlpack::ManagedTensor* managed = must(dlpack::make(must(replica.dlpack_memory(DType::bf16, {2048}))));
  CHECK(managed->tensor.device.type == dlpack::DeviceType::cuda);
  CHECK(managed->tensor.device.id == 1);
  CHECK(reinterpret_cast<uint64_t>(managed->tensor.data) == replica.address());
  managed->deleter(managed);
}
