// Which libterrace a program runs with; what it was compiled against is in the package's version.
#pragma once

namespace terrace {

// "0.1.0". Threads: any.
const char* library_version();

}  // namespace terrace
