// SPDX-License-Identifier: Apache-2.0
#include "bindings/ggml/steps.h"

#include <algorithm>

namespace terrace::plugin {
namespace {

// Smaller tensors lie in granules of 2 MiB with others: to tell of them by themselves is worth nothing.
constexpr uint64_t use_bytes_min = 64 << 10;
// A slice costs as much as starting the threads that compute it.
constexpr uint64_t slice_bytes_min = 4 << 20;
// So that what is computed, and what is copied meanwhile, are a part of DDR only.
constexpr uint64_t slices_in_ddr = 8;

// Guards that are open while a slice is computed.
class Open {
 public:
  explicit Open(size_t count) { guards_.reserve(count); }
  ~Open() {
    for (terrace_guard* guard : guards_) terrace_guard_free(guard);
  }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;

  // A lease that is being taken back refuses guards; its memory is there until the fence, so computing goes on.
  void add(Block& block, uint64_t begin, uint64_t end) {
    const MutexLock lock(block.views_mutex);
    terrace_tensor*& view = block.views[{begin, end - begin}];
    if (view == nullptr && terrace_tensor_slice(block.tensor, 0, begin, end - begin, 1, &view) != TERRACE_OK)
      return;
    terrace_guard* guard = nullptr;
    if (terrace_tensor_read(view, nullptr, &guard) == TERRACE_OK) guards_.push_back(guard);
  }

 private:
  std::vector<terrace_guard*> guards_;
};

}  // namespace

ggml_status Steps::compute(ggml_backend_t cpu, ggml_cgraph* graph) {
  if (!memory().settings().steps) return host().graph_compute(cpu, graph);
  plan(graph);
  const int nodes = host().graph_n_nodes(graph);
  for (const Slice& slice : slices_) {
    if (!slice.uses.empty()) note_step(slice.uses.front());
    Open open(slice.uses.size());
    for (const Use& use : slice.uses) open.add(*use.block, use.begin, use.end);
    ggml_status status = GGML_STATUS_SUCCESS;
    if (slice.begin == 0 && slice.end == nodes) {
      status = host().graph_compute(cpu, graph);
    } else {
      GraphRoom part = host().graph_view(graph, slice.begin, slice.end);
      status = host().graph_compute(cpu, part.graph());
    }
    if (status != GGML_STATUS_SUCCESS) return status;
  }
  return GGML_STATUS_SUCCESS;
}

// Slices end before a multiplication only: what ggml computes in one go with its neighbours stays together.
void Steps::plan(ggml_cgraph* graph) {
  slices_.clear();
  const int nodes = host().graph_n_nodes(graph);
  Slice slice{.begin = 0, .end = nodes, .uses = {}};
  uint64_t slice_bytes = 0;
  for (int i = 0; i < nodes; ++i) {
    const ggml_tensor* node = host().graph_node(graph, i);
    std::vector<Use> uses;
    uint64_t bytes = 0, limit = 0;
    const auto note = [&](const ggml_tensor* tensor) {
      const ggml_tensor* root = nullptr;
      Block* block = tensor != nullptr ? block_of(tensor, root) : nullptr;
      if (block == nullptr || block->part == nullptr || block->kind == Kind::compute) return;
      const uint64_t length = host().nbytes(root);
      if (length < use_bytes_min) return;
      const auto begin = static_cast<uint64_t>(static_cast<std::byte*>(root->data) - block->base);
      const Use use{.block = block, .begin = begin, .end = begin + length};
      if (std::find(slice.uses.begin(), slice.uses.end(), use) != slice.uses.end()) return;
      if (std::find(uses.begin(), uses.end(), use) != uses.end()) return;
      uses.push_back(use);
      bytes += length;
      limit = std::max(slice_bytes_min, block->part->ddr_bytes / slices_in_ddr);
    };
    for (const ggml_tensor* source : node->src) note(source);
    note(node);
    const bool may_cut = node->op == GGML_OP_MUL_MAT && host().graph_view != nullptr;
    if (may_cut && slice_bytes > 0 && bytes > 0 && slice_bytes + bytes > limit) {
      slice.end = i;
      slices_.push_back(std::move(slice));
      slice = {.begin = i, .end = nodes, .uses = {}};
      slice_bytes = 0;
    }
    slice.uses.insert(slice.uses.end(), uses.begin(), uses.end());
    slice_bytes += bytes;
  }
  slice.end = nodes;
  slices_.push_back(std::move(slice));
}

void Steps::note_step(const Use& first) {
  if (first_.block == nullptr) {
    first_ = first;
  } else if (first == first_) {
    terrace_pool_step(first.block->part->pool);
  }
}

}  // namespace terrace::plugin
