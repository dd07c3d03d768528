// SPDX-License-Identifier: Apache-2.0
// TensorPool: the handle that ends the moves when it goes.
#include <utility>

#include "libclient/placement/core.h"
#include "libclient/placement/tensor.h"

namespace terrace {
namespace {

class Pool final : public TensorPool {
 public:
  explicit Pool(std::shared_ptr<placement::Core> core) : core_(std::move(core)) {}
  ~Pool() override {
    // A child of fork has neither the thread nor who waits for what it shares with it.
    if (core_->in_child())
      new std::shared_ptr<placement::Core>(std::move(core_));
    else
      core_->stop();
  }

  Result<std::shared_ptr<Tensor>> create(const TensorSpec& spec) override {
    TERRACE_ASSIGN_OR_RETURN(auto storage, core_->create(spec));
    return placement::whole_tensor(std::move(storage));
  }
  Result<std::shared_ptr<Tensor>> find(const std::string& name) override {
    TERRACE_ASSIGN_OR_RETURN(auto storage, core_->find(name));
    return placement::whole_tensor(std::move(storage));
  }
  void step() override { core_->step(); }
  TensorPoolStatistics statistics() const override { return core_->statistics(); }
  void set_copy_budget(uint64_t bytes_per_s) override { core_->set_copy_budget(bytes_per_s); }
  TieredRange& range() override { return core_->range(); }

 private:
  std::shared_ptr<placement::Core> core_;
};

}  // namespace

Result<std::unique_ptr<TensorPool>> TensorPool::make(const TensorPoolOptions& options,
                                                     std::vector<std::shared_ptr<Lease>> leases) {
  TERRACE_ASSIGN_OR_RETURN(auto core, placement::Core::make(options, std::move(leases)));
  return std::unique_ptr<TensorPool>(std::make_unique<Pool>(std::move(core)));
}

}  // namespace terrace
