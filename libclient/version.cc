// SPDX-License-Identifier: Apache-2.0
#include "terrace/version.h"

#include "core/version/version.h"

namespace terrace {

const char* library_version() {
  return version_number();
}

}  // namespace terrace
