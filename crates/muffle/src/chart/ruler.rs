//! The range of an axis and its ticks: round values, 1, 2 and 5 times powers of ten.

use super::Scale;

/// The range of one axis and its ticks.
#[derive(Debug, PartialEq)]
pub(super) struct Ruler {
    scale: Scale,
    low: f64,
    high: f64,
    /// Round values within the range, increasing.
    pub(super) ticks: Vec<f64>,
}

impl Ruler {
    /// A range from the smallest value, or from zero if that is close, to the largest.
    pub(super) fn tight(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let (mut low, high) = range(scale, values);
        if scale == Scale::Linear && low > 0.0 && low < 0.05 * high {
            low = 0.0;
        }
        Self { scale, low, high, ticks: ticks(scale, low, high) }
    }

    /// A range from a tick below the values, or from zero if that is close, to a tick above them.
    pub(super) fn rounded(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = range(scale, values);
        match scale {
            Scale::Linear => {
                if low > 0.0 && low < 0.25 * high {
                    low = 0.0;
                }
                let step = round_step((high - low) / 6.0);
                (low, high) =
                    ((low / step + 1e-9).floor() * step, (high / step - 1e-9).ceil() * step);
            }
            Scale::Log => {
                let round_values = candidates(low / 10.0, high * 10.0, &[1.0, 2.0, 5.0]);
                low = round_values
                    .iter()
                    .copied()
                    .filter(|tick| *tick <= low * (1.0 + 1e-9))
                    .fold(low / 10.0, f64::max);
                high = round_values
                    .iter()
                    .copied()
                    .filter(|tick| *tick >= high * (1.0 - 1e-9))
                    .fold(high * 10.0, f64::min);
            }
        }
        Self { scale, low, high, ticks: ticks(scale, low, high) }
    }

    /// The relative position of a value on the axis, between 0 and 1.
    pub(super) fn fraction(&self, value: f64) -> f64 {
        let fraction = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        fraction.clamp(0.0, 1.0)
    }

    /// The labels of the ticks: in one unit, with enough digits to distinguish them.
    ///
    /// On a logarithmic axis, each tick has its own unit; if one of them needs a power of ten, all
    /// below 1 are powers.
    pub(super) fn labels(&self) -> Vec<String> {
        let smallest_gap =
            self.ticks.windows(2).map(|pair| pair[1] - pair[0]).fold(f64::INFINITY, f64::min);
        let largest = self.ticks.iter().fold(0.0, |most: f64, tick| most.max(tick.abs()));
        let label = |&tick: &f64| match self.scale {
            Scale::Log if spans_a_decade(self.low, self.high) => {
                if tick < 0.9 && exponent(self.ticks[0]) < -3 && is_power_of_ten(tick) {
                    return format!("10{}", superscript(exponent(tick)));
                }
                label(tick, 10_f64.powi(exponent(tick)), tick)
            }
            _ => label(tick, smallest_gap.min(largest), largest),
        };
        self.ticks.iter().map(label).collect()
    }
}

/// The range of the values, widened if they are all the same.
fn range(scale: Scale, values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    match scale {
        Scale::Linear if !(high - low > 1e-9 * high.abs().max(low.abs())) => {
            let half = if low == 0.0 { 1.0 } else { 0.5 * low.abs() };
            (low - half, high + half)
        }
        Scale::Log if !(high / low > 1.0 + 1e-9) => (low / 2.0, high * 2.0),
        _ => (low, high),
    }
}

/// The smallest of 1, 2 and 5 times a power of ten that is at least `gap`.
fn round_step(gap: f64) -> f64 {
    let power = 10_f64.powi(exponent(gap));
    [1.0, 2.0, 5.0]
        .iter()
        .map(|digit| digit * power)
        .find(|step| *step >= gap * (1.0 - 1e-9))
        .unwrap_or(10.0 * power)
}

/// About four to nine round values within the range.
fn ticks(scale: Scale, low: f64, high: f64) -> Vec<f64> {
    if scale == Scale::Log && spans_a_decade(low, high) {
        let decades = (high / low).log10();
        if decades <= 2.5 {
            return candidates(low, high, &[1.0, 2.0, 5.0]);
        }
        let stride = (decades / 6.0).ceil() as usize;
        return candidates(low, high, &[1.0]).into_iter().step_by(stride).collect();
    }
    let step = round_step((high - low) / 6.0);
    let (first, last) = ((low / step - 1e-9).ceil(), (high / step + 1e-9).floor());
    // Adding zero turns -0 into 0.
    (0..=(last - first) as usize).map(|i| (first + i as f64) * step + 0.0).collect()
}

/// Whether a logarithmic range is wide enough for ticks at 1, 2 and 5 times powers of ten.
///
/// A narrower range has linear ticks.
fn spans_a_decade(low: f64, high: f64) -> bool {
    high / low > 10.0
}

/// `digits` times the powers of ten, within the range.
fn candidates(low: f64, high: f64, digits: &[f64]) -> Vec<f64> {
    let powers = exponent(low)..=exponent(high);
    let all = powers.flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power)));
    all.filter(|tick| *tick >= low * (1.0 - 1e-9) && *tick <= high * (1.0 + 1e-9)).collect()
}

/// The decimal exponent of a number.
fn exponent(x: f64) -> i32 {
    (x.abs().log10() + 1e-9).floor() as i32
}

