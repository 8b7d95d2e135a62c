//! Sampling against a full sort in float64, and against itself with every token known beforehand.

use super::{Bench, Memory, Outcome, Random, round};
use crate::ops::{LogitEdit, SampleArgs, SampleDesc, SampleRow};
use crate::{DType, OpArgs, OpDesc, OpKind, Support};

/// Scores closer than this may be drawn either way.
const CLOSE: f64 = 1e-4;

/// Sizes and options of a sampling case.
#[derive(Clone, Debug)]
pub struct SampleShape {
    /// The description.
    pub desc: SampleDesc,
    /// Rows; temperatures, filters, edits and masks differ by row.
    pub rows: u32,
    /// Standard deviation of the logits.
    pub spread: f64,
}

impl SampleShape {
    /// Small and large vocabularies, shards, flat and peaked logits.
    pub fn awkward() -> Vec<Self> {
        let desc = |vocab, vocab_offset, logits| SampleDesc { vocab, vocab_offset, logits, max_logprobs: 5 };
        let mut shapes = Vec::new();
        for spread in [0.1, 2.0, 12.0] {
            shapes.push(Self { desc: desc(1003, 0, DType::F32), rows: 40, spread });
            shapes.push(Self { desc: desc(201, 603, DType::BF16), rows: 40, spread });
            shapes.push(Self { desc: desc(20108, 20110, DType::F32), rows: 20, spread });
        }
        // Enough for blocks of a device to have several turns each, and as flat as random weights make them.
        shapes.push(Self { desc: desc(201_088, 0, DType::F32), rows: 24, spread: 1.0 });
        shapes
    }
}

/// Philox4x32-10 (Salmon et al. 2011), straight from the paper.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let first = u64::from(counter[0]) * 0xD251_1F53;
        let second = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key[0] = key[0].wrapping_add(0x9E37_79B9);
        key[1] = key[1].wrapping_add(0xBB67_AE85);
    }
    counter
}

fn words(row: &SampleRow, group: u32) -> [u32; 4] {
    philox([group, row.position, row.choice, 0], [row.seed as u32, (row.seed >> 32) as u32])
}

fn noise(row: &SampleRow, token: u32) -> f64 {
    let word = words(row, token / 4)[token as usize % 4];
    let u = (f64::from(word >> 8) + 0.5) * 2f64.powi(-24);
    -(-u.ln()).ln()
}

/// Finds a seed that gives some token the largest noise there is, where a float's `u` would be 1. Returns the token's column.
fn seed_of_largest_noise(row: &mut SampleRow, desc: &SampleDesc) -> usize {
    loop {
        for column in 0..desc.vocab {
            let token = desc.vocab_offset + column;
            if token.is_multiple_of(4) || column == 0 {
                let four = words(row, token / 4);
                let end = (desc.vocab - column).min(4 - token % 4);
                let largest = (0..end).find(|j| four[((token % 4) + j) as usize] >> 8 == 0xFF_FFFF);
                if let Some(j) = largest {
                    return (column + j) as usize;
                }
            }
        }
        row.seed = row.seed.wrapping_add(1);
    }
}

/// What becomes of a row's logits.
#[derive(Clone, Copy, PartialEq)]
enum Broken {
    No,
    /// All NaN.
    Nan,
    /// All -inf.
    Infinite,
    /// NaN in every other place, which counts as -inf.
    Half,
    /// A mask without a bit.
    Forbidden,
}

impl Broken {
    fn of(index: u32) -> Self {
        match index {
            3 | 10 | 17 => Self::Nan,
            4 | 11 => Self::Infinite,
            5 | 12 | 19 => Self::Half,
            6 | 13 => Self::Forbidden,
            _ => Self::No,
        }
    }

    fn has_token(self) -> bool {
        matches!(self, Self::No | Self::Half)
    }
}

