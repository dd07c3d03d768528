// SPDX-License-Identifier: Apache-2.0
// Makes what is left of a damaged store's rows fit together, so that a manager can start from it. Rows of before and
// after a commit that is missing may both be there: of two that cannot both be right the newer one stays. Nothing of
// this touches memory: a start from such a store quarantines the objects of leases that it does not know.
//
// Threads   Pure.
#pragma once

#include <string>
#include <vector>

#include "daemon/model/rows.h"

namespace terrace::daemon {

// Adds a sentence to `lost` for each row that is left out or changed.
void settle_rows(Image& image, std::vector<std::string>& lost);

}  // namespace terrace::daemon
