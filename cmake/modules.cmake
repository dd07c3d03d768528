# terrace_module(NAME SOURCES... [PUBLIC targets...] [PRIVATE targets...]): a static library with the project's
# warnings, sanitizers and failpoints. terrace_program does the same for an executable. terrace_compile_together
# (NAME BATCH APART files...) lets the compiler see BATCH sources at once: kj's and Cap'n Proto's templates are
# most of what these cost, and are then made once a batch. Sources APART are compiled by themselves.
add_library(terrace_options INTERFACE)
target_compile_options(terrace_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
                       -Woverloaded-virtual -Wcast-qual -Werror)
target_include_directories(terrace_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_definitions(terrace_options INTERFACE TERRACE_VERSION="${PROJECT_VERSION}")
if(TERRACE_FAILPOINTS)
  target_compile_definitions(terrace_options INTERFACE TERRACE_FAILPOINTS_ENABLED)
endif()
if(TERRACE_SANITIZE)
  target_compile_options(terrace_options INTERFACE -fsanitize=${TERRACE_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all)
  target_link_options(terrace_options INTERFACE -fsanitize=${TERRACE_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # known to be wrong on instrumented code (GCC manual, -fsanitize)
    target_compile_options(terrace_options INTERFACE -Wno-maybe-uninitialized)
    # These four of UBSan's checks and the inlining of -O1 are two thirds of the compiler's time over kj's and
    # Cap'n Proto's templates. Null pointers are ASan's as well; the fuzz preset (clang) has all of them.
    target_compile_options(terrace_options INTERFACE -Og)
    if(TERRACE_SANITIZE MATCHES "undefined")
      target_compile_options(terrace_options INTERFACE -fno-sanitize=null,alignment,vptr,object-size)
    endif()
  endif()
endif()
if(TERRACE_FUZZ)
  target_compile_options(terrace_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

function(terrace_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_link_libraries(${name} PUBLIC ${arg_PUBLIC} PRIVATE terrace_options ${arg_PRIVATE})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
endfunction()

function(terrace_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE terrace_options ${arg_LINK})
endfunction()

function(terrace_compile_together name batch)
  cmake_parse_arguments(arg "" "" "APART" ${ARGN})
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
  set_source_files_properties(${arg_APART} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
