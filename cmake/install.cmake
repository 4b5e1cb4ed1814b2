# find_package(aoizora) from another project: the library, the headers of all rooms, the package files.
# Boost is in the library already: nothing of it reaches a header.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/aoizora)
install(TARGETS aoizora EXPORT aoizoraTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
install(DIRECTORY aoizora DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT library
  FILES_MATCHING PATTERN "*.h" REGEX "_impl\\.h$|/test_[^/]*\\.h$" EXCLUDE)
install(EXPORT aoizoraTargets NAMESPACE aoizora:: DESTINATION ${package_dir} COMPONENT library)
configure_package_config_file(cmake/aoizoraConfig.cmake.in aoizoraConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change an interface.
write_basic_package_version_file(aoizoraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/aoizoraConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/aoizoraConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT library)
