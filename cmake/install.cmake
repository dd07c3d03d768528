# What `cmake --install` lays down: the client library with its headers and package files, and the programs.
# Public headers include "terrace/..." and "core/base/..."; the latter are kept below include/terrace, so that
# nothing of ours lies directly in a shared include folder but the folder `terrace`.
# Optimised programs are installed without symbols (63 MB become 7); `-DTERRACE_INSTALL_STRIPPED=OFF` keeps them.
include(CMakePackageConfigHelpers)

option(TERRACE_INSTALL_STRIPPED "Strip what a Release build installs" ON)
if(TERRACE_INSTALL_STRIPPED AND CMAKE_BUILD_TYPE STREQUAL "Release")
  install(CODE "set(CMAKE_INSTALL_DO_STRIP ON)" ALL_COMPONENTS)
endif()

install(TARGETS terrace_client EXPORT terraceTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/libclient/include/terrace
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development FILES_MATCHING PATTERN "*.h")
foreach(header check error ids result unique_fd units)
  install(FILES ${PROJECT_SOURCE_DIR}/core/base/${header}.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/terrace/core/base COMPONENT development)
endforeach()

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/terrace)
install(EXPORT terraceTargets NAMESPACE terrace:: DESTINATION ${package_folder} COMPONENT development)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/terraceConfig.cmake.in
  ${PROJECT_BINARY_DIR}/terraceConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/terraceConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)  # before 1.0 a minor version may change the interface
install(FILES ${PROJECT_BINARY_DIR}/terraceConfig.cmake ${PROJECT_BINARY_DIR}/terraceConfigVersion.cmake
  DESTINATION ${package_folder} COMPONENT development)

# Relative to the .pc file, so that --prefix at install time is right and the tree can be moved.
file(RELATIVE_PATH TERRACE_PC_TO_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" TERRACE_PC_TO_PREFIX "${TERRACE_PC_TO_PREFIX}")
configure_file(${PROJECT_SOURCE_DIR}/cmake/terrace.pc.in ${PROJECT_BINARY_DIR}/terrace.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/terrace.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

foreach(program terrace terraced)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
  endif()
endforeach()
if(TARGET terrace_malloc)  # preloaded by `terrace run`, never linked
  install(TARGETS terrace_malloc terrace_heap_preload LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT programs)
endif()
