// SPDX-License-Identifier: Apache-2.0
// ggml_backend_init: what GGML_BACKEND_PATH loads. One device, of type GPU so that llama.cpp offloads weights and KV
// cache to it, whose memory is Terrace's and whose processor is the host's own CPU backend.
//
// Threads   As ggml's.
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "bindings/ggml/buffer.h"
#include "bindings/ggml/settings.h"
#include "bindings/ggml/steps.h"

namespace terrace::plugin {
namespace {

struct Engine {
  ggml_backend_t cpu = nullptr;
  Steps steps;
};

ggml_backend_reg_t registration();
ggml_backend_dev_t device();

ggml_backend_dev_t cpu_device() {
  return host().dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

Engine& engine_of(ggml_backend_t backend) {
  return *static_cast<Engine*>(backend->context);
}

// ---- the backend ----

const char* backend_name(ggml_backend_t) {
  return "Terrace";
}

void backend_free(ggml_backend_t backend) {
  host().backend_free(engine_of(backend).cpu);
  delete &engine_of(backend);
  delete backend;
}

ggml_status backend_compute(ggml_backend_t backend, ggml_cgraph* graph) {
  try {
    return engine_of(backend).steps.compute(engine_of(backend).cpu, graph);
  } catch (const std::bad_alloc&) {
    return GGML_STATUS_ALLOC_FAILED;
  }
}

ggml_guid_t guid() {
  static ggml_guid number = {0x74, 0x65, 0x72, 0x72, 0x61, 0x63, 0x65, 0x2d,
                             0x67, 0x67, 0x6d, 0x6c, 0x2d, 0x30, 0x30, 0x31};
  return &number;
}

ggml_backend_t init_backend(ggml_backend_dev_t owner, const char*) {
  const ggml_backend_dev_t cpu = cpu_device();
  auto* engine = new (std::nothrow) Engine;
  if (engine == nullptr) return nullptr;
  engine->cpu = cpu != nullptr ? host().dev_init(cpu, nullptr) : nullptr;
  if (engine->cpu == nullptr) {
    complain(
        "this ggml has no CPU backend, which computes for Terrace's; load it first (ggml_backend_load_all)");
    delete engine;
    return nullptr;
  }
  auto* backend = new ggml_backend{};
  backend->guid = guid();
  backend->iface.get_name = backend_name;
  backend->iface.free = backend_free;
  backend->iface.graph_compute = backend_compute;
  backend->device = owner;
  backend->context = engine;
  return backend;
}

// ---- the device ----

const char* device_name(ggml_backend_dev_t) {
  return "Terrace";
}

const char* device_description(ggml_backend_dev_t) {
  return "memory of Terrace: DDR and leased CXL";
}

void device_memory(ggml_backend_dev_t, size_t* free_bytes, size_t* all_bytes) {
  uint64_t left = 0, all = 0;
  memory().figures(left, all);
  *free_bytes = left;
  *all_bytes = all;
}

enum ggml_backend_dev_type device_type(ggml_backend_dev_t) {
  return GGML_BACKEND_DEVICE_TYPE_GPU;
}

// Older versions of ggml (0.19, say) ask nobody whether a file may be mapped.
template <typename Caps>
void allow_mapped(Caps& caps) {
  if constexpr (requires { caps.mmap_support; }) caps.mmap_support = true;
}

void device_properties(ggml_backend_dev_t owner, ggml_backend_dev_props* properties) {
  *properties = {};
  properties->name = device_name(owner);
  properties->description = device_description(owner);
  properties->type = device_type(owner);
  device_memory(owner, &properties->memory_free, &properties->memory_total);
  properties->caps.buffer_from_host_ptr = memory().settings().mapped;
  allow_mapped(properties->caps);
}

ggml_backend_buffer_t buffer_from_host_ptr(ggml_backend_dev_t owner, void* data, size_t bytes, size_t) {
  return buffer_over(owner, data, bytes);
}

bool supports_op(ggml_backend_dev_t, const ggml_tensor* operation) {
  const ggml_backend_dev_t cpu = cpu_device();
  return cpu != nullptr && host().dev_supports_op(cpu, operation);
}

// All memory of the host can be computed in, its own or Terrace's.
bool supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
  return host().buft_is_host(type);
}

ggml_backend_dev_t device() {
  static ggml_backend_device one = [] {
    ggml_backend_device made{};
    made.iface.get_name = device_name;
    made.iface.get_description = device_description;
    made.iface.get_memory = device_memory;
    made.iface.get_type = device_type;
    made.iface.get_props = device_properties;
    made.iface.init_backend = init_backend;
    made.iface.get_buffer_type = buffer_type;
    made.iface.buffer_from_host_ptr = buffer_from_host_ptr;
    made.iface.supports_op = supports_op;
    made.iface.supports_buft = supports_buft;
    made.reg = registration();
    return made;
  }();
  return &one;
}

// ---- the registration ----

const char* registration_name(ggml_backend_reg_t) {
  return "Terrace";
}
size_t device_count(ggml_backend_reg_t) {
  return 1;
}
ggml_backend_dev_t get_device(ggml_backend_reg_t, size_t) {
  return device();
}

void* cpu_call(const char* name) {
  const ggml_backend_dev_t cpu = cpu_device();
  return cpu != nullptr ? host().reg_get_proc_address(host().dev_backend_reg(cpu), name) : nullptr;
}

void set_threads(ggml_backend_t backend, int threads) {
  if (void* call = cpu_call("ggml_backend_set_n_threads"); call != nullptr)
    reinterpret_cast<ggml_backend_set_n_threads_t>(call)(engine_of(backend).cpu, threads);
}

void set_abort(ggml_backend_t backend, ggml_abort_callback callback, void* context) {
  if (void* call = cpu_call("ggml_backend_set_abort_callback"); call != nullptr)
    reinterpret_cast<ggml_backend_set_abort_callback_t>(call)(engine_of(backend).cpu, callback, context);
}

void* get_proc_address(ggml_backend_reg_t, const char* name) {
  const std::string_view wanted = name;
  if (wanted == "ggml_backend_set_n_threads") return reinterpret_cast<void*>(set_threads);
  if (wanted == "ggml_backend_set_abort_callback") return reinterpret_cast<void*>(set_abort);
  return nullptr;
}

ggml_backend_reg_t registration() {
  static ggml_backend_reg one = [] {
    ggml_backend_reg made{};
    made.api_version = GGML_BACKEND_API_VERSION;
    made.iface.get_name = registration_name;
    made.iface.get_device_count = device_count;
    made.iface.get_device = get_device;
    made.iface.get_proc_address = get_proc_address;
    return made;
  }();
  return &one;
}

ggml_backend_reg_t start(const void* caller) {
  std::string wrong = find_host(caller);
  const bool here = wrong.empty();
  if (here && std::string_view(host().version()) != TERRACE_GGML_VERSION)
    complain(std::string("built for ggml " TERRACE_GGML_VERSION ", and this is ") + host().version() +
             ": where it fails, build it with the headers of this one");
  Settings settings;
  if (wrong.empty()) wrong = read_settings(settings);
  if (wrong.empty()) wrong = memory().open(settings);
  if (wrong.empty()) return registration();
  if (here && settings.required) {
    complain(wrong + "; TERRACE_GGML_REQUIRED=1: no model is loaded without it");
    return registration();  // with a device that refuses every buffer
  }
  complain(wrong + "; it goes on without Terrace. TERRACE_GGML_REQUIRED=1 makes that an error");
  return nullptr;
}

}  // namespace
}  // namespace terrace::plugin

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() {
  try {
    return terrace::plugin::start(__builtin_return_address(0));
  } catch (const std::exception& failure) {
    terrace::plugin::complain(failure.what());
    return nullptr;
  }
}
