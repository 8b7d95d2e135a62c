// Sampling, emulated, against a full sort in double: every filter, edits, masks, pending tokens, over one slice of a row and over several.
// And rows from which nothing is cut off, where tokens are passed over by bounds, against the same arithmetic for every token, to the bit.
#include "emulation.h"

#include <map>

#include "../portable/sample.cu"

// The launcher's stand-in never fails.
extern "C" cudaError_t cudaGetLastError() { return cudaSuccess; }

namespace {

struct Draw {
  GossamerSampleRow row;
  std::vector<GossamerLogitEdit> edits;
  std::vector<uint32_t> mask;
  uint32_t pending;
  uint32_t place;  // where it lies, and where the drawn token is kept
};

// What a row's logits become before anything is cut off; minus infinity: not to be drawn.
std::vector<double> scores_of(const GossamerSampleDesc& d, const Draw& draw, const std::vector<float>& logits) {
  std::vector<double> scores(logits.begin(), logits.end());
  const bool pending = draw.row.pending != 0;
  bool found = false;
  const auto change = [&](uint32_t token, float repetition, float add) {
    const uint32_t column = token - d.vocab_offset;
    if (column < d.vocab) scores[column] = (scores[column] > 0 ? scores[column] / repetition : scores[column] * repetition) + add;
  };
  for (const auto& edit : draw.edits) {
    const bool last = pending && edit.token == draw.pending;
    found |= last;
    change(edit.token, last ? draw.row.pending_repetition : edit.repetition, last ? edit.pending_add : edit.add);
  }
  if (pending && !found) change(draw.pending, draw.row.pending_repetition, draw.row.pending_add);
  for (uint32_t i = 0; i < d.vocab; ++i)
    if (std::isnan(scores[i]) || (draw.row.masked && !(draw.mask[i / 32] >> (i % 32) & 1))) scores[i] = -INFINITY;
  return scores;
}

double noise(const GossamerSampleRow& r, uint32_t token) {
  const uint4 words = gossamer::portable::philox(r.seed, token / 4, r.position, r.choice);
  const uint32_t word = gossamer::portable::word_of(words, token % 4);
  return -std::log(-std::log((word / 256 + .5) * std::ldexp(1., -24)));
}

constexpr double kClose = 1e-4;  // borders and winners that are closer may go either way
constexpr uint32_t kEither = ~0u;

uint32_t expected(const GossamerSampleDesc& d, const Draw& draw, std::vector<double> scores) {
  const GossamerSampleRow& r = draw.row;
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < d.vocab; ++i)
    if (scores[i] > -INFINITY) order.push_back(i);
  if (order.empty()) return GOSSAMER_NO_TOKEN;
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  if (r.temperature == 0) return order.size() > 1 && scores[order[0]] - scores[order[1]] < kClose && scores[order[0]] != scores[order[1]] ? kEither : d.vocab_offset + order[0];
  for (double& score : scores) score /= r.temperature;
  const auto cut = [&](size_t keep) {
    if (keep >= order.size()) return true;
    const double gap = scores[order[keep - 1]] - scores[order[keep]];
    order.resize(keep);
    return gap > kClose || gap == 0;  // equal ones: the lower ids stay
  };
  if (r.top_k && r.top_k < d.vocab && !cut(r.top_k)) return kEither;
  if (r.top_p < 1) {
    double total = 0, sum = 0;
    for (uint32_t i : order) total += std::exp(scores[i] - scores[order[0]]);
    size_t keep = 0;
    while (keep < order.size() && sum < r.top_p * total) {
      sum += std::exp(scores[order[keep++]] - scores[order[0]]);
      if (std::abs(sum - r.top_p * total) < kClose * total) return kEither;
    }
    // All that are as large as the last one stay.
    while (keep < order.size() && scores[order[keep]] == scores[order[keep - 1]]) ++keep;
    if (!cut(keep)) return kEither;
  }
  if (r.min_p > 0) {
    const double least = scores[order[0]] + std::log(static_cast<double>(r.min_p));
    for (uint32_t i : order)
      if (std::abs(scores[i] - least) < kClose) return kEither;
    order.erase(std::remove_if(order.begin(), order.end(), [&](uint32_t i) { return scores[i] < least; }), order.end());
  }
  double best = -INFINITY, second = -INFINITY;
  uint32_t winner = 0;
  for (uint32_t i : order) {
    const double score = scores[i] + noise(r, d.vocab_offset + i);
    if (score > best) second = best, best = score, winner = i;
    else second = std::max(second, score);
  }
  return best - second < kClose ? kEither : d.vocab_offset + winner;
}

