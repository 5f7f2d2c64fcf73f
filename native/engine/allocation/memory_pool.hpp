// SPDX-License-Identifier: Apache-2.0
// The chunks of one pool, the range in which they lie in order, and the stitched ranges over them:
// carries out what the packer decides.  A step that fails leaves no trace.  The caller locks, and
// sees to it that nothing uses what is unmapped.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "driver/driver.hpp"
#include "policy/packing/packer.hpp"

namespace penstock::engine {

class MemoryPool {
 public:
  // A line of so many slots; no memory yet.
  static Result<std::unique_ptr<MemoryPool>> create(driver::Driver& driver,
                                                    const policy::packing::Options& options,
                                                    std::uint64_t slots);
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  [[nodiscard]] policy::packing::Packer& packer() { return packer_; }
  [[nodiscard]] const policy::packing::Packer& packer() const { return packer_; }
  [[nodiscard]] Addr base() const { return base_; }
  [[nodiscard]] Addr address_of(policy::packing::BlockId block) const;
  [[nodiscard]] Addr range_address(policy::packing::RangeId range) const { return ranges_[range]; }
  [[nodiscard]] std::int64_t chunks() const { return chunks_; }
  [[nodiscard]] std::int64_t driver_calls() const { return driver_calls_; }

  Status grow(const policy::packing::Decision& decision, policy::packing::StreamTag tag);
  Result<policy::packing::RangeId> stitch(std::vector<policy::packing::Piece> pieces);
  Status drop_range(policy::packing::RangeId range);
  // Give back the free chunks, and before that the idle stitched ranges that map them.  What is in
  // `trimmed` has gone, whatever the status.
  struct Span {
    Addr address = 0;
    Bytes bytes = 0;
  };
  struct Trimmed {
    std::vector<Span> ranges;
    std::vector<Span> runs;  // of chunks that lay side by side
  };
  Status trim(Trimmed& trimmed);

 private:
  MemoryPool(driver::Driver& driver, const policy::packing::Options& options, std::uint64_t slots)
      : driver_(driver), options_(options), packer_(options, slots), handles_(slots) {}
  [[nodiscard]] Bytes slot_bytes() const { return options_.smallest_chunk; }
  Status map_chunks(Addr address, const std::vector<policy::packing::Piece>& chunks);

  driver::Driver& driver_;
  policy::packing::Options options_;
  policy::packing::Packer packer_;
  Addr base_ = 0;
  std::vector<driver::Chunk> handles_;  // by the first slot of each
  std::vector<Addr> ranges_;            // by RangeId
  std::int64_t chunks_ = 0;
  std::int64_t driver_calls_ = 0;
};

}  // namespace penstock::engine
