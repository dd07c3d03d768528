// SPDX-License-Identifier: Apache-2.0
// A view of a Storage: a tensor as its user holds it.
#pragma once

#include <memory>
#include <string>

#include "libclient/placement/core.h"

namespace terrace::placement {

// The whole of it.
std::shared_ptr<Tensor> whole_tensor(std::shared_ptr<Storage> storage);

}  // namespace terrace::placement
