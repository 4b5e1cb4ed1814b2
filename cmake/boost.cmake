# Boost.JSON and Boost.Test, header only. The headers come from the system (1.75 or later) or from the Python
# package boost-headers, which `make plan` puts into .venv and pip beside its build.
find_path(AOIZORA_BOOST_INCLUDE boost/json/src.hpp)
if(NOT AOIZORA_BOOST_INCLUDE)
  find_package(Python3 COMPONENTS Interpreter QUIET)
  if(Python3_Interpreter_FOUND)
    execute_process(
      COMMAND ${Python3_EXECUTABLE} -c "import boost_headers, pathlib; print(pathlib.Path(boost_headers.__file__).parent / 'include')"
      OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(found)
      set(AOIZORA_BOOST_INCLUDE ${found} CACHE PATH "Folder that holds boost/json/src.hpp" FORCE)
    endif()
  endif()
endif()
if(NOT AOIZORA_BOOST_INCLUDE)
  set(found "none was found")
  find_path(older boost/version.hpp NO_CACHE)
  if(older)
    file(STRINGS ${older}/boost/version.hpp version REGEX "define BOOST_LIB_VERSION")
    string(REGEX MATCH "[0-9][0-9_]*" version "${version}")
    string(REPLACE "_" "." version "${version}")
    set(found "${older} has ${version}")
  endif()
  message(FATAL_ERROR "Boost headers 1.75 or later with Boost.JSON are needed; ${found}. Activate .venv, where make plan puts "
    "them, or name their folder: -DAOIZORA_BOOST_INCLUDE=FOLDER, the one that holds boost/json/src.hpp")
endif()
add_library(aoizora_boost INTERFACE)
target_include_directories(aoizora_boost SYSTEM INTERFACE ${AOIZORA_BOOST_INCLUDE})
