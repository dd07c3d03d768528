// SPDX-License-Identifier: Apache-2.0
// The functions of ggml in the process that loaded this plug-in.
//
// The plug-in links no library of ggml: their names differ (libggml-base.so, libggml-base.so.0, none where all is in
// the program). They are looked up in the library that called ggml_backend_init, and in what that needs.
//
// Threads   Set once, in ggml_backend_init; read by all.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "ggml-backend-impl.h"

namespace terrace::plugin {

// What ggml_graph_view returns is a struct whose members are ggml's own and change between versions. It is returned
// through a pointer, as all structs of this size, and only handed on.
struct GraphRoom {
  alignas(16) std::array<std::byte, 1024> bytes;
  ggml_cgraph* graph() { return reinterpret_cast<ggml_cgraph*>(bytes.data()); }
};

struct Host {
  decltype(&::ggml_backend_buffer_init) buffer_init = nullptr;
  decltype(&::ggml_backend_dev_by_type) dev_by_type = nullptr;
  decltype(&::ggml_backend_dev_init) dev_init = nullptr;
  decltype(&::ggml_backend_dev_backend_reg) dev_backend_reg = nullptr;
  decltype(&::ggml_backend_dev_supports_op) dev_supports_op = nullptr;
  decltype(&::ggml_backend_dev_memory) dev_memory = nullptr;
  decltype(&::ggml_backend_reg_get_proc_address) reg_get_proc_address = nullptr;
  decltype(&::ggml_backend_buft_is_host) buft_is_host = nullptr;
  decltype(&::ggml_backend_buffer_is_host) buffer_is_host = nullptr;
  decltype(&::ggml_backend_free) backend_free = nullptr;
  decltype(&::ggml_backend_graph_compute) graph_compute = nullptr;
  decltype(&::ggml_graph_n_nodes) graph_n_nodes = nullptr;
  decltype(&::ggml_graph_node) graph_node = nullptr;
  decltype(&::ggml_nbytes) nbytes = nullptr;
  decltype(&::ggml_version) version = nullptr;
  // nullptr where this ggml does not show it: then a graph is computed in one piece.
  GraphRoom (*graph_view)(ggml_cgraph* graph, int begin, int end) = nullptr;
};

const Host& host();

// `caller`: an address in the code that called ggml_backend_init. Returns why not; empty: found.
std::string find_host(const void* caller);

}  // namespace terrace::plugin
