# SPDX-License-Identifier: Apache-2.0
# Writes OUTPUT, a source with version_and_build(), unless it says so already. CMakeLists.txt runs it in each build.
if(NOT COMMIT AND EXISTS ${TREE}/.git)  # not the git tree around an unpacked archive
  find_program(git git)
  if(git)
    execute_process(COMMAND ${git} -C ${TREE} rev-parse --short=12 HEAD OUTPUT_VARIABLE COMMIT ERROR_QUIET
                    OUTPUT_STRIP_TRAILING_WHITESPACE)
    execute_process(COMMAND ${git} -C ${TREE} --no-optional-locks diff --quiet HEAD -- RESULT_VARIABLE changed
                    OUTPUT_QUIET ERROR_QUIET)
    if(COMMIT AND changed EQUAL 1)
      string(APPEND COMMIT " changed")
    endif()
  endif()
endif()
if(NOT COMMIT)
  set(COMMIT "no git tree")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
#include "core/version/build_info.h"

namespace terrace {

const char* version_and_build() {
  return "@VERSION@ (@COMMIT@, @KIND@)";
}

}  // namespace terrace
]])