// Aligned as a device's memory is.
struct Aligned {
  std::vector<float> room;
  float* at;
  explicit Aligned(const std::vector<float>& from) : room(from.size() + 4), at(reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(room.data()) + 15) / 16 * 16)) {
    std::copy(from.begin(), from.end(), at);
  }
};
template <class T>
uint64_t address(const std::vector<T>& v) {
  return reinterpret_cast<uint64_t>(v.data());
}

bool check(const GossamerSampleDesc& d, uint32_t rows, float spread, uint32_t seed) {
  std::mt19937 generator(seed);
  const auto rng = [&] { return static_cast<uint32_t>(generator()); };
  std::normal_distribution<float> gaussian(0, spread);
  const auto normal = [&] { return gaussian(generator); };
  const auto chance = [&](int of) { return rng() % of == 0; };
  std::vector<float> logits(static_cast<size_t>(rows) * d.vocab);
  std::vector<Draw> draws(rows);
  for (uint32_t row = 0; row < rows; ++row) {
    float* const x = &logits[static_cast<size_t>(row) * d.vocab];
    for (uint32_t i = 0; i < d.vocab; ++i) x[i] = chance(40) ? static_cast<float>(static_cast<int>(normal())) : normal();  // some are equal
    if (row % 7 == 3) std::fill(x, x + d.vocab, row % 2 ? NAN : -INFINITY);
    if (row % 7 == 4)
      for (uint32_t i = 0; i < d.vocab; i += 2) x[i] = NAN;
    Draw& draw = draws[row];
    const float temperatures[] = {0.f, 1.f, .7f, 2.f}, top_p[] = {1.f, .9f, .5f, .999f}, min_p[] = {0.f, 0.f, .1f};
    const uint32_t top_k[] = {0, 0, 1, 5, 300};
    draw.row = {rng() | static_cast<uint64_t>(rng()) << 32, rng() % 1000, rng() % 3, temperatures[rng() % 4], top_p[rng() % 4], min_p[rng() % 3], top_k[rng() % 5], 0, 0, ~0u, chance(4), 0, 0, 1.f, 0.f};
    std::map<uint32_t, GossamerLogitEdit> edits;
    for (int i = 0; i < 6 && row % 3; ++i) {
      const uint32_t token = d.vocab_offset + rng() % (d.vocab + 20) - 10;  // some are of other shards
      edits[token] = {token, chance(2) ? 1.f : 1.5f, chance(9) ? -INFINITY : normal(), normal()};
    }
    for (const auto& [token, edit] : edits) draw.edits.push_back(edit);
    if (chance(2)) {
      draw.pending = chance(2) && !draw.edits.empty() ? draw.edits[rng() % draw.edits.size()].token : d.vocab_offset + rng() % (d.vocab + 10) - 5;
      if (chance(3)) draw.pending = d.vocab_offset + static_cast<uint32_t>(std::max_element(x, x + d.vocab) - x);
      draw.place = draw.pending;
      draw.row.pending = reinterpret_cast<uint64_t>(&draw.place), draw.row.pending_repetition = 1.3f, draw.row.pending_add = -2.f;
    }
    if (chance(2)) draw.row.kept = reinterpret_cast<uint64_t>(&draw.place);
    draw.mask.assign((d.vocab + 31) / 32, row % 7 == 5 ? 0u : rng());
  }
  std::vector<GossamerSampleRow> records;
  std::vector<GossamerLogitEdit> edits;
  std::vector<uint32_t> masks, tokens(rows, 0x12345678), top_ids(rows * d.max_logprobs);
  std::vector<float> logprobs(rows), top_logprobs(rows * d.max_logprobs);
  for (Draw& draw : draws) {
    draw.row.first_edit = static_cast<uint32_t>(edits.size()), draw.row.edits = static_cast<uint32_t>(draw.edits.size());
    edits.insert(edits.end(), draw.edits.begin(), draw.edits.end());
    masks.insert(masks.end(), draw.mask.begin(), draw.mask.end());
    records.push_back(draw.row);
  }
  const Aligned copy(logits);
  const GossamerSampleArgs a = {reinterpret_cast<uint64_t>(copy.at), address(records), address(edits), address(masks), address(tokens), address(logprobs), address(top_ids), address(top_logprobs), rows};
  std::vector<uint8_t> workspace(gossamer_portable_sample_workspace(rows));
  bool ok = gossamer_portable_sample(&d, &a, workspace.data(), 0) == GOSSAMER_OK;
  uint32_t close = 0;
  for (uint32_t row = 0; row < rows; ++row) {
    const std::vector<float> own(&logits[static_cast<size_t>(row) * d.vocab], &logits[static_cast<size_t>(row) * d.vocab] + d.vocab);
    const uint32_t wanted = expected(d, draws[row], scores_of(d, draws[row], own));
    close += wanted == kEither;
    if (draws[row].row.kept && draws[row].place != tokens[row]) {
      std::printf("     row %u: drew token %u and kept %u\n", row, tokens[row], draws[row].place);
      ok = false;
    }
    if (wanted == kEither || wanted == tokens[row]) continue;
    const GossamerSampleRow& r = draws[row].row;
    std::printf("     row %u: expected token %u, got %u (temperature %g, top-k %u, top-p %g, min-p %g, %u edits%s%s)\n", row, wanted, tokens[row], r.temperature, r.top_k, r.top_p, r.min_p, r.edits,
                r.masked ? ", mask" : "", r.pending ? ", pending" : "");
    ok = false;
  }
  ok &= 2 * close < std::max(rows, 9u) && std::all_of(workspace.begin(), workspace.begin() + 4096, [](uint8_t b) { return b == 0; });
  std::printf("%s %u rows of %u logits from %u on, spread %g: %u too close to tell\n", ok ? "ok  " : "FAIL", rows, d.vocab, d.vocab_offset, spread, close);
  std::fflush(stdout);
  return ok;
}

