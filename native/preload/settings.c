/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/settings.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void penstock_say(const char* format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  fprintf(stderr, "penstock: %s\n", line);
}

static const struct {
  const char* name;
  double bytes;
} kUnits[] = {{"", 1},          {"b", 1},
              {"kb", 1e3},      {"mb", 1e6},
              {"gb", 1e9},      {"tb", 1e12},
              {"kib", 1 << 10}, {"mib", 1 << 20},
              {"gib", 1 << 30}, {"tib", 1024.0 * (1 << 30)}};

uint64_t penstock_parse_size(const char* text, double* share) {
  *share = 0;
  /* By hand: strtod() would take "inf", "0x8" and signs, and another decimal point elsewhere. */
  const char* at = text + strspn(text, " ");
  const char* const first = at;
  double value = 0;
  for (; isdigit((unsigned char)*at); ++at) value = value * 10 + (*at - '0');
  if (*at == '.') {
    ++at;
    for (double place = 0.1; isdigit((unsigned char)*at); ++at, place /= 10) {
      value += place * (*at - '0');
    }
  }
  if (at == first || !(value > 0)) return 0;
  at += strspn(at, " ");
  char unit[8];
  size_t length = strlen(at);
  while (length > 0 && at[length - 1] == ' ') --length;
  if (length >= sizeof(unit)) return 0;
  memcpy(unit, at, length);
  unit[length] = '\0';
  if (strcmp(unit, "%") == 0) {
    if (value <= 100) *share = value / 100;
    return 0;
  }
  for (size_t i = 0; i < sizeof(kUnits) / sizeof(kUnits[0]); ++i) {
    if (strcasecmp(unit, kUnits[i].name) != 0) continue;
    const double bytes = value * kUnits[i].bytes;
    return bytes >= 1 && bytes < 9.2e18 ? (uint64_t)bytes : 0;
  }
  return 0;
}

/* The variable's text, or NULL where it is not set or empty. */
static const char* variable(const char* name) {
  const char* const text = getenv(name);
  return text != NULL && *text != '\0' ? text : NULL;
}

static int choose(const char* name, const char* const* words, int count, int otherwise) {
  const char* const text = variable(name);
  if (text == NULL) return otherwise;
  for (int i = 0; i < count; ++i) {
    if (strcasecmp(text, words[i]) == 0) return i;
  }
  penstock_say("%s=%s is not understood and has no effect; try: %s", name, text, words[0]);
  return otherwise;
}

static int wanted(const char* name) {
  const char* const text = variable(name);
  return text != NULL && strcasecmp(text, "0") != 0 && strcasecmp(text, "false") != 0 &&
         strcasecmp(text, "no") != 0 && strcasecmp(text, "off") != 0;
}

static void read_budget(penstock_interpose_options* options) {
  const char* const own = variable("PENSTOCK_GPU_MEMORY");
  const char* const factor = variable("ULMS_GPU_MEMORY_FACTOR");
  if (own != NULL && strcasecmp(own, "auto") != 0) {
    options->gpu_memory = penstock_parse_size(own, &options->gpu_share);
    if (options->gpu_memory == 0 && options->gpu_share == 0) {
      penstock_say("PENSTOCK_GPU_MEMORY=%s is not a size and has no effect; try: 8GiB, or 80%%",
                   own);
    }
  } else if (own == NULL && factor != NULL) {
    /* A bare number of percent. */
    double share = 0;
    const uint64_t percent = penstock_parse_size(factor, &share);
    options->gpu_share = percent != 0 && percent <= 100 ? (double)percent / 100 : share;
    if (options->gpu_share == 0) {
      penstock_say("ULMS_GPU_MEMORY_FACTOR=%s has no effect; try: a percentage up to 100", factor);
    }
  }
}

void penstock_read_settings(penstock_interpose_options* options) {
  static const char* const kSafety[] = {"normal", "strict", "fast"};
  static const char* const kLevels[] = {"error", "warning", "info", "debug"};
  static const char* const kPumpLevels[] = {"error", "warn", "info", "debug"};
  memset(options, 0, sizeof(*options));
  options->struct_size = sizeof(*options);
  read_budget(options);
  options->safety = choose("PENSTOCK_SAFETY", kSafety, 3, PENSTOCK_SAFETY_NORMAL);
  const int pump = choose("ULMS_LOG_LEVEL", kPumpLevels, 4, PENSTOCK_LOG_WARNING);
  options->log_level = choose("PENSTOCK_LOG_LEVEL", kLevels, 4, pump);
  options->record = variable("PENSTOCK_RECORD");
}

int penstock_summary_wanted(void) { return wanted("PENSTOCK_SUMMARY"); }