/// What may be drawn: the reference's token, or `None` where a filter's border or the race is too close to call.
fn reference(row: &SampleRow, logits: &[f64], edits: &[LogitEdit], mask: &[u32], offset: u32) -> Option<u32> {
    let mut scores = logits.to_vec();
    for edit in edits {
        if let Some(score) = scores.get_mut(edit.token.wrapping_sub(offset) as usize) {
            let repetition = f64::from(edit.repetition);
            *score =
                if *score > 0.0 { *score / repetition } else { *score * repetition } + f64::from(edit.add);
        }
    }
    for (i, score) in scores.iter_mut().enumerate() {
        if row.masked == 1 && mask[i / 32] >> (i % 32) & 1 == 0 {
            *score = f64::NEG_INFINITY;
        }
    }
    let mut order: Vec<usize> = (0..scores.len()).filter(|i| scores[*i] > f64::NEG_INFINITY).collect();
    if order.is_empty() {
        return Some(SampleRow::NO_TOKEN);
    }
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    if row.temperature == 0.0 {
        let tie = order.len() > 1
            && scores[order[0]] != scores[order[1]]
            && scores[order[0]] - scores[order[1]] < CLOSE;
        return (!tie).then(|| offset + order[0] as u32);
    }
    let temperature = f64::from(row.temperature);
    for score in &mut scores {
        *score /= temperature;
    }
    let largest = scores[order[0]];
    // A prefix may end between equal scores (lower id first), but not between nearly equal ones.
    let torn = |order: &[usize], keep: usize| {
        keep < order.len() && {
            let gap = scores[order[keep - 1]] - scores[order[keep]];
            gap != 0.0 && gap < CLOSE
        }
    };
    if row.top_k > 0 {
        let keep = order.len().min(row.top_k as usize);
        if torn(&order, keep) {
            return None;
        }
        order.truncate(keep);
    }
    if row.top_p < 1.0 {
        let total: f64 = order.iter().map(|i| (scores[*i] - largest).exp()).sum();
        let (mut mass, mut keep) = (0.0, 0);
        while keep < order.len() && (keep == 0 || mass < f64::from(row.top_p) * total) {
            mass += (scores[order[keep]] - largest).exp();
            keep += 1;
            if (mass / total - f64::from(row.top_p)).abs() < 1e-5 {
                return None;
            }
        }
        order.truncate(keep);
    }
    if row.min_p > 0.0 {
        let least = f64::from(row.min_p).ln();
        if order.iter().any(|i| (scores[*i] - largest - least).abs() < CLOSE) {
            return None;
        }
        order.retain(|i| scores[*i] - largest >= least);
    }
    let mut race: Vec<(f64, u32)> =
        order.iter().map(|i| (scores[*i] + noise(row, offset + *i as u32), offset + *i as u32)).collect();
    race.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    (race.len() < 2 || race[0].0 - race[1].0 > CLOSE).then(|| race[0].1)
}

/// Rows of one case, and the tokens that they find on the device.
#[derive(Default)]
struct Rows {
    rows: Vec<SampleRow>,
    edits: Vec<LogitEdit>,
    pending: Vec<Option<u32>>,
}

impl Rows {
    fn push_edits(&mut self, wanted: u32, tokens: u32, random: &mut Random) {
        let first_edit = self.edits.len();
        for _ in 0..wanted {
            let token = random.below(tokens);
            if !self.edits[first_edit..].iter().any(|edit| edit.token == token) {
                let mut add =
                    || if random.below(3) == 0 { f32::NEG_INFINITY } else { random.normal() as f32 };
                let (add, pending_add) = (add(), add());
                let repetition = 1.0 + random.unit() as f32;
                self.edits.push(LogitEdit { token, repetition, add, pending_add });
            }
        }
    }

    fn edits_of(&self, row: &SampleRow) -> &[LogitEdit] {
        &self.edits[row.first_edit as usize..][..row.edits as usize]
    }

