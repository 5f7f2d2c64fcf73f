// SPDX-License-Identifier: Apache-2.0
// The codec and its kernels behind C names, for codec_kernels.py.
#include <algorithm>
#include <cstring>

#include "codec/bf16.hpp"

namespace decoding {
#include "driver/kernels/decode.cu"
}
namespace encoding {
#include "driver/kernels/encode.cu"
}

using penstock::codec::Counts;
using penstock::codec::Survey;
using Stream = cudaStream_t;

namespace {

template <class T>
T* at(void* code, std::size_t offset) {
  return reinterpret_cast<T*>(static_cast<unsigned char*>(code) + offset);
}

}  // namespace

extern "C" {

void host_counts(const std::byte* raw, std::size_t bytes, Counts* counts) {
  *counts = penstock::codec::counts_of({raw, bytes});
}

// The bytes that a code takes; places have `width` bits, or as many as are best.
std::size_t host_survey(const Counts* counts, std::size_t bytes, unsigned width, Survey* survey) {
  *survey = penstock::codec::survey(bytes, *counts, width);
  return survey->shape.size();
}

void host_encode(const Survey* survey, const std::byte* raw, std::size_t bytes, std::byte* code) {
  penstock::codec::encode(*survey, {raw, bytes}, {code, survey->shape.size()});
}

int host_seal(const Survey* survey, const std::byte* raw, std::size_t bytes, std::byte* code) {
  return penstock::codec::seal({code, survey->shape.size()}, {raw, bytes}).ok() ? 1 : 0;
}

void launch_survey(void* counts, void* raw, std::size_t bytes, int blocks, Stream stream) {
  encoding::penstock_survey<<<blocks, 256, 0, stream>>>(
      static_cast<unsigned*>(counts), static_cast<unsigned short*>(raw), bytes / 2);
}

void launch_encode(const Survey* survey, void* code, void* raw, Stream stream) {
  const auto& shape = survey->shape;
  const auto tiles = static_cast<unsigned>(shape.tiles());
  auto* const from = static_cast<unsigned short*>(raw);
  auto* const starts = at<unsigned>(code, shape.starts_at());
  const auto header = survey->header();
  encoding::Header words;
  static_assert(sizeof(words) == sizeof(header));
  memcpy(&words, &header, sizeof(words));
  cudaMemsetAsync(code, 0, shape.size(), stream);
  encoding::penstock_encode<<<tiles, 256, 0, stream>>>(
      static_cast<unsigned char*>(code), from, shape.values(), at<unsigned>(code, shape.pairs_at()),
      at<unsigned>(code, shape.planes_at()), starts, words);
  encoding::penstock_starts<<<1, 256, 0, stream>>>(starts, tiles);
  encoding::penstock_escapes<<<tiles, 256, 0, stream>>>(
      from, shape.values(), starts, at<unsigned short>(code, shape.positions_at()),
      at<unsigned char>(code, shape.others_at()), words);
}

void launch_decode(const Survey* survey, void* raw, void* code, int blocks, int threads,
                   Stream stream) {
  const auto& shape = survey->shape;
  const auto groups = static_cast<unsigned>(threads) / 256;
  const auto most = (static_cast<unsigned>(shape.tiles()) + groups - 1) / groups;
  const auto grid = std::min(static_cast<unsigned>(blocks), most);
  decoding::penstock_decode<<<grid, threads, 0, stream>>>(
      static_cast<unsigned short*>(raw), static_cast<unsigned char*>(code), shape.values(),
      at<unsigned>(code, shape.pairs_at()), at<unsigned>(code, shape.planes_at()),
      at<unsigned>(code, shape.starts_at()), at<unsigned short>(code, shape.positions_at()),
      at<unsigned char>(code, shape.others_at()), shape.escapes, shape.width == 4);
}

}  // extern "C"
