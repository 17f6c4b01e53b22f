# fleetscope_other_minors(name sources...): the module `name` for the other CPythons of this machine too.
#
# `fleetscope run` carries the profiler into environments of other Pythons. Modules of the C API alone need a Python's
# headers and nothing else, so one build makes all. minors.py prints `suffix;include folder` for each it finds.
execute_process(
  COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/minors.py"
  OUTPUT_VARIABLE FLEETSCOPE_MINORS
  OUTPUT_STRIP_TRAILING_WHITESPACE
  COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n;]+" FLEETSCOPE_MINORS "${FLEETSCOPE_MINORS}")

function(fleetscope_other_minors name)
  set(suffix "")
  foreach(word IN LISTS FLEETSCOPE_MINORS)
    if(suffix STREQUAL "")
      set(suffix "${word}")
      continue()
    endif()
    string(MAKE_C_IDENTIFIER "${name}${suffix}" target)
    add_library(${target} MODULE ${ARGN})
    set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME "${name}" SUFFIX "${suffix}"
      INTERPROCEDURAL_OPTIMIZATION ON)
    target_include_directories(${target} PRIVATE "${word}" "${CMAKE_SOURCE_DIR}/recorder" "${CMAKE_SOURCE_DIR}/recorder/include")
    target_compile_options(${target} PRIVATE -Wno-missing-field-initializers)
    install(TARGETS ${target} LIBRARY DESTINATION fleetscope/native)
    set(suffix "")
  endforeach()
endfunction()
