# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` lays down, by component: library and development (the client library, its headers and package
# files), manager (terraced), programs (terrace), preload (what `terrace run` preloads), python, service (units, users,
# directories, the example configuration), documents.
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

install(TARGETS terrace RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
install(TARGETS terraced RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT manager)
install(FILES docs/man/terraced.8 DESTINATION ${CMAKE_INSTALL_MANDIR}/man8 COMPONENT manager)
if(TARGET terrace_malloc)  # preloaded by `terrace run`, which looks there, and never linked
  install(TARGETS terrace_malloc terrace_heap_preload
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/terrace COMPONENT preload)
endif()

# docs/operations/install.md says what these are for. Below another prefix than /usr systemd does not look for them.
set(TERRACE_UNIT_DIR lib/systemd/system CACHE STRING "Where below the prefix systemd's units go")
foreach(service terraced terrace-agent)
  configure_file(${PROJECT_SOURCE_DIR}/deploy/systemd/${service}.service.in
    ${PROJECT_BINARY_DIR}/systemd/${service}.service @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/systemd/${service}.service DESTINATION ${TERRACE_UNIT_DIR} COMPONENT service)
endforeach()
set(systemd ${PROJECT_SOURCE_DIR}/deploy/systemd)
install(FILES ${systemd}/run-terrace-objects.mount DESTINATION ${TERRACE_UNIT_DIR} COMPONENT service)
install(FILES ${systemd}/terrace.sysusers DESTINATION lib/sysusers.d RENAME terraced.conf COMPONENT service)
install(FILES ${systemd}/terrace.tmpfiles DESTINATION lib/tmpfiles.d RENAME terraced.conf COMPONENT service)
install(FILES ${systemd}/terraced.toml DESTINATION ${CMAKE_INSTALL_SYSCONFDIR}/terrace COMPONENT service)
install(FILES ${systemd}/further-hosts.conf ${PROJECT_SOURCE_DIR}/deploy/prometheus/terrace.rules.yml
  DESTINATION ${CMAKE_INSTALL_DATADIR}/terrace COMPONENT service)
install(FILES ${PROJECT_SOURCE_DIR}/deploy/grafana/terrace.json
  DESTINATION ${CMAKE_INSTALL_DATADIR}/terrace RENAME grafana-board.json COMPONENT service)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT documents
  FILES_MATCHING PATTERN "*.md" PATTERN "*.png")
install(FILES README.md CHANGELOG.md SECURITY.md NOTICE LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT documents)
