// SPDX-License-Identifier: Apache-2.0
#include "lab/work_program.hpp"

#include <algorithm>
#include <unordered_map>

namespace penstock::engine {
namespace {

// A gap is a wait for the device if it is so many times the median, and so long.
constexpr std::int64_t kWaitTimes = 20;
constexpr std::int64_t kWaitNs = 100'000;
// What a file may declare.  A simulation has books of every page that lives, and does something
// with each page that is touched: so a few bytes must not stand for any number of them.
constexpr Bytes kMostLive = 4 * kTiB;
constexpr Bytes kMostTouched = 16 * 1024 * kTiB;
constexpr std::uint64_t kLatest = std::uint64_t{1} << 58;  // nanoseconds
// What a piece of work counts for beside the bytes that it touches, when a wait is shared out.
constexpr Bytes kPieceBytes = 64 * kKiB;

template <class... Pieces>
Status wrong(std::size_t record, const Pieces&... what) {
  return invalid("record ", record, ": ", what...);
}

class Reader {
 public:
  explicit Reader(std::span<const WorkRecord> records) : records_(records) {}

  Status read(WorkProgram& into) {
    for (std::size_t at = 0; at < records_.size();) {
      const WorkRecord& record = records_[at];
      if (record.op != WorkOp::kTouch) PENSTOCK_TRY(pass_time(at, record));
      switch (record.op) {
        case WorkOp::kAllocate:
          PENSTOCK_TRY(allocate(at, record, into));
          break;
        case WorkOp::kFree:
        case WorkOp::kPin:
        case WorkOp::kUnpin:
          PENSTOCK_TRY(end_or_pin(at, record, into));
          break;
        case WorkOp::kWork:
          PENSTOCK_TRY(work(at, record, into));
          at += record.number;
          break;
        default:
          return wrong(at, "op ", static_cast<int>(record.op), " is unknown");
      }
      ++at;
    }
    return {};
  }

 private:
  Status pass_time(std::size_t at, const WorkRecord& record) {
    if (record.at < last_) return wrong(at, "it is in the past of the one before");
    if (record.at > kLatest) return wrong(at, "it is years after the recording began");
    last_ = record.at;
    return {};
  }

  Status allocate(std::size_t at, const WorkRecord& record, WorkProgram& into) {
    const auto index = static_cast<std::uint32_t>(into.blocks.size());
    if (record.value == 0) return wrong(at, "an allocation of nothing");
    if (!live_.try_emplace(record.number, index).second) {
      return wrong(at, "block ", record.number, " is allocated twice");
    }
    if (record.value > kMostLive - held_) {
      return wrong(at, "more than ", kMostLive / kTiB, " TiB are allocated");
    }
    PENSTOCK_TRY(count_touched(at, record.value));
    into.blocks.push_back({record.value, false});
    touched_.push_back(false);
    into.events.push_back({WorkOp::kAllocate, index});
    held_ += record.value;
    into.peak = std::max(into.peak, held_);
    return {};
  }

  Status end_or_pin(std::size_t at, const WorkRecord& record, WorkProgram& into) {
    const auto found = live_.find(record.number);
    if (found == live_.end()) return unknown(at, record);
    into.events.push_back({record.op, found->second});
    if (record.op != WorkOp::kFree) return {};
    held_ -= into.blocks[found->second].bytes;
    live_.erase(found);
    return {};
  }

