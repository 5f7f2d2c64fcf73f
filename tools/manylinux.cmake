# SPDX-License-Identifier: Apache-2.0
# The toolchain of the wheel: zig's clang (`pip install ziglang`), which links against the symbols
# of any glibc that it is told, whatever the machine has.  2.28 is that of manylinux_2_28: RHEL 8,
# Debian 10, Ubuntu 20.04.  The C++ library and its unwinder are linked statically.
find_program(PENSTOCK_PYTHON NAMES python3 python REQUIRED)
execute_process(
  COMMAND ${PENSTOCK_PYTHON} -c "import ziglang, pathlib; print(pathlib.Path(ziglang.__file__).parent)"
  OUTPUT_VARIABLE zig OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
set(CMAKE_C_COMPILER ${zig}/zig cc -target ${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu.2.28)
set(CMAKE_CXX_COMPILER ${zig}/zig c++ -target ${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu.2.28)