/// Formats a tick, distinct from ticks `gap` away, in a unit that suits the `largest` one.
fn label(tick: f64, gap: f64, largest: f64) -> String {
    let power = exponent(largest);
    let (unit, suffix) = match power {
        _ if tick == 0.0 => return "0".into(),
        -3..=3 => (1.0, String::new()),
        4..=5 => (1e3, "k".into()),
        6..=8 => (1e6, "M".into()),
        _ => (10_f64.powi(power), format!("×10{}", superscript(power))),
    };
    let digits = (-exponent(gap / unit)).clamp(0, 9) as usize;
    let number = format!("{:.digits$}{suffix}", tick / unit).replace('-', "−");
    number.strip_prefix("1×").map_or(number.clone(), str::to_owned)
}

fn is_power_of_ten(x: f64) -> bool {
    (x / 10_f64.powi(exponent(x)) - 1.0).abs() < 1e-6
}

/// A number in superscript digits.
fn superscript(power: i32) -> String {
    let superscript_digit =
        |c: char| "-0123456789".find(c).and_then(|index| "⁻⁰¹²³⁴⁵⁶⁷⁸⁹".chars().nth(index));
    power.to_string().chars().filter_map(superscript_digit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tight(scale: Scale, low: f64, high: f64) -> Ruler {
        Ruler::tight(scale, [low, high].into_iter())
    }

    #[test]
    fn steps_are_one_two_or_five() {
        for (gap, expected) in [
            (0.9, 1.0),
            (1.0, 1.0),
            (1.1, 2.0),
            (2.1, 5.0),
            (5.1, 10.0),
            (60.0, 100.0),
            (0.03, 0.05),
            (2e-7, 2e-7),
        ] {
            assert!((round_step(gap) / expected - 1.0).abs() < 1e-9, "{gap}: {}", round_step(gap));
        }
    }

    #[test]
    fn linear_ticks_are_within_the_data() {
        let ruler = tight(Scale::Linear, 30.0, 296.0);
        assert_eq!(ruler.ticks, [50.0, 100.0, 150.0, 200.0, 250.0]);
        assert_eq!((ruler.low, ruler.high), (30.0, 296.0));
        assert_eq!(
            tight(Scale::Linear, 1.0, 300.0).ticks,
            [0.0, 50.0, 100.0, 150.0, 200.0, 250.0, 300.0]
        );
        assert_eq!(tight(Scale::Linear, -1.0, 1.0).labels(), ["−1.0", "−0.5", "0", "0.5", "1.0"]);
        assert_eq!(tight(Scale::Linear, 0.0, 40_000.0).labels(), ["0", "10k", "20k", "30k", "40k"]);
        assert_eq!(
            tight(Scale::Linear, 0.0, 4e-6).labels(),
            ["0", "10⁻⁶", "2×10⁻⁶", "3×10⁻⁶", "4×10⁻⁶"]
        );
    }

    #[test]
    fn a_rounded_range_ends_on_ticks_and_starts_at_zero_if_close() {
        let ruler = Ruler::rounded(Scale::Linear, [2.31, 4.08].into_iter());
        assert_eq!((ruler.low, ruler.high), (2.0, 4.5));
        let ruler = Ruler::rounded(Scale::Linear, [0.4, 7.9].into_iter());
        assert_eq!((ruler.low, ruler.high, ruler.ticks.len()), (0.0, 8.0, 5));
        let ruler = Ruler::rounded(Scale::Log, [0.03, 700.0].into_iter());
        assert_eq!((ruler.low, ruler.high), (0.02, 1000.0));
    }

    #[test]
    fn logarithmic_ticks_suit_the_number_of_decades() {
        assert_eq!(tight(Scale::Log, 0.5, 16.0).labels(), ["0.5", "1", "2", "5", "10"]);
        assert_eq!(
            tight(Scale::Log, 1e-8, 1e-2).labels(),
            ["10⁻⁸", "10⁻⁷", "10⁻⁶", "10⁻⁵", "10⁻⁴", "10⁻³", "10⁻²"]
        );
        assert_eq!(tight(Scale::Log, 1e-40, 1e40).ticks.len(), 6);
        assert_eq!(tight(Scale::Log, 1.0, 1.8).labels(), ["1.0", "1.2", "1.4", "1.6", "1.8"]);
    }

    #[test]
    fn every_range_has_ticks_with_different_labels() {
        let ends = [
            -1e100,
            -3.7e7,
            -1.0,
            -1e-100,
            0.0,
            1e-100,
            1e-7,
            0.3,
            1.0,
            1.0 + 1e-12,
            1.001,
            8.0,
            99_999.0,
            1e16,
            1e100,
        ];
        for (i, &low) in ends.iter().enumerate() {
            for &high in &ends[i..] {
                for scale in [Scale::Linear, Scale::Log] {
                    if !scale.shows(low) {
                        continue;
                    }
                    for ruler in
                        [tight(scale, low, high), Ruler::rounded(scale, [low, high].into_iter())]
                    {
                        let mut labels = ruler.labels();
                        assert!((2..=14).contains(&labels.len()), "{low} {high} {ruler:?}");
                        labels.dedup();
                        assert_eq!(labels.len(), ruler.ticks.len(), "{low} {high} {labels:?}");
                        let tolerance = 1e-8 * (ruler.high - ruler.low);
                        assert!(
                            ruler.low <= low + tolerance && high <= ruler.high + tolerance,
                            "{low} {high} {ruler:?}"
                        );
                        let (from, to) = (ruler.fraction(low), ruler.fraction(high));
                        assert!(0.0 <= from && from <= to && to <= 1.0, "{low} {high} {ruler:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_single_value_is_in_the_middle() {
        for (scale, value) in
            [(Scale::Linear, 0.0), (Scale::Linear, -7.0), (Scale::Linear, 300.0), (Scale::Log, 3.0)]
        {
            let fraction = tight(scale, value, value).fraction(value);
            assert!((fraction - 0.5).abs() < 1e-9, "{value}: {fraction}");
        }
    }
}