enum Kind { kNormal, kEqual, kHalfForbidden, kOneLeft, kInfinite, kMasked, kEdited };
const char* const kKindNames[] = {"normal", "equal", "half minus infinity", "one left", "infinite", "masked", "edited"};

bool check_whole(const GossamerSampleDesc& d, uint32_t rows, Kind kind, float spread, uint32_t seed) {
  std::mt19937 generator(seed);
  const auto rng = [&] { return static_cast<uint32_t>(generator()); };
  std::normal_distribution<float> gaussian(0, spread);
  std::vector<float> logits(static_cast<size_t>(rows) * d.vocab), logprobs(rows), top_logprobs(rows);
  std::vector<uint32_t> masks(static_cast<size_t>(rows) * ((d.vocab + 31) / 32)), tokens(rows), top_ids(rows);
  std::vector<GossamerSampleRow> records(rows);
  std::vector<GossamerLogitEdit> edits;
  for (uint32_t& word : masks) word = rng();
  for (uint32_t row = 0; row < rows; ++row) {
    float* const x = &logits[static_cast<size_t>(row) * d.vocab];
    for (uint32_t i = 0; i < d.vocab; ++i) x[i] = kind == kEqual ? spread : (kind == kHalfForbidden && rng() % 2) || kind == kOneLeft ? -INFINITY : gaussian(generator);
    if (kind == kOneLeft) x[rng() % d.vocab] = -spread;
    if (kind == kInfinite) x[rng() % d.vocab] = x[rng() % d.vocab] = INFINITY;
    const uint32_t first_edit = static_cast<uint32_t>(edits.size()), count = kind == kEdited ? 3 : 0;
    // One of the edits makes a likely token; they are of tokens apart from each other.
    for (uint32_t i = 0; i < count; ++i) edits.push_back({d.vocab_offset + (rng() % (d.vocab / count)) + i * (d.vocab / count), 1.f, i ? -INFINITY : 4 * spread, 0.f});
    records[row] = {rng() | static_cast<uint64_t>(rng()) << 32, rng() % 1000, rng() % 3, row % 2 ? .7f : 1.f, 1.f, 0.f, 0, first_edit, count, ~0u, kind == kMasked, 0, 0, 1.f, 0.f};
  }
  const Aligned copy(logits);
  const GossamerSampleArgs a = {reinterpret_cast<uint64_t>(copy.at), address(records), address(edits), address(masks), address(tokens), address(logprobs), address(top_ids), address(top_logprobs), rows};
  std::vector<uint8_t> workspace(gossamer_portable_sample_workspace(rows));
  bool ok = gossamer_portable_sample(&d, &a, workspace.data(), 0) == GOSSAMER_OK;
  for (uint32_t row = 0; row < rows; ++row) {
    const GossamerSampleRow& r = records[row];
    float* const x = &logits[static_cast<size_t>(row) * d.vocab];
    for (uint32_t i = r.first_edit; i < r.first_edit + r.edits; ++i) x[edits[i].token - d.vocab_offset] += edits[i].add;
    uint32_t wanted = GOSSAMER_NO_TOKEN;
    float best = -INFINITY;
    for (uint32_t i = 0; i < d.vocab; ++i) {
      const float v = x[i] * (1.f / r.temperature);
      if (r.masked && !(masks[row * ((d.vocab + 31) / 32) + i / 32] >> (i % 32) & 1)) continue;
      if (!(v > -INFINITY)) continue;
      const float score = v + gossamer::portable::gumbel(r.seed, d.vocab_offset + i, r.position, r.choice);
      if (score > best) best = score, wanted = d.vocab_offset + i;
    }
    if (tokens[row] == wanted) continue;
    std::printf("     row %u of %u: expected token %u, got %u\n", row, rows, wanted, tokens[row]);
    ok = false;
  }
  ok &= std::all_of(workspace.begin(), workspace.begin() + 4096, [](uint8_t b) { return b == 0; });
  if (!ok) std::printf("FAIL %u rows of %u logits, %s, spread %g\n", rows, d.vocab, kKindNames[kind], spread);
  return ok;
}

