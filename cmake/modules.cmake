# SPDX-License-Identifier: Apache-2.0
# terrace_module(NAME SOURCES... [PUBLIC targets...] [PRIVATE targets...]): a static library with the project's
# warnings, sanitizers and failpoints. terrace_program does the same for an executable. terrace_compile_together
# (NAME BATCH APART files...) lets the compiler see BATCH sources at once: kj's and Cap'n Proto's templates are
# most of what these cost, and are then made once a batch. Sources APART are compiled by themselves.
add_library(terrace_options INTERFACE)

# Sources that the build makes. They are the same in every build of this tree, and have one path in all of them, so
# that the compiler cache knows an object of one preset in the next.
cmake_path(GET PROJECT_BINARY_DIR PARENT_PATH TERRACE_GENERATED)
if(TERRACE_GENERATED STREQUAL "${PROJECT_SOURCE_DIR}/build")
  string(APPEND TERRACE_GENERATED /generated)
else()
  set(TERRACE_GENERATED ${PROJECT_BINARY_DIR}/generated)
endif()

target_compile_options(terrace_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
                       -Woverloaded-virtual -Wcast-qual -Werror)
target_include_directories(terrace_options INTERFACE ${PROJECT_SOURCE_DIR})
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
    # A sanitized program has some 600,000 pointers to descriptions of its own places, each relocated at every start
    # of a program that may lie anywhere: a fifth of what `terrace` takes to start, and tests start it 19,000 times.
    target_link_options(terrace_options INTERFACE $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-no-pie>)
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
  get_target_property(sources ${name} SOURCES)
  list(REMOVE_ITEM sources ${arg_APART})
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE folder)
  set(together)
  while(sources)
    list(SUBLIST sources 0 ${batch} members)
    list(REMOVE_ITEM sources ${members})
    list(TRANSFORM members REPLACE "(.+)" "#include \"${folder}/\\1\"\n")
    list(JOIN members "" text)
    list(LENGTH together number)
    set(file ${TERRACE_GENERATED}/together/${name}_${number}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)  # written only where it differs
    list(APPEND together ${file})
  endwhile()
  # A name of one file that a later one's parameter shadows is no mistake of either; g++ does not look there.
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    set_source_files_properties(${together} PROPERTIES COMPILE_OPTIONS -Wno-shadow)
  endif()
  set_target_properties(${name} PROPERTIES SOURCES "${arg_APART};${together}")
endfunction()
