# The recorded programs are kept compressed; the C++ tests read plain text. Unpacks tests/data into the build folder and sets
# AOIZORA_TEST_DATA to the copy. Python's gzip does it: the library needs no zlib.
find_package(Python3 COMPONENTS Interpreter REQUIRED)
set(AOIZORA_TEST_DATA ${CMAKE_CURRENT_BINARY_DIR}/test_data)
execute_process(
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/unpack_test_data.py ${CMAKE_CURRENT_SOURCE_DIR}/tests/data ${AOIZORA_TEST_DATA}
  COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE packed CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/data/*)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${packed})
