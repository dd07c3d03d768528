// SPDX-License-Identifier: Apache-2.0
// What NIXL looks for in libplugin_TERRACE.so. No exception leaves it.
#include <exception>

#include "backend/backend_plugin.h"
#include "bindings/nixl/engine.h"
#include "bindings/nixl/settings.h"
#include "terrace/version.h"

namespace {

nixlBackendEngine* create(const nixlBackendInitParams* parameters) {
  try {
    return new terrace::nixl::Engine(parameters);
  } catch (const std::exception& error) {
    terrace::nixl::complain(error.what());
    return nullptr;
  }
}

void destroy(nixlBackendEngine* engine) {
  delete engine;
}

const char* name() {
  return "TERRACE";
}

const char* version() {
  return terrace::library_version();
}

nixl_b_params_t options() {
  return terrace::nixl::default_parameters();
}

nixl_mem_list_t memory_types() {
  return {DRAM_SEG, OBJ_SEG};
}

}  // namespace

extern "C" nixlBackendPlugin* nixl_plugin_init() {
  static nixlBackendPlugin plugin = {
      NIXL_PLUGIN_API_VERSION, create, destroy, name, version, options, memory_types};
  return &plugin;
}

extern "C" void nixl_plugin_fini() {}
