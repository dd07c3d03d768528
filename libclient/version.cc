#include "terrace/version.h"

namespace terrace {

const char* library_version() {
  return TERRACE_VERSION;
}

}  // namespace terrace
