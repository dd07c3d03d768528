// SPDX-License-Identifier: Apache-2.0
// ggml's buffer type and buffers over Memory. They are host memory: the CPU backend computes in them in place.
//
// Threads   As ggml's: one buffer from one thread at a time, different ones from any.
#pragma once

#include "bindings/ggml/host.h"
#include "bindings/ggml/memory.h"

namespace terrace::plugin {

// Of this process; never freed, as ggml unloads no backend.
Memory& memory();

ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t device);

// A buffer over memory that is mapped already, of which nothing is copied.
ggml_backend_buffer_t buffer_over(ggml_backend_dev_t device, void* data, size_t bytes);

// The memory of the buffer in which a tensor's bytes lie; nullptr: another one's. `root`: behind its views.
Block* block_of(const ggml_tensor* tensor, const ggml_tensor*& root);

}  // namespace terrace::plugin
