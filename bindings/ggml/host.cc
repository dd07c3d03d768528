// SPDX-License-Identifier: Apache-2.0
#include "bindings/ggml/host.h"

#include <dlfcn.h>

namespace terrace::plugin {
namespace {

Host found;

template <typename Function>
bool look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

std::string look_up_all(void* library) {
  std::string missing;
  const auto need = [&](const char* name, auto& function) {
    if (!look_up(library, name, function)) missing += (missing.empty() ? "" : ", ") + std::string(name);
  };
  need("ggml_backend_buffer_init", found.buffer_init);
  need("ggml_backend_dev_by_type", found.dev_by_type);
  need("ggml_backend_dev_init", found.dev_init);
  need("ggml_backend_dev_backend_reg", found.dev_backend_reg);
  need("ggml_backend_dev_supports_op", found.dev_supports_op);
  need("ggml_backend_dev_memory", found.dev_memory);
  need("ggml_backend_reg_get_proc_address", found.reg_get_proc_address);
  need("ggml_backend_buft_is_host", found.buft_is_host);
  need("ggml_backend_buffer_is_host", found.buffer_is_host);
  need("ggml_backend_free", found.backend_free);
  need("ggml_backend_graph_compute", found.graph_compute);
  need("ggml_graph_n_nodes", found.graph_n_nodes);
  need("ggml_graph_node", found.graph_node);
  need("ggml_nbytes", found.nbytes);
  need("ggml_version", found.version);
  look_up(library, "ggml_graph_view", found.graph_view);
  return missing;
}

}  // namespace

const Host& host() {
  return found;
}

std::string find_host(const void* caller) {
  Dl_info where{};
  void* library = nullptr;
  if (dladdr(caller, &where) != 0 && where.dli_fname != nullptr)
    library = dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD);  // NULL for the program itself
  const std::string name = library != nullptr ? where.dli_fname : "the program";
  if (library == nullptr) library = dlopen(nullptr, RTLD_LAZY);
  const std::string missing = look_up_all(library);
  if (!missing.empty())
    return "the ggml in " + name + " lacks " + missing +
           "; build this plug-in with the headers of that ggml (docs/operations/llama.md)";
  return {};
}

}  // namespace terrace::plugin
