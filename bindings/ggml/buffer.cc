// SPDX-License-Identifier: Apache-2.0
#include "bindings/ggml/buffer.h"

#include <cstring>
#include <string_view>

namespace terrace::plugin {
namespace {

constexpr size_t alignment_bytes = 64;

// ggml does not say what a buffer is for when it asks for it. It asks for the size of each tensor first, on the same
// thread, and those have names.
struct Coming {
  bool any = false;
  Kind kind = Kind::compute;
};
thread_local Coming coming;

Kind kind_of(const ggml_tensor& tensor) {
  const std::string_view name = tensor.name;
  if (tensor.op != GGML_OP_NONE || tensor.view_src != nullptr) return Kind::compute;
  if (name.starts_with("cache_")) return Kind::kv_cache;
  const bool weight = name.ends_with(".weight") || name.ends_with(".bias") || name.ends_with(".scale");
  return weight ? Kind::weights : Kind::compute;
}

Block& block_in(ggml_backend_buffer_t buffer) {
  return *static_cast<Block*>(buffer->context);
}

void free_buffer(ggml_backend_buffer_t buffer) {
  memory().free(&block_in(buffer));
}

void* get_base(ggml_backend_buffer_t buffer) {
  return block_in(buffer).base;
}

void memset_tensor(ggml_backend_buffer_t, ggml_tensor* tensor, uint8_t value, size_t offset, size_t bytes) {
  std::memset(static_cast<std::byte*>(tensor->data) + offset, value, bytes);
}

void set_tensor(ggml_backend_buffer_t, ggml_tensor* tensor, const void* data, size_t offset, size_t bytes) {
  std::memcpy(static_cast<std::byte*>(tensor->data) + offset, data, bytes);
}

void get_tensor(ggml_backend_buffer_t, const ggml_tensor* tensor, void* data, size_t offset, size_t bytes) {
  std::memcpy(data, static_cast<const std::byte*>(tensor->data) + offset, bytes);
}

bool cpy_tensor(ggml_backend_buffer_t, const ggml_tensor* from, ggml_tensor* to) {
  if (!host().buffer_is_host(from->buffer)) return false;
  std::memcpy(to->data, from->data, host().nbytes(from));
  return true;
}

void clear(ggml_backend_buffer_t buffer, uint8_t value) {
  std::memset(block_in(buffer).base, value, block_in(buffer).bytes);
}

ggml_backend_buffer_i buffer_interface() {
  ggml_backend_buffer_i calls{};
  calls.free_buffer = free_buffer;
  calls.get_base = get_base;
  calls.memset_tensor = memset_tensor;
  calls.set_tensor = set_tensor;
  calls.get_tensor = get_tensor;
  calls.cpy_tensor = cpy_tensor;
  calls.clear = clear;
  return calls;
}

const char* type_name(ggml_backend_buffer_type_t) {
  return "Terrace";
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t bytes) {
  const Kind kind = coming.any ? coming.kind : Kind::compute;
  coming = {};
  Block* block = memory().allocate(bytes, kind);
  if (block == nullptr) return nullptr;
  return host().buffer_init(type, buffer_interface(), block, bytes);
}

size_t get_alignment(ggml_backend_buffer_type_t) {
  return alignment_bytes;
}

size_t get_alloc_size(ggml_backend_buffer_type_t, const ggml_tensor* tensor) {
  const Kind kind = kind_of(*tensor);
  // Among computed tensors are inputs without an operation: one computed tensor decides.
  if (!coming.any || kind == Kind::compute) coming = {true, kind};
  return host().nbytes(tensor);
}

bool is_host(ggml_backend_buffer_type_t) {
  return true;
}

}  // namespace

Memory& memory() {
  static auto* const all = new Memory;
  return *all;
}

ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t device) {
  static ggml_backend_buffer_type type = [&] {
    ggml_backend_buffer_type made{};
    made.iface.get_name = type_name;
    made.iface.alloc_buffer = alloc_buffer;
    made.iface.get_alignment = get_alignment;
    made.iface.get_alloc_size = get_alloc_size;
    made.iface.is_host = is_host;
    made.device = device;
    return made;
  }();
  return &type;
}

ggml_backend_buffer_t buffer_over(ggml_backend_dev_t device, void* data, size_t bytes) {
  auto* block = new Block;
  block->base = static_cast<std::byte*>(data);
  block->bytes = bytes;
  block->kind = Kind::weights;
  return host().buffer_init(buffer_type(device), buffer_interface(), block, bytes);
}

Block* block_of(const ggml_tensor* tensor, const ggml_tensor*& root) {
  root = tensor;
  while (root->view_src != nullptr) root = root->view_src;
  const ggml_backend_buffer_t buffer = root->buffer;
  if (buffer == nullptr || buffer->iface.get_base != get_base) return nullptr;
  return &block_in(buffer);
}

}  // namespace terrace::plugin