// The bounds by which tokens are passed over, with the noise between them: over all words that differ in what is used of them.
bool check_bounds() {
  using namespace gossamer::portable;
  bool ok = true;
  for (uint32_t n = 0; n < 1u << 24; n += n < 4096 || n > (1u << 24) - 4096 ? 1 : 61) {
    const uint32_t word = n << 8 | (n & 255);
    const float noise = gumbel(word), most = most_of(0.f, word), least = least_of(0.f, word);
    if (noise <= most + 1e-5f && noise >= least - 1e-5f && noise <= kMostNoise) continue;
    ok = false;
    std::printf("     word %08x: noise %g, bounds %g and %g\n", word, noise, least, most);
  }
  std::printf("%s bounds of noise\n", ok ? "ok  " : "FAIL");
  return ok;
}

}  // namespace

int main() {
  const uint32_t seed = emulation::new_seed();
  bool ok = true;
  for (float spread : {.1f, 2.f, 12.f}) {
    ok &= check({1003, 0, GOSSAMER_F32, 5}, 14, spread, seed);
    ok &= check({5000, 20108, GOSSAMER_F32, 5}, 14, spread, seed + 1);
    ok &= check({301, 603, GOSSAMER_F32, 5}, 14, spread, seed + 2);
    for (uint32_t rows : {1u, 2u, 3u, 4u}) ok &= check({5000, 20108, GOSSAMER_F32, 5}, rows, spread, seed + 2 + rows);
  }
  ok &= check_bounds();
  // Few rows, whose blocks are others; of the largest, threads take several turns.
  uint32_t cases = 0;
  bool whole = true;
  const auto whole_of = [&](uint32_t vocab, uint32_t rows, Kind kind, float spread) {
    whole &= check_whole({vocab, 4 * (cases % 3), GOSSAMER_F32, 1}, rows, kind, spread, seed + 3 + cases);
    ++cases;
  };
  for (uint32_t rows : {1u, 2u, 5u}) {
    for (float spread : {.1f, 1.f, 3.f, 6.f, 30.f}) whole_of(12000, rows, kNormal, spread);
    for (Kind kind : {kEqual, kHalfForbidden, kOneLeft, kInfinite, kMasked, kEdited})
      for (float spread : {1.f, 8.f}) whole_of(12000, rows, kind, spread);
    whole_of(4001, rows, kNormal, 3.f);
  }
  for (float spread : {1.f, 6.f}) whole_of(300000, 2, kNormal, spread);
  std::printf("%s %u draws from whole rows\n", whole ? "ok  " : "FAIL", cases);
  ok &= whole;
  return emulation::verdict(ok);
}
