/* SPDX-License-Identifier: Apache-2.0
 *
 * dlopen(), so that every name of the driver leads here.  "libcuda.so.1" does by itself, since that
 * is this library's SONAME; "libcuda.so" and absolute paths would lead to the file behind it.
 *
 * glibc looks at its caller to tell which search path and namespace hold, so that everything else
 * must reach the real dlopen() by a jump, with the caller's return address in place: the entry
 * below is assembly for that reason.
 *
 * Thread rule: any thread.  It takes effect where this library is preloaded.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#include "preload/engine.h"

/* "libcuda.so", with or without a version. */
static bool is_driver_name(const char* name) {
  static const char kStem[] = "libcuda.so";
  if (strncmp(name, kStem, sizeof(kStem) - 1) != 0) return false;
  const char* const rest = name + sizeof(kStem) - 1;
  return *rest == '\0' || (*rest == '.' && strspn(rest, ".0123456789") == strlen(rest));
}

/* Whether the file at `path` is the driver behind this library: another one is none of ours. */
static bool is_driver_file(const char* path) {
  struct link_map* map = NULL;
  struct stat wanted;
  struct stat real;
  void* const library = penstock_real_library();
  return library != NULL && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != NULL &&
         stat(map->l_name, &real) == 0 && stat(path, &wanted) == 0 &&
         real.st_dev == wanted.st_dev && real.st_ino == wanted.st_ino;
}

/* Puts another name in the place of `*name` if need be; returns the real function. */
__attribute__((used, visibility("hidden"))) void* penstock_before_open(const char** name) {
  static _Atomic(void*) real;
  void* found = atomic_load_explicit(&real, memory_order_relaxed);
  if (found == NULL) {
    found = dlsym(RTLD_NEXT, "dlopen");
    atomic_store_explicit(&real, found, memory_order_relaxed);
  }
  if (*name == NULL) return found;
  const char* const slash = strrchr(*name, '/');
  const char* const file = slash == NULL ? *name : slash + 1;
  if (!is_driver_name(file)) return found;
  const char* const own = penstock_own_path();
  if (own != NULL && (slash == NULL || is_driver_file(*name))) *name = own;
  return found;
}

#if defined(__x86_64__)
__asm__(
    ".text\n"
    ".globl dlopen\n"
    ".type dlopen, @function\n"
    "dlopen:\n"
    "  .cfi_startproc\n"
    "  endbr64\n"
    "  pushq %rsi\n"
    "  .cfi_adjust_cfa_offset 8\n"
    "  pushq %rdi\n"
    "  .cfi_adjust_cfa_offset 8\n"
    "  movq %rsp, %rdi\n"
    "  subq $8, %rsp\n"
    "  .cfi_adjust_cfa_offset 8\n"
    "  call penstock_before_open\n"
    "  addq $8, %rsp\n"
    "  .cfi_adjust_cfa_offset -8\n"
    "  popq %rdi\n"
    "  .cfi_adjust_cfa_offset -8\n"
    "  popq %rsi\n"
    "  .cfi_adjust_cfa_offset -8\n"
    "  jmp *%rax\n"
    "  .cfi_endproc\n"
    ".size dlopen, .-dlopen\n");
#else
#error "dlopen() has no entry for this processor"
#endif