  Status work(std::size_t at, const WorkRecord& record, WorkProgram& into) {
    if (record.number > records_.size() - at - 1) return wrong(at, "its touches are missing");
    if (record.kind > WorkKind::kValue) return wrong(at, "work of an unknown kind");
    WorkPiece piece;
    piece.first_touch = static_cast<std::uint32_t>(into.touches.size());
    piece.function = static_cast<std::uint32_t>(record.value);
    piece.stream = static_cast<std::uint32_t>(record.value >> 32);
    piece.kind = record.kind;
    piece.opaque = (record.flags & kWorkOpaque) != 0;
    if (into.pieces.empty()) first_ = record.at;
    piece.at_ns = static_cast<std::int64_t>(record.at - first_);
    if (piece.stream > into.streams) return wrong(at, "streams are numbered as they appear");
    into.streams = std::max(into.streams, piece.stream + 1);
    for (std::size_t i = at + 1; i <= at + record.number; ++i) {
      const WorkRecord& touch = records_[i];
      if (touch.op != WorkOp::kTouch) return wrong(i, "a touch was expected");
      const auto found = live_.find(touch.number);
      if (found == live_.end()) return unknown(i, touch);
      const WorkBlock& block = into.blocks[found->second];
      if (touch.at >= block.bytes) return wrong(i, "it begins behind the end of its block");
      const Bytes most = block.bytes - touch.at;  // a copy may reach over several blocks
      const Bytes bytes = touch.value == 0 ? most : std::min(most, touch.value);
      PENSTOCK_TRY(count_touched(i, bytes));
      into.touches.push_back({found->second, touch.at, bytes, (touch.flags & kTouchWritten) != 0,
                              !touched_[found->second]});
      touched_[found->second] = true;
    }
    piece.touches = static_cast<std::uint32_t>(into.touches.size()) - piece.first_touch;
    into.events.push_back({WorkOp::kWork, static_cast<std::uint32_t>(into.pieces.size())});
    into.pieces.push_back(piece);
    return {};
  }

  Status count_touched(std::size_t at, Bytes bytes) {
    touched_bytes_ += bytes;  // each at most kMostLive: it cannot overflow before it is too much
    if (touched_bytes_ <= kMostTouched) return {};
    return wrong(at, "more than ", kMostTouched / kTiB, " TiB are touched");
  }

  static Status unknown(std::size_t at, const WorkRecord& record) {
    return wrong(at, "there is no block ", record.number);
  }

  std::span<const WorkRecord> records_;
  std::unordered_map<std::uint32_t, std::uint32_t> live_;  // number -> index
  std::vector<bool> touched_;                              // by index
  std::uint64_t last_ = 0;
  std::uint64_t first_ = 0;
  Bytes held_ = 0;
  Bytes touched_bytes_ = 0;
};

// See the top of work_program.hpp.
void tell_durations(WorkProgram& program) {
  std::vector<WorkPiece>& pieces = program.pieces;
  std::vector<std::int64_t> gaps;
  for (std::size_t i = 0; i + 1 < pieces.size(); ++i) {
    gaps.push_back(pieces[i + 1].at_ns - pieces[i].at_ns);
  }
  if (gaps.empty()) return;
  std::vector<std::int64_t> sorted = gaps;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  const std::int64_t median = *middle;
  const std::int64_t longest = std::max(kWaitNs, kWaitTimes * median);
  gaps.push_back(median);  // nothing tells what the last one takes
  const auto weight = [&](const WorkPiece& piece) {
    return static_cast<double>(kPieceBytes + program.bytes_of(piece));
  };
  std::size_t since = 0;  // the first piece after the last wait
  double weights = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    weights += weight(pieces[i]);
    pieces[i].call_ns = pieces[i].device_ns = std::min(gaps[i], longest);
    if (gaps[i] <= longest) continue;
    pieces[i].waits = true;
    pieces[i].call_ns = pieces[i].device_ns = median;
    const auto wait = static_cast<double>(gaps[i] - median);
    for (std::size_t j = since; j <= i; ++j) {
      pieces[j].device_ns += static_cast<std::int64_t>(wait * weight(pieces[j]) / weights);
    }
    since = i + 1;
    weights = 0;
  }
}

}  // namespace

Result<WorkProgram> make_work_program(std::span<const WorkRecord> records, std::uint64_t steps) {
  WorkProgram program;
  PENSTOCK_TRY(Reader(records).read(program));
  if (program.pieces.empty()) return invalid("the recording holds no work");
  tell_durations(program);
  mark_lasting(program);
  PENSTOCK_TRY(find_steps(program, steps));
  measure_steps(program);
  return program;
}

}  // namespace penstock::engine