    /// A pending token for `row`, or none: one of its edits, the likeliest one, none of this shard, or the last one.
    fn pending(
        &self,
        row: &SampleRow,
        desc: &SampleDesc,
        logits: &[f64],
        random: &mut Random,
    ) -> Option<u32> {
        match random.below(6) {
            0 => None,
            1 => Some([desc.vocab_offset + desc.vocab, SampleRow::NO_TOKEN][random.below(2) as usize]),
            2 => Some(desc.vocab_offset + desc.vocab - 1),
            3 | 4 if row.edits > 0 => Some(self.edits_of(row)[random.below(row.edits) as usize].token),
            _ => {
                let likeliest = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]))?;
                Some(desc.vocab_offset + likeliest as u32)
            }
        }
    }

    /// The same rows, made when pending tokens were known.
    fn known(&self) -> Self {
        let mut known = Self { pending: vec![None; self.rows.len()], ..Self::default() };
        for (row, pending) in self.rows.iter().zip(&self.pending) {
            let first_edit = known.edits.len();
            known.edits.extend(self.edits_of(row));
            if let Some(token) = *pending {
                let repetition = row.pending_repetition;
                match known.edits[first_edit..].iter_mut().find(|edit| edit.token == token) {
                    Some(edit) => (edit.repetition, edit.add) = (repetition, edit.pending_add),
                    None => {
                        let add = row.pending_add;
                        known.edits.push(LogitEdit { token, repetition, add, pending_add: add });
                    }
                }
            }
            let edits = (known.edits.len() - first_edit) as u32;
            known.rows.push(SampleRow { first_edit: first_edit as u32, edits, ..*row });
        }
        known
    }

    /// As the operation reads them, their edits, and what their tokens' places hold. Every third row keeps no token.
    fn put<M: Memory>(&self, bench: &mut Bench<M>) -> [u64; 3] {
        let tokens: Vec<u32> = self.pending.iter().map(|token| token.unwrap_or(u32::MAX)).collect();
        let tokens = bench.put_u32(&tokens);
        let mut bytes = Vec::new();
        for (index, row) in self.rows.iter().enumerate() {
            let pending = if self.pending[index].is_some() { tokens + index as u64 * 4 } else { 0 };
            bytes.extend(row.seed.to_ne_bytes());
            for word in [row.position, row.choice] {
                bytes.extend(word.to_ne_bytes());
            }
            for value in [row.temperature, row.top_p, row.min_p] {
                bytes.extend(value.to_ne_bytes());
            }
            for word in [row.top_k, row.first_edit, row.edits, row.logprobs, row.masked] {
                bytes.extend(word.to_ne_bytes());
            }
            let kept = if index % 3 == 0 { 0 } else { tokens + index as u64 * 4 };
            for address in [pending, kept] {
                bytes.extend(address.to_ne_bytes());
            }
            for value in [row.pending_repetition, row.pending_add] {
                bytes.extend(value.to_ne_bytes());
            }
        }
        debug_assert_eq!(bytes.len(), size_of_val(self.rows.as_slice()));
        let edits: Vec<u8> = self
            .edits
            .iter()
            .flat_map(|edit| {
                let values = [edit.repetition, edit.add, edit.pending_add].map(f32::to_ne_bytes);
                [edit.token.to_ne_bytes(), values[0], values[1], values[2]].concat()
            })
            .collect();
        [bench.memory.put(&bytes), bench.memory.put(&edits), tokens]
    }
}

/// What was drawn.
struct Draws {
    tokens: Vec<u32>,
    kept: Vec<u32>,
    logprobs: Vec<f64>,
    top_ids: Vec<u32>,
    top_logprobs: Vec<f64>,
}

