// SPDX-License-Identifier: Apache-2.0
/* DLPack's structures, seen as a consumer in C sees them: declared here from the specification, not from our header. */
#include "tests/unit/c_api/checks.h"

typedef struct {
  void* data;
  struct {
    int32_t type, id;
  } device;
  int32_t ndim;
  struct {
    uint8_t code, bits;
    uint16_t lanes;
  } dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} DLTensor;

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensor* self);
};

struct DLManagedTensorVersioned {
  struct {
    uint32_t major, minor;
  } version;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
};

void dlpack_tests(void) {
  terrace_pool* pool = ddr_pool((uint64_t)4 << 20);
  const uint64_t dimensions[] = {3, 5};
  struct terrace_tensor_spec spec = {
      .size = sizeof spec, .name = "d", .dtype = TERRACE_DTYPE_BF16, .rank = 2, .dimensions = dimensions};
  terrace_tensor* tensor = NULL;
  MUST(terrace_pool_create(pool, &spec, &tensor));
  struct DLManagedTensor* managed = NULL;
  MUST(terrace_dlpack_tensor(tensor, &managed));
  CHECK(managed->dl_tensor.data == terrace_tensor_data(tensor) && managed->dl_tensor.device.type == 1);
  CHECK(managed->dl_tensor.ndim == 2 && managed->dl_tensor.shape[1] == 5 && managed->dl_tensor.strides[0] == 5);
  CHECK(managed->dl_tensor.dtype.code == 4 && managed->dl_tensor.dtype.bits == 16);

  terrace_tensor_free(tensor);
  MUST(terrace_pool_find(pool, "d", &tensor)); /* it is kept */
  terrace_tensor_free(tensor);
  memset(managed->dl_tensor.data, 1, 30);
  managed->deleter(managed);
  CHECK_FAILS(terrace_pool_find(pool, "d", &tensor), TERRACE_NOT_FOUND, "'d'");

  spec.dtype = TERRACE_DTYPE_F8_E4M3;
  MUST(terrace_pool_create(pool, &spec, &tensor));
  CHECK_FAILS(terrace_dlpack_tensor(tensor, &managed), TERRACE_UNSUPPORTED, "F8_E4M3");
  struct DLManagedTensorVersioned* versioned = NULL;
  MUST(terrace_dlpack_tensor_versioned(tensor, 1, &versioned));
  CHECK(versioned->version.major == 1 && versioned->flags == 1 && versioned->dl_tensor.dtype.code == 10);
  terrace_tensor_free(tensor);
  terrace_pool_free(pool);
  CHECK(((volatile char*)versioned->dl_tensor.data)[0] || 1); /* kept without its pool, too */
  versioned->deleter(versioned);
}
