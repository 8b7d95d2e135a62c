//! An axis: where values lie, and which of them are named.

/// Above this ratio of the largest to the smallest value an axis is logarithmic.
const LOG_FROM: f64 = 12.0;
/// Most ticks of an axis.
const MAX_TICKS: usize = 9;

/// Maps values to pixels.
#[derive(Clone, Debug)]
pub struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    from: f64,
    to: f64,
}

impl Scale {
    /// An axis for these values, all above 0, between two pixels.
    pub fn new(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 0.0f64);
        for value in values {
            (low, high) = (low.min(value), high.max(value));
        }
        if !low.is_finite() || high <= 0.0 {
            (low, high) = (0.0, 1.0);
        }
        let logarithmic = low > 0.0 && high / low > LOG_FROM;
        // Room, so that no point lies on the frame.
        let (low, high) = if logarithmic { (low / 1.3, high * 1.3) } else { (0.0, high * 1.1) };
        Self { low, high, logarithmic, from, to }
    }

    /// The pixel of a value.
    pub fn at(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share * (self.to - self.from)
    }

    /// Whether it is logarithmic.
    pub fn is_logarithmic(&self) -> bool {
        self.logarithmic
    }

    /// Values to name.
    pub fn ticks(&self) -> Vec<f64> {
        if !self.logarithmic {
            let step = nice(self.high / 6.0);
            return (0..).map(|n| f64::from(n) * step).take_while(|value| *value <= self.high).collect();
        }
        let decades: [&[f64]; 3] = [&[1.0, 2.0, 5.0], &[1.0, 3.0], &[1.0]];
        let mut ticks = Vec::new();
        for digits in decades {
            let first = self.low.log10().floor() as i32;
            let last = self.high.log10().ceil() as i32;
            let all =
                (first..=last).flat_map(|decade| digits.iter().map(move |digit| digit * 10f64.powi(decade)));
            ticks = all.filter(|value| (self.low..=self.high).contains(value)).collect();
            if ticks.len() <= MAX_TICKS {
                break;
            }
        }
        ticks
    }
}

/// The next of 1, 2, 2.5, 5, 10 times a power of ten.
fn nice(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let digit = [1.0, 2.0, 2.5, 5.0].into_iter().find(|digit| digit * power >= value).unwrap_or(10.0);
    digit * power
}

/// A number as a person writes it: three digits, and k or M.
pub fn number(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_name_a_handful_of_round_values_and_hold_all_points() {
        for (low, high) in [(1.0, 2.0), (0.3, 0.4), (3.0, 7000.0), (0.001, 1e7), (50.0, 60.0), (5.0, 5.0)] {
            let scale = Scale::new([low, high].into_iter(), 100.0, 0.0);
            let ticks = scale.ticks();
            assert!((2..=MAX_TICKS + 3).contains(&ticks.len()), "{low}..{high}: {ticks:?}");
            for value in [low, high].iter().chain(&ticks) {
                assert!((-1e-9..=100.0 + 1e-9).contains(&scale.at(*value)), "{value} of {low}..{high}");
            }
        }
    }

    #[test]
    fn numbers_are_short() {
        let written = [0.5, 12.34, 999.6, 1234.0, 20_000.0, 1_500_000.0, 0.0].map(number);
        assert_eq!(written, ["0.5", "12.3", "1000", "1234", "20k", "1.5M", "0"]);
    }
}