/// Launches one tactic on fresh copies of everything.
fn draw<M: Memory>(
    bench: &mut Bench<M>,
    desc: &SampleDesc,
    tactic: u32,
    rows: &Rows,
    values: &[f64],
    masks: &[u32],
) -> Result<Draws, String> {
    let (count, most) = (rows.rows.len(), desc.max_logprobs as usize);
    let [row_address, edits, kept] = rows.put(bench);
    let args = SampleArgs {
        logits: bench.put_values(values, desc.logits).0,
        rows: row_address,
        edits,
        masks: bench.put_u32(masks),
        tokens: bench.put_u32(&vec![u32::MAX; count]),
        logprobs: bench.put_poison(count, DType::F32),
        top_ids: bench.put_u32(&vec![u32::MAX; count * most]),
        top_logprobs: bench.put_poison(count * most, DType::F32),
        row_count: count as u32,
    };
    bench.launch(&OpDesc::Sample(*desc), OpArgs::Sample(args), tactic, count as u32)?;
    Ok(Draws {
        tokens: bench.read_u32(args.tokens, count),
        kept: bench.read_u32(kept, count),
        logprobs: bench.read_values(args.logprobs, count, DType::F32),
        top_ids: bench.read_u32(args.top_ids, count * most),
        top_logprobs: bench.read_values(args.top_logprobs, count * most, DType::F32),
    })
}

