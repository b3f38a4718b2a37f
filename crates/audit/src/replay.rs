//! The same randomness on neighbouring data. Noise and lots are the same then, so what is left of
//! the difference of two answers is what one record did.

use protocol::{Announcement, GradientQuery, LossQuery, Noisy, Oracle, Params, Refused};

/// Two oracles that draw from the same secret and hold neighbouring data. The analyst is answered
/// by the first; the second is asked the same, and the answers are compared.
pub struct PairedOracles<'a> {
    one: &'a mut dyn Oracle,
    other: &'a mut dyn Oracle,
    /// How far a sum may be moved, in units of the clip bound: 1 for add/remove, 2 for replace-one.
    sensitivity: f64,
    seen: ReplayReport,
}

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayReport {
    /// Answers that were compared.
    pub releases: u64,
    /// The largest distance of two answers, as a share of the declared sensitivity.
    pub max_distance: f64,
    /// The largest Σ_k (distance_k/(σ_k·C_k))² of one lot, as a share of what was announced: the
    /// price of all blocks together.
    pub max_joint_distance: f64,
    /// What must not be, one line each.
    pub violations: Vec<String>,
    /// What was announced for the present lot, and how much of it was used.
    announced: f64,
    used: f64,
}

/// The most lines that are kept.
const LINES: usize = 20;

impl<'a> PairedOracles<'a> {
    /// Neither has been asked anything.
    pub fn new(one: &'a mut dyn Oracle, other: &'a mut dyn Oracle, sensitivity: f64) -> Self {
        Self { one, other, sensitivity, seen: ReplayReport::default() }
    }

    /// What was seen.
    pub fn report(&self) -> &ReplayReport {
        &self.seen
    }

    fn violation(&mut self, what: String) {
        if self.seen.violations.len() < LINES {
            self.seen.violations.push(what);
        }
    }

    /// Whether both were answered, or both refused with the same words.
    fn same<T>(
        &mut self,
        what: &str,
        one: Result<T, Refused>,
        other: Result<T, Refused>,
    ) -> Result<Option<(T, T)>, Refused> {
        match (one, other) {
            (Ok(one), Ok(other)) => Ok(Some((one, other))),
            (Err(one), Err(other)) => {
                if one != other {
                    self.violation(format!(
                        "{what} was refused in different words: {one:?} and {other:?}"
                    ));
                }
                Err(one)
            }
            (Ok(_), Err(refused)) => {
                self.violation(format!(
                    "{what} was answered with the record and refused without, \
                    or the other way round: {refused}"
                ));
                Err(refused)
            }
            (Err(refused), Ok(_)) => {
                self.violation(format!(
                    "{what} was refused with the record and answered without, \
                    or the other way round: {refused}"
                ));
                Err(refused)
            }
        }
    }

    /// `apart` is the distance of two answers and `size` the length of what was rounded; `unit` is
    /// what one record may move them by.
    fn compare(&mut self, what: &str, apart: f64, size: f64, unit: f64, sigma: f64) {
        // Released numbers are f32: each of the two is rounded.
        let apart = (apart - 1.2e-7 * size).max(0.0);
        let share = apart / (self.sensitivity * unit);
        self.seen.releases += 1;
        self.seen.max_distance = self.seen.max_distance.max(share);
        self.seen.used += (apart / unit / sigma).powi(2);
        // Asks for the good case.
        if !(share <= 1.0) {
            self.violation(format!(
                "{what}: one record moved it by {share:.4} of what is declared"
            ));
        }
        let together = self.seen.used / (self.sensitivity.powi(2) * self.seen.announced);
        self.seen.max_joint_distance = self.seen.max_joint_distance.max(together);
        if !(together <= 1.0 + 1e-9) {
            self.violation(format!(
                "{what}: the releases of one lot come to {together:.4} of what was announced for it"
            ));
        }
    }

    fn same_std(&mut self, what: &str, one: &[f64], other: &[f64]) {
        if one != other {
            self.violation(format!("{what}: the declared noise depends on the record"));
        }
    }
}

impl Oracle for PairedOracles<'_> {
    fn draw(&mut self, announced: &Announcement) -> Result<(), Refused> {
        (self.seen.announced, self.seen.used) = (
            announced
                .sigmas()
                .iter()
                .map(|&(sigma, count)| count as f64 / sigma.get().powi(2))
                .sum(),
            0.0,
        );
        let (one, other) = (self.one.draw(announced), self.other.draw(announced));
        self.same("a lot", one, other).map(|_| ())
    }

    fn gradient(&mut self, query: &GradientQuery<'_>) -> Result<Noisy<Params>, Refused> {
        let (one, other) = (self.one.gradient(query), self.other.gradient(query));
        let Some((one, other)) = self.same("a gradient", one, other)? else {
            return Err(Refused::Failed("no answer".into()));
        };
        self.same_std("a gradient", &one.std, &other.std);
        for (block, bound) in query.bounds.iter().enumerate() {
            let of_block = |params: &'_ Params| -> Vec<f64> {
                let tensors = (0..params.len()).filter(|&k| query.blocks.of(k) == block);
                tensors
                    .flat_map(|k| {
                        params[k].data().iter().map(|&x| f64::from(x)).collect::<Vec<_>>()
                    })
                    .collect()
            };
            let (a, b) = (of_block(&one.value), of_block(&other.value));
            let apart = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
            let size =
                a.iter().zip(&b).map(|(a, b)| a.abs().max(b.abs()).powi(2)).sum::<f64>().sqrt();
            // The declared noise is σ·C/B: one record may move a release by C/B.
            let unit = one.std[block] / bound.sigma.get();
            self.compare(
                &format!("block {block} of a gradient"),
                apart,
                size,
                unit,
                bound.sigma.get(),
            );
        }
        Ok(one)
    }

    fn loss(&mut self, query: &LossQuery<'_>) -> Result<Noisy<f64>, Refused> {
        let (one, other) = (self.one.loss(query), self.other.loss(query));
        let Some((one, other)) = self.same("a loss", one, other)? else {
            return Err(Refused::Failed("no answer".into()));
        };
        self.same_std("a loss", &one.std, &other.std);
        let unit = one.std.first().copied().unwrap_or(0.0) / query.bound.sigma.get();
        self.compare(
            "a loss",
            (one.value - other.value).abs(),
            one.value.abs().max(other.value.abs()),
            unit,
            query.bound.sigma.get(),
        );
        Ok(one)
    }
}
