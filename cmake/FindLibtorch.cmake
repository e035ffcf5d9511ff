# Defines Libtorch::torch_cpu from the libtorch in LIBTORCH_DIR (a folder with include/ and lib/).
# TorchConfig.cmake is not used: in a CUDA wheel it asks for nvcc even to compile CPU code.
set(Libtorch_INCLUDE_DIR "${LIBTORCH_DIR}/include")
set(Libtorch_LIBRARY_DIR "${LIBTORCH_DIR}/lib")
foreach(file include/ATen/ATen.h lib/libtorch_cpu.so lib/libc10.so)
  if(NOT EXISTS "${LIBTORCH_DIR}/${file}")
    message(FATAL_ERROR "LIBTORCH_DIR='${LIBTORCH_DIR}' has no ${file}; run make, or pass -DLIBTORCH_DIR=...")
  endif()
endforeach()
set(Libtorch_FOUND TRUE)

# at::parallel_for is serial unless the includer has OpenMP on, and two OpenMP runtimes in one
# process fight over the cores: link the very libgomp that libtorch brings, not the compiler's.
file(GLOB Libtorch_gomp "${Libtorch_LIBRARY_DIR}/libgomp*.so*")
if(NOT Libtorch_gomp)
  set(Libtorch_gomp gomp)
endif()

# libtorch_cpu finds its own needs (libcudart, libcupti) by its own RPATH when it is loaded.
add_library(Libtorch::torch_cpu INTERFACE IMPORTED)
set_target_properties(Libtorch::torch_cpu PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${Libtorch_INCLUDE_DIR}"
  INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${Libtorch_INCLUDE_DIR}"
  INTERFACE_COMPILE_DEFINITIONS "_GLIBCXX_USE_CXX11_ABI=1"
  INTERFACE_COMPILE_OPTIONS "-fopenmp"
  INTERFACE_LINK_LIBRARIES
    "${Libtorch_LIBRARY_DIR}/libtorch_cpu.so;${Libtorch_LIBRARY_DIR}/libc10.so;${Libtorch_gomp}"
  INTERFACE_LINK_OPTIONS "LINKER:--allow-shlib-undefined")