/// Sampling: tokens must be the reference's, log-probabilities within the bound; and tokens, in any case, those of rows whose
/// pending tokens were known when they were made.
pub fn check_sample<M: Memory>(bench: &mut Bench<M>, shape: &SampleShape, seed: u64) -> Vec<Outcome> {
    if !bench.wants(OpKind::Sample) {
        return Vec::new();
    }
    let SampleShape { desc, rows, spread } = shape.clone();
    let op = OpDesc::Sample(desc);
    let case = format!("sample {desc:?} rows={rows} spread={spread} seed={seed}");
    let bound = 1e-4;
    if let Support::No(reason) = bench.backend.supports(&op) {
        return vec![Outcome { case: format!("{case}: refused: {reason}"), error: f64::NAN, bound }];
    }
    let mut outcomes = Vec::new();
    for tactic in bench.backend.tactics(&op, rows) {
        let mut random = Random::new(seed);
        let (vocab, most) = (desc.vocab as usize, desc.max_logprobs as usize);
        let count = rows as usize;
        let words = vocab.div_ceil(32);
        let mut masks: Vec<u32> = (0..count * words).map(|_| (random.word() >> 7) as u32 | 1 << 4).collect();
        let mut values = random.normals(count * vocab, spread);
        let mut made = Rows::default();
        for index in 0..rows {
            let first_edit = made.edits.len() as u32;
            made.push_edits(index % 4 * 9, desc.vocab_offset + desc.vocab + 9, &mut random);
            let plain = random.below(2) == 0;
            let mut one_of = |values: &[f32]| values[random.below(values.len() as u32) as usize];
            let mut row = SampleRow {
                temperature: one_of(&[0.0, 0.7, 1.0, 1.9]),
                top_p: if plain { 1.0 } else { one_of(&[1.0, 0.9, 0.3]) },
                min_p: if plain { 0.0 } else { one_of(&[0.0, 0.0, 0.05, 0.5]) },
                top_k: if plain { 0 } else { one_of(&[0.0, 0.0, 1.0, 40.0, 3.0, 1e6]) as u32 },
                seed: random.word(),
                position: random.below(1000),
                choice: index % 3,
                first_edit,
                edits: made.edits.len() as u32 - first_edit,
                logprobs: [SampleRow::NO_LOGPROBS, 0, 5, SampleRow::NO_LOGPROBS, 3][random.below(5) as usize],
                masked: u32::from(random.below(5) == 0),
                pending: 0,
                kept: 0,
                pending_repetition: 1.0 + random.unit() as f32,
                pending_add: [f32::NEG_INFINITY, -3.0, 0.25][random.below(3) as usize],
            };
            let logits = &mut values[index as usize * vocab..][..vocab];
            if index == 1 {
                // Equal largest logits: the lower id wins.
                (logits[7], logits[90]) = (64.0, 64.0);
                (row.temperature, row.masked, row.logprobs) = (0.0, 0, SampleRow::NO_LOGPROBS);
            } else if index == 2 {
                // Noise that is large, but not large enough.
                row = SampleRow { temperature: 1.0, top_p: 1.0, min_p: 0.0, top_k: 0, masked: 0, ..row };
                row.logprobs = SampleRow::NO_LOGPROBS;
                logits[seed_of_largest_noise(&mut row, &desc)] = -20.0;
            }
            match Broken::of(index) {
                Broken::No => (),
                Broken::Nan => logits.fill(f64::NAN),
                Broken::Infinite => logits.fill(f64::NEG_INFINITY),
                Broken::Half => logits.iter_mut().step_by(2).for_each(|logit| *logit = f64::NAN),
                Broken::Forbidden => {
                    row.masked = 1;
                    masks[index as usize * words..][..words].fill(0);
                }
            }
            let pending = made.pending(&row, &desc, logits, &mut random);
            made.pending.push(pending);
            made.rows.push(row);
        }
        let values: Vec<f64> = values.iter().map(|value| round(*value, desc.logits)).collect();
        let known = made.known();
        let case = format!("{case} tactic={}", tactic.name);
        let mut launch = |rows: &Rows| draw(bench, &desc, tactic.id, rows, &values, &masks);
        let (drawn, known_drawn) = match launch(&made).and_then(|drawn| Ok((drawn, launch(&known)?))) {
            Ok(both) => both,
            Err(message) => {
                outcomes.push(Outcome { case: format!("{case}: {message}"), error: f64::NAN, bound });
                continue;
            }
        };
        let Draws { tokens, kept, logprobs, top_ids, top_logprobs } = drawn;
        let (mut error, mut case) = (0f64, case);
        for (r, row) in known.rows.iter().enumerate() {
            let logits = &values[r * vocab..][..vocab];
            let mask = &masks[r * words..][..words];
            let wanted = reference(row, logits, known.edits_of(row), mask, desc.vocab_offset);
            let same = known_drawn.tokens[r];
            let left = if r % 3 == 0 { made.pending[r].unwrap_or(u32::MAX) } else { tokens[r] };
            if kept[r] != left {
                error = f64::NAN;
                case = format!(
                    "{case}: row {r} {row:?}: expected {left} in the place of its token, got {}",
                    kept[r]
                );
                break;
            }
            if wanted.is_some_and(|token| token != tokens[r]) || same != tokens[r] {
                error = f64::NAN;
                let (pending, got) = (made.pending[r], tokens[r]);
                case = format!(
                    "{case}: row {r} {row:?}, pending {pending:?}: expected {wanted:?}, got {got}; {same} where it was known"
                );
                break;
            }
            let broken = Broken::of(r as u32);
            if row.logprobs == SampleRow::NO_LOGPROBS || broken == Broken::Half {
                continue;
            }
            if !broken.has_token() {
                error = if logprobs[r].is_nan() { error } else { f64::NAN };
                continue;
            }
            let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let log_sum = logits.iter().map(|l| (l - largest).exp()).sum::<f64>().ln() + largest;
            let column = tokens[r].wrapping_sub(desc.vocab_offset) as usize;
            let expected = logits.get(column).map_or(f64::NAN, |logit| logit - log_sum);
            let mut off = (logprobs[r] - expected).abs() / (1.0 + expected.abs());
            let mut order: Vec<usize> = (0..vocab).collect();
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
            for (j, column) in order.iter().take(row.logprobs as usize).enumerate() {
                let at = r * most + j;
                let expected = logits[*column] - log_sum;
                let right = top_ids[at] == desc.vocab_offset + *column as u32;
                off = if right {
                    off.max((top_logprobs[at] - expected).abs() / (1.0 + expected.abs()))
                } else {
                    f64::NAN
                };
            }
            error = if off.is_nan() || error.is_nan() { f64::NAN } else { error.max(off) };
        }
        outcomes.push(Outcome { case, error, bound });
        bench.memory.clear();
    }
    outcomes
}
