# find_package(fleetscope CONFIG REQUIRED), target_link_libraries(mine PRIVATE fleetscope::recorder)
#
# The folder this lies in: python -c "from fleetscope.native import cmake_dir; print(cmake_dir())"
if(NOT TARGET fleetscope::recorder)
  add_library(fleetscope::recorder INTERFACE IMPORTED)
  set_target_properties(fleetscope::recorder PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}/../include"
    INTERFACE_LINK_LIBRARIES "${CMAKE_DL_LIBS}")
endif()
